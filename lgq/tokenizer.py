"""An image tokenizer (VQ-GAN, Esser et al. 2021) around any quantizer: images to a grid of tokens and back.

b = images, h w = height and width, of images in pixels and of tokens in tokens.

    tokenizer = Tokenizer()                          # the LGQ paper's model: f = 16, 16,384 codes
    tokens = tokenizer.encode(images)                # (b, h / f, w / f), int64
    images = tokenizer.decode(tokens)
    tokenizer.save_pretrained("mine")                # config.json, model.safetensors, README.md
    tokenizer = Tokenizer.from_pretrained("mine")    # or "owner/name" on the Hugging Face Hub

Images are RGB and float in [-1, 1], of any size that f divides.
"""

import hashlib
import inspect
import json
import re
from collections.abc import Callable
from dataclasses import make_dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from huggingface_hub import ModelCard, PyTorchModelHubMixin, hf_hub_download
from jaxtyping import Float, Int64, Integer
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from lgq.checks import require_at_least
from lgq.config import from_json, to_json
from lgq.files import replace_file
from lgq.models.autoencoder import Backbone, Decoder, Encoder
from lgq.quantizers import QUANTIZERS, Quantized, Quantizer, Residual, build_quantizer

CONFIG, WEIGHTS = "config.json", "model.safetensors"

_PAPER = Backbone()
_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")
_CARD = """\
---
{{ card_data }}
---

# Image tokenizer: {{ settings.quantizer }}, f = {{ factor }}

Turns an RGB image into a grid of integers, one for every {{ factor }} x {{ factor }} pixels, and such
a grid back into an image. Made with `lgq`, a library of discrete image tokenizers.

```python
from lgq import Tokenizer

tokenizer = Tokenizer.from_pretrained("path/to/this/directory")  # or its owner/name on the Hub
tokens = tokenizer.encode(images)  # images: (b, 3, h, w), float in [-1, 1], sides multiples of {{ factor }}
images = tokenizer.decode(tokens)
```

Configuration:

```json
{{ configuration }}
```

License: MIT.
"""


class TokenizerError(ValueError):
    """Files that make no tokenizer, or tokens and settings that fit none; says which, and the way out."""


class Tokenized(NamedTuple):
    """Result of a tokenizer's `forward`."""

    reconstruction: Float[Tensor, "b 3 h w"]
    quantized: Quantized
    """Of the latents: codes, tokens (`indices`) and the quantizer's loss."""


