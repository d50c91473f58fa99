"""An image tokenizer (VQ-GAN, Esser et al. 2021) around any quantizer: images to a grid of tokens and back.

b = images, h w = height and width, of images in pixels and of tokens in tokens.

    tokenizer = Tokenizer()                          # the LGQ paper's model: f = 16, 16,384 codes
    tokens = tokenizer.encode(images)                # (b, h / f, w / f), int64
    images = tokenizer.decode(tokens)
    tokenizer.save_pretrained("mine")                # config.json, model.safetensors, README.md
    tokenizer = Tokenizer.from_pretrained("mine")    # or "owner/name" on the Hugging Face Hub

Images are RGB and float in [-1, 1], of any size that f divides.

The tokenizer beside what was made with it: tokens and generators keep a copy, to be whole on their own.
"""

import hashlib
import inspect
import json
from collections.abc import Callable
from dataclasses import make_dataclass
from pathlib import Path
from typing import Any, NamedTuple, Unpack

import torch
from huggingface_hub import ModelCard, PyTorchModelHubMixin
from jaxtyping import Float, Int64, Integer
from safetensors.torch import save
from torch import Tensor, nn

from lgq.checks import require_at_least, require_at_most
from lgq.config import from_json, to_json
from lgq.errors import LGQError
from lgq.files import replace_directory, replace_file
from lgq.hub import CONFIG, WEIGHTS, HubOptions, PretrainedError, find_file, load_weights, require_weights_of
from lgq.models.autoencoder import Backbone, Decoder, Encoder
from lgq.quantizers import QUANTIZERS, Quantized, Quantizer, Residual, build_quantizer

_PAPER = Backbone()
_MOST_STAGES = 1_000  # so that no file of settings can ask for a network without end
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


class TokenizerError(LGQError):
    """Tokens or settings that fit no tokenizer; says which, and the way out."""


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
        require_at_most(_MOST_STAGES, stages=stages)
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

    @property
    def device(self) -> torch.device:
        """Where its weights are, and images to encode must be."""
        return next(self.parameters()).device

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
        map_location: str | torch.device = "cpu",
        **options: Unpack[HubOptions],
    ) -> "Tokenizer":
        """The tokenizer of a directory, or of owner/name on the Hugging Face Hub; in eval mode.

        map_location: the device.
        """
        # Weights first: a run's directory has a config.json too, which is not the tokenizer's.
        weights, config = (
            find_file(pretrained_model_name_or_path, name, options) for name in (WEIGHTS, CONFIG)
        )
        return cls.from_files(config, weights).to(map_location)

    @classmethod
    def from_files(cls, config: Path, weights: Path) -> "Tokenizer":
        """In eval mode; nothing is unpickled."""
        tokenizer = cls._from_config(config, weights)
        load_weights(tokenizer, weights)
        return tokenizer.eval()

    @classmethod
    def _from_config(cls, file: Path, weights: Path) -> "Tokenizer":
        try:
            values = json.loads(file.read_text(encoding="utf-8"))
            arguments = vars(from_json(_keywords_of(cls.__init__, but=("self",)), values))
            # The random start is about to be overwritten: the caller's random numbers stay as they were.
            with torch.random.fork_rng(devices=[]):
                require_weights_of(lambda: cls(**arguments), weights)
                return cls(**arguments)
        except PretrainedError:
            raise
        except (TypeError, ValueError, RuntimeError, OverflowError, RecursionError) as error:
            reason = " ".join(str(error).split())
            raise TokenizerError(
                f"{file} describes no tokenizer that this lgq knows: {reason:.400}"
            ) from error

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


def _require_tokens(tokens: Tensor, stages: int) -> None:
    if tokens.is_floating_point() or tokens.dtype == torch.bool:
        raise TokenizerError(f"tokens must be integers, got {tokens.dtype}: convert them with .long().")
    axes = "(b, h, w)" if stages == 1 else f"(b, h, w, 1 to {stages} stages)"
    fits = tokens.ndim == 3 if stages == 1 else tokens.ndim == 4 and tokens.shape[3] <= stages
    if not fits or 0 in tokens.shape[1:]:
        raise TokenizerError(
            f"tokens must have shape {axes}, got {tuple(tokens.shape)}: were they made by another tokenizer?"
        )


COPY = "tokenizer"
"""Directory of the copy within that of the tokens, or of the generator."""


def require_room_for_copy(tokenizer: Tokenizer, folder: Path) -> bool:
    """Whether a directory still lacks the copy; anything else in its place is refused, and stays as it is."""
    place = folder / COPY
    if not place.exists():
        return True
    try:
        there = Tokenizer.from_pretrained(place).fingerprint()
    except (PretrainedError, TokenizerError, OSError):
        there = None
    if there != tokenizer.fingerprint():
        raise PretrainedError(
            f"{place} holds something else, where a copy of the tokenizer would come: "
            "choose another directory, or move it away."
        )
    return False


def leave_copy(tokenizer: Tokenizer, folder: Path) -> None:
    """Write the copy, whole or not at all, where there is none yet."""
    if require_room_for_copy(tokenizer, folder):
        with replace_directory(folder / COPY) as directory:
            tokenizer.save_pretrained(directory)
