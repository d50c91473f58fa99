"""A class-conditional image generator (MaskGIT, Chang et al. 2022) on the tokens of any tokenizer.

b = images, h w = tokens along the height and the width, n = tokens of an image, s = side in pixels.

    maskgit = MaskGIT.from_pretrained("generator")               # a directory, or owner/name on the Hub
    images = maskgit.generate(torch.tensor([0, 7, 7]), Sampling(steps=11, guidance=2.0), seed=1)
    tokens = maskgit.inpaint(tokens, mask, classes)              # new ones where the mask is true

Images are RGB in [-1, 1].
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from math import prod
from pathlib import Path
from typing import Any, Unpack

import torch
from huggingface_hub import ModelCard, PyTorchModelHubMixin
from jaxtyping import Bool, Float, Int64
from safetensors.torch import save
from torch import Tensor, nn

from lgq.checks import require_at_least
from lgq.config import from_json, to_json
from lgq.errors import LGQError
from lgq.files import replace_file
from lgq.hub import CONFIG, WEIGHTS, HubOptions, PretrainedError, find_file, load_weights, require_weights_of
from lgq.models.modes import in_eval_mode
from lgq.models.sampling import Sampling, sample_tokens
from lgq.models.transformer import MaskedTransformer, TransformerSettings
from lgq.tokenizer import COPY, Tokenizer, leave_copy, require_room_for_copy

_PAPER, _DEFAULT = TransformerSettings(), Sampling()
_CARD = """\
---
{{ card_data }}
---

# Image generator: MaskGIT, {{ size }} x {{ size }} pixels

Draws images of {{ classes }} class(es) as {{ shape }} tokens, and fills in parts of images. Made with
`lgq`, a library of discrete image tokenizers. The tokenizer is in `tokenizer/`.

```python
import torch
from lgq import MaskGIT

maskgit = MaskGIT.from_pretrained("path/to/this/directory")  # or its owner/name on the Hub
images = maskgit.generate(torch.tensor([0]))  # classes; images (1, 3, {{ size }}, {{ size }}) in [-1, 1]
```

Configuration:

```json
{{ configuration }}
```