class Tokenizer(
    nn.Module,
    PyTorchModelHubMixin,
    library_name="lgq",
    license="mit",
    tags=["image-tokenizer", "vector-quantization"],
    model_card_template=_CARD,
):
    """Encoder, quantizer and decoder, with one token for every `factor` x `factor` pixels.

    backbone: settings of encoder and decoder; by default the paper's ImageNet model.
    quantizer: a name from `lgq.quantizers.QUANTIZERS`.
    codebook_size: number of codes, of each stage if there are several.
    stages: above 1, a residual quantizer; tokens then have a trailing axis of stages.
    quantizer_options: keyword arguments of the quantizer's constructor.

    All of these, with the defaults spelled out, are `settings`: what config.json holds.
    Under one `torch.manual_seed`, encoder and decoder start the same whatever the quantizer:
    they are built first, and quantizers draw from seeds of their own.
    """

    def __init__(
        self,
        backbone: Backbone = _PAPER,
        quantizer: str = "lgq",
        codebook_size: int = 16_384,
        *,
        stages: int = 1,
        quantizer_options: dict[str, Any] | None = None,
    ):
        super().__init__()
        require_at_least(1, stages=stages)
        options = from_json(_options_of(quantizer), quantizer_options or {}, path="quantizer_options")
        self.settings = {
            "backbone": to_json(backbone),
            "quantizer": quantizer,
            "codebook_size": codebook_size,
            "stages": stages,
            "quantizer_options": to_json(options),
        }
        self._hub_mixin_config = self.settings  # what save_pretrained writes
        self.factor, self.codebook_size, self.stages = backbone.factor, codebook_size, stages
        self.encoder, self.decoder = Encoder(backbone), Decoder(backbone)
        self.quantizer = _quantizer(self.settings)

    def forward(self, images: Float[Tensor, "b 3 h w"]) -> Tokenized:
        """Reconstruct, with gradients; values may leave [-1, 1], where a clamp would have none."""
        quantized = self.quantizer(self._latents(images))
        return Tokenized(self._images(quantized.quantized), quantized)

    @torch.no_grad()
    def encode(
        self, images: Float[Tensor, "b 3 h w"]
    ) -> Int64[Tensor, "b h//{self.factor} w//{self.factor} *stages"]:
        """The tokens of images, without gradients, and the same in train and in eval mode."""
        return self.quantizer.encode(self._latents(images))

    @torch.no_grad()
    def decode(
        self, tokens: Integer[Tensor, "b h w *stages"]
    ) -> Float[Tensor, "b 3 h*{self.factor} w*{self.factor}"]:
        """The images of tokens, without gradients, clamped to [-1, 1] (as `forward`'s are not).

        Of a residual tokenizer the first stages suffice; fewer give a coarser image.
        """
        _require_tokens(tokens, self.stages)
        # Narrow integers save space on disk, but torch takes uint8 indices for a mask.
        return self._images(self.quantizer.decode(tokens.long())).clamp(-1, 1)

    def anneal(self, progress: float) -> None:
        """Set what the quantizer changes over training, at `progress` from 0 to 1."""
        self.quantizer.anneal(progress)

    def parameter_counts(self) -> dict[str, int]:
        """Learned parameters of each part; the running means of VQ's codebook are none."""
        parts = {"encoder": self.encoder, "decoder": self.decoder, "quantizer": self.quantizer}
        return {name: sum(p.numel() for p in part.parameters()) for name, part in parts.items()}

    def fingerprint(self) -> str:
        """sha256 (hex) of settings and weights: equal for tokenizers that save the same files.

        Device and memory format do not matter; dtype does.
        """
        digest = hashlib.sha256(json.dumps(_chosen(self.settings), sort_keys=True).encode())
        for name, tensor in sorted(self.state_dict().items()):
            digest.update(json.dumps([name, str(tensor.dtype), tensor.shape]).encode())
            digest.update(tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
        return digest.hexdigest()

    @classmethod
    def from_pretrained(  # type: ignore[override]  # settings come from the file alone
        cls,
        pretrained_model_name_or_path: str | Path,
        *,
        force_download: bool = False,
        token: str | bool | None = None,
        cache_dir: str | Path | None = None,
        local_files_only: bool = False,
        revision: str | None = None,
        map_location: str | torch.device = "cpu",
    ) -> "Tokenizer":
        """The tokenizer of a directory, or of owner/name on the Hugging Face Hub; in eval mode.

        A directory is read without the network, and nothing is ever unpickled. Where a directory
        `owner` is at hand, owner/name is a path. `map_location` is the device; the other arguments
        are those of `huggingface_hub.hf_hub_download`.
        """
        download = partial(
            hf_hub_download,
            force_download=force_download,
            token=token,
            cache_dir=cache_dir,
            local_files_only=local_files_only,
            revision=revision,
        )
        # Weights first: a run's directory has a config.json too, which is not the tokenizer's.
        weights, config = (_find(pretrained_model_name_or_path, name, download) for name in (WEIGHTS, CONFIG))
        tokenizer = cls._from_config(config)
        _load_weights(tokenizer, weights)
        return tokenizer.eval().to(map_location)

    @classmethod
    def _from_config(cls, file: Path) -> "Tokenizer":
        try:
            values = json.loads(file.read_text(encoding="utf-8"))
            arguments = vars(from_json(_keywords_of(cls.__init__, but=("self",)), values))
            # The random start is about to be overwritten: the caller's random numbers stay as they were.
            with torch.random.fork_rng(devices=[]):
                return cls(**arguments)
        except (TypeError, ValueError) as error:
            raise TokenizerError(f"{file} describes no tokenizer that this lgq knows: {error}") from error

    def _save_pretrained(self, save_directory: Path) -> None:
        tensors = {name: tensor.contiguous() for name, tensor in self.state_dict().items()}
        replace_file(save_directory / WEIGHTS, save(tensors))

    def generate_model_card(self, *args: Any, **kwargs: Any) -> ModelCard:
        return super().generate_model_card(
            *args,
            factor=self.factor,
            settings=self.settings,
            configuration=json.dumps(self.settings, indent=2, sort_keys=True),
            **kwargs,
        )

    def _latents(self, images: Tensor) -> Tensor:
        if images.is_floating_point():
            images = images.to(self.encoder.stem.weight.dtype)
        latents: Tensor = self.encoder(images)
        return latents

    def _images(self, codes: Tensor) -> Tensor:
        """Decode in the dtype and memory format of the weights; quantizers return channels last."""
        weight = self.decoder.to_image.weight
        layout = torch.contiguous_format if weight.is_contiguous() else torch.channels_last
        images: Tensor = self.decoder(codes.to(weight.dtype).contiguous(memory_format=layout))
        return images


def _quantizer(settings: dict[str, Any]) -> Quantizer:
    dim, size = settings["backbone"]["latent_channels"], settings["codebook_size"]
    options = settings["quantizer_options"] | {"channel_dim": 1}
    stages = [build_quantizer(settings["quantizer"], dim, size, **options) for _ in range(settings["stages"])]
    return stages[0] if len(stages) == 1 else Residual(stages, channel_dim=1)


def _options_of(quantizer: str) -> type[Any]:
    """What a tokenizer leaves open of the quantizer's constructor."""
    if quantizer not in QUANTIZERS:
        raise TokenizerError(f"unknown quantizer {quantizer!r}: choose from {', '.join(QUANTIZERS)}.")
    return _keywords_of(QUANTIZERS[quantizer], but=("dim", "codebook_size", "channel_dim"))


def _keywords_of(constructor: Callable[..., Any], *, but: tuple[str, ...]) -> type[Any]:
    """A dataclass of the constructor's keywords, with their types and defaults, as `lgq.config` reads it."""
    keywords = [p for p in inspect.signature(constructor).parameters.values() if p.name not in but]
    return make_dataclass("Settings", [(p.name, p.annotation, p.default) for p in keywords], kw_only=True)


def _chosen(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings without the defaults: an option that comes later, at its default, changes no fingerprint."""
    options = _options_of(settings["quantizer"])
    defaults = {"backbone": to_json(_PAPER), "quantizer_options": to_json(options())}
    chosen = {
        group: {name: value for name, value in settings[group].items() if value != defaults[group][name]}
        for group in defaults
    }
    return settings | chosen


def _find(source: str | Path, name: str, download: Callable[..., str]) -> Path:
    folder = Path(source)
    if folder.is_dir():
        return _find_in(folder, name)
    # A mistyped path must not cost the half minute in which the Hub is tried again and again.
    if isinstance(source, Path) or not _HUB_ID.fullmatch(source) or folder.parent.is_dir():
        raise TokenizerError(
            f"there is no directory {source}: name one that save_pretrained wrote, or owner/name on the Hub."
        )
    try:
        return Path(download(repo_id=source, filename=name))
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise TokenizerError(
            f"there is no directory {source}, and the Hugging Face Hub gave no {name} of it: {reason}"
        ) from error


def _find_in(folder: Path, name: str) -> Path:
    if (folder / name).is_file():
        return folder / name
    better = [folder / part for part in ("best", "last") if (folder / part / name).is_file()]
    advice = f"did you mean {better[0]}?" if better else "save_pretrained writes one; pickles are not loaded."
    raise TokenizerError(f"{folder} has no {name}: {advice}")


def _load_weights(tokenizer: Tokenizer, file: Path) -> None:
    try:
        tensors = load_file(file)
    except SafetensorError as error:
        raise TokenizerError(f"{file} is damaged or cut short ({error}): copy it again.") from error
    _require_fit(tokenizer.state_dict(), tensors, file)
    # `assign` keeps the dtypes of the file; the copy frees us from it, for it may be replaced.
    tokenizer.load_state_dict({name: tensor.clone() for name, tensor in tensors.items()}, assign=True)


def _require_fit(expected: dict[str, Any], found: dict[str, Tensor], file: Path) -> None:
    for name in sorted(expected.keys() | found.keys()):
        wanted, given = _kind(expected.get(name)), _kind(found.get(name))
        if wanted != given:
            raise TokenizerError(
                f"{file} does not fit {CONFIG} beside it: of {name} it holds {given}, not {wanted}. "
                "One of the two files is from another tokenizer."
            )


def _kind(tensor: Tensor | None) -> str:
    if tensor is None:
        return "nothing"
    return f"{'numbers' if tensor.is_floating_point() else tensor.dtype} of shape {tuple(tensor.shape)}"


def _require_tokens(tokens: Tensor, stages: int) -> None:
    if tokens.is_floating_point() or tokens.dtype == torch.bool:
        raise TokenizerError(f"tokens must be integers, got {tokens.dtype}: convert them with .long().")
    axes = "(b, h, w)" if stages == 1 else f"(b, h, w, 1 to {stages} stages)"
    fits = tokens.ndim == 3 if stages == 1 else tokens.ndim == 4 and tokens.shape[3] <= stages
    if not fits or 0 in tokens.shape[1:]:
        raise TokenizerError(
            f"tokens must have shape {axes}, got {tuple(tokens.shape)}: were they made by another tokenizer?"
        )