License: MIT.
"""


class GeneratorError(LGQError):
    """What a generator cannot draw; says what, and the way out."""


@dataclass(frozen=True, kw_only=True)
class _Settings:
    """What config.json holds."""

    image_size: int
    classes: tuple[str, ...]
    fingerprint: str
    transformer: TransformerSettings = field(default_factory=TransformerSettings)


class MaskGIT(
    nn.Module,
    PyTorchModelHubMixin,
    library_name="lgq",
    license="mit",
    tags=["image-generation", "masked-image-modeling"],
    model_card_template=_CARD,
):
    """A transformer that predicts tokens, and the tokenizer that they belong to.

    tokenizer: from here on frozen, and in eval mode.
    image_size: side of the square images, a multiple of the tokenizer's factor.
    classes: name of each class; images without labels are one class.
    transformer: its size.

    All of these, and the tokenizer's fingerprint, are `settings`: what config.json holds. A residual
    tokenizer's stages are tokens like all others, side by side at each place.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        image_size: int,
        classes: Sequence[str],
        transformer: TransformerSettings = _PAPER,
    ):
        super().__init__()
        if isinstance(classes, str):
            raise GeneratorError(f"classes must be a name each, got one string: write ({classes!r},).")
        require_at_least(1, image_size=image_size, classes=len(classes))
        if image_size % tokenizer.factor:
            rule = f"a multiple of {tokenizer.factor}, the tokenizer's factor"
            raise GeneratorError(f"image_size must be {rule}, got {image_size}.")
        self.image_size, self.classes = image_size, tuple(classes)
        side = image_size // tokenizer.factor
        self.token_shape = (side, side) if tokenizer.stages == 1 else (side, side, tokenizer.stages)
        self.transformer = MaskedTransformer(
            tokenizer.codebook_size, prod(self.token_shape), len(classes), transformer
        )
        self.tokenizer = tokenizer.eval().requires_grad_(False)
        settings = _Settings(
            image_size=image_size,
            classes=self.classes,
            fingerprint=tokenizer.fingerprint(),
            transformer=transformer,
        )
        self.settings = to_json(settings)
        self._hub_mixin_config = self.settings  # what save_pretrained writes

    def train(self, mode: bool = True) -> "MaskGIT":
        """The tokenizer stays as it is: frozen."""
        super().train(mode)
        self.tokenizer.eval()
        return self

    def sample(
        self, classes: Int64[Tensor, " b"], sampling: Sampling = _DEFAULT, *, seed: int = 0
    ) -> Int64[Tensor, "b *token_shape"]:
        """Tokens of new images; the same seed, batch and device give the same.

        seed: from 0 on. A CPU sees the lowest 32 bits of it.
        """
        blank = torch.full((len(classes), *self.token_shape), self.transformer.mask_token)
        return self._fill(blank, classes, sampling, seed)

    def generate(
        self, classes: Int64[Tensor, " b"], sampling: Sampling = _DEFAULT, *, seed: int = 0
    ) -> Float[Tensor, "b 3 {self.image_size} {self.image_size}"]:
        """New images."""
        return self.tokenizer.decode(self.sample(classes, sampling, seed=seed))

    def inpaint(
        self,
        tokens: Int64[Tensor, "b *token_shape"],
        mask: Bool[Tensor, "b h w"],
        classes: Int64[Tensor, " b"],
        sampling: Sampling = _DEFAULT,
        *,
        seed: int = 0,
    ) -> Int64[Tensor, "b *token_shape"]:
        """New tokens where the mask is true, and all others as they are; of another class, an edit."""
        if tokens.shape[1:] != self.token_shape:
            raise GeneratorError(
                f"tokens must have shape {_shape(self.token_shape)} an image, got "
                f"{_shape(tokens.shape[1:])}: were they made by another tokenizer, or of other images?"
            )
        if mask.shape != tokens.shape[:3]:
            rule = f"one value for each place of {_shape(tokens.shape[:3])} tokens"
            raise GeneratorError(f"mask must have {rule}, got shape {_shape(mask.shape)}.")
        hidden = mask.reshape(*mask.shape, *[1] * (tokens.ndim - 3)).to(tokens.device)
        return self._fill(tokens.masked_fill(hidden, self.transformer.mask_token), classes, sampling, seed)

    @torch.no_grad()
    def _fill(self, tokens: Tensor, classes: Tensor, sampling: Sampling, seed: int) -> Tensor:
        device = self.transformer.positions.device
        self.require_classes(classes.tolist())
        with in_eval_mode(self.transformer):
            flat = sample_tokens(
                self.transformer,
                tokens.to(device).flatten(1),
                classes.to(device),
                sampling,
                mask_token=self.transformer.mask_token,
                null_class=self.transformer.null_class,
                grid=self.token_shape,
                generator=torch.Generator(device).manual_seed(seed),
            )
        return flat.view(tokens.shape)

    def fingerprint(self) -> str:
        """sha256 (hex) of settings, weights and tokenizer: equal for generators that draw the same."""
        digest = hashlib.sha256(json.dumps(self.settings, sort_keys=True).encode())
        for name, tensor in sorted(self.transformer.state_dict().items()):
            digest.update(json.dumps([name, str(tensor.dtype), tensor.shape]).encode())
            digest.update(tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
        return digest.hexdigest()

    def require_classes(self, classes: Sequence[int]) -> None:
        """Refuse numbers of classes that the generator does not have."""
        outside = [number for number in classes if not 0 <= number < len(self.classes)]
        if outside:
            raise GeneratorError(
                f"class {outside[0]} is not among 0..{len(self.classes) - 1}, "
                f"those of the images that the generator was trained on."
            )

    @classmethod
    def from_pretrained(  # type: ignore[override]  # settings come from the file alone
        cls,
        pretrained_model_name_or_path: str | Path,
        *,
        map_location: str | torch.device = "cpu",
        **options: Unpack[HubOptions],
    ) -> "MaskGIT":
        """The generator of a directory, or of owner/name on the Hugging Face Hub; in eval mode.

        map_location: the device.
        """
        source = pretrained_model_name_or_path
        weights, config = (find_file(source, name, options) for name in (WEIGHTS, CONFIG))
        settings = _read_settings(config)
        parts = (find_file(source, f"{COPY}/{name}", options) for name in (CONFIG, WEIGHTS))
        tokenizer = Tokenizer.from_files(*parts)
        if tokenizer.fingerprint() != settings.fingerprint:
            made, given = settings.fingerprint[:12], tokenizer.fingerprint()[:12]
            raise PretrainedError(
                f"{source} was trained on tokens of tokenizer {made}, and its {COPY}/ holds {given}: "
                "copy the directory again, all of it."
            )
        return cls._of(tokenizer, settings, weights).to(map_location)

    @classmethod
    def _of(cls, tokenizer: Tokenizer, settings: _Settings, weights: Path) -> "MaskGIT":
        build = partial(
            cls,
            tokenizer,
            image_size=settings.image_size,
            classes=settings.classes,
            transformer=settings.transformer,
        )
        # The random start is about to be overwritten: the caller's random numbers stay as they were.
        try:
            with torch.random.fork_rng(devices=[]):
                require_weights_of(lambda: build().transformer, weights)
                maskgit = build()
        except (PretrainedError, GeneratorError):
            raise
        except (TypeError, ValueError, RuntimeError, OverflowError) as error:
            reason = " ".join(str(error).split())
            raise PretrainedError(
                f"{weights.parent / CONFIG} describes no generator: {reason:.400}"
            ) from error
        load_weights(maskgit.transformer, weights)
        return maskgit.eval()

    def _save_pretrained(self, save_directory: Path) -> None:
        require_room_for_copy(self.tokenizer, save_directory)
        tensors = {name: tensor.contiguous() for name, tensor in self.transformer.state_dict().items()}
        replace_file(save_directory / WEIGHTS, save(tensors))
        leave_copy(self.tokenizer, save_directory)

    def generate_model_card(self, *args: Any, **kwargs: Any) -> ModelCard:
        return super().generate_model_card(
            *args,
            size=self.image_size,
            classes=len(self.classes),
            shape=_shape(self.token_shape),
            configuration=json.dumps(self.settings, indent=2, sort_keys=True),
            **kwargs,
        )


def _read_settings(file: Path) -> _Settings:
    try:
        return from_json(_Settings, json.loads(file.read_text(encoding="utf-8")))
    except (TypeError, ValueError, RecursionError) as error:
        raise PretrainedError(f"{file} describes no generator that this lgq knows: {error!s:.400}") from error


def _shape(sizes: Sequence[int]) -> str:
    return " x ".join(map(str, sizes))
