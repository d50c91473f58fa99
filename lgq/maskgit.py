"""A class-conditional image generator (MaskGIT, Chang et al. 2022) on the tokens of any tokenizer.

b = images, h w = tokens along the height and the width.

    maskgit = MaskGIT.from_pretrained("generator")               # a directory, or owner/name on the Hub
    images = maskgit.generate(["goldfish", 7, 7], Sampling(steps=11, guidance=2.0), seed=1)
    tokens = maskgit.inpaint(tokens, mask, classes)              # new ones where the mask is true

Images are RGB in [-1, 1].
"""

import difflib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import TypeAlias

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from lgq.checks import require_at_least
from lgq.config import to_json
from lgq.distributed import resolve_device
from lgq.errors import LGQError
from lgq.files import WeightsChoice
from lgq.hub import (
    CONFIG,
    TOKENIZER,
    WEIGHTS,
    HubModel,
    PretrainedError,
    build_pretrained,
    copy_tokenizer,
    published_weights,
    read_settings,
    require_room_for_copy,
)
from lgq.model_sources import require_kind
from lgq.models import in_eval_mode
from lgq.models.sampling import OnStep, Sampling, sample_tokens
from lgq.models.transformer import MaskedTransformer, TransformerSettings
from lgq.tokenizer import Tokenizer

ONE_CLASS = ("image",)
"""Classes of a generator that was trained on images without labels."""

Classes: TypeAlias = Int64[Tensor, " b"] | Sequence[int | str]
"""Classes of images: names, numbers or both, in a list, or numbers in a tensor."""

_PAPER, _DEFAULT = TransformerSettings(), Sampling()
_SUGGESTIONS, _NAMES_SHOWN = 3, 8


@dataclass(frozen=True, kw_only=True)
class _Settings:
    """Content of config.json."""

    image_size: int
    classes: tuple[str, ...]
    fingerprint: str
    transformer: TransformerSettings = field(default_factory=TransformerSettings)


class MaskGIT(HubModel, tags=["image-generation", "masked-image-modeling"]):
    """A transformer that predicts tokens, and the tokenizer that they belong to.

    tokenizer: is frozen, and stays in eval mode.
    image_size: side of the square images, a multiple of the tokenizer's factor.
    classes: name of each class; images without labels are one class.
    transformer: size of the transformer.

    All of these, with the tokenizer's fingerprint in its place, are `settings`, the content of config.json.
    The stages of a residual tokenizer are tokens like all others, side by side at each place.
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
            raise LGQError(f"`classes` must be a list of names, got one string: write ({classes!r},).")
        require_at_least(1, image_size=image_size, classes=len(classes))
        if image_size % tokenizer.factor:
            rule = f"a multiple of {tokenizer.factor}, the tokenizer's factor"
            raise LGQError(f"`image_size` must be {rule}, got {image_size}.")
        self.image_size, self.classes = image_size, tuple(classes)
        if tokenizer.scales:
            raise LGQError(
                "MaskGIT predicts tokens of one grid, not of `scales`, which need a next-scale generator; "
                "train a tokenizer without `scales`."
            )
        self.token_shape = tokenizer.token_shape(image_size)
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
        self.settings = self._hub_mixin_config = to_json(settings)

    def train(self, mode: bool = True) -> "MaskGIT":
        """Set the mode of the transformer; the tokenizer stays in eval mode."""
        super().train(mode)
        self.tokenizer.eval()
        return self

    def sample(
        self,
        classes: Classes,
        sampling: Sampling = _DEFAULT,
        *,
        seed: int = 0,
        on_step: OnStep | None = None,
    ) -> Int64[Tensor, "b *token_shape"]:
        """Draw the tokens of new images, one per class: the same for the same seed, classes and device.

        classes: names, numbers or both, in a list, or numbers in a tensor.
        seed: 0 or more; a CPU uses its lowest 32 bits.
        on_step: is called after each step with its number, the number of steps, all tokens of each image in a
            row (masked ones are `transformer.mask_token`), and the probability of those that it set.
        """
        numbers = self.class_numbers(classes)
        blank = torch.full((len(numbers), *self.token_shape), self.transformer.mask_token)
        return self._fill(blank, numbers, sampling, seed, on_step)

    def generate(
        self, classes: Classes, sampling: Sampling = _DEFAULT, *, seed: int = 0
    ) -> Float[Tensor, "b 3 {self.image_size} {self.image_size}"]:
        """Draw new images, one per class; the arguments are those of `sample`."""
        return self.tokenizer.decode(self.sample(classes, sampling, seed=seed))

    def inpaint(
        self,
        tokens: Int64[Tensor, "b *token_shape"],
        mask: Bool[Tensor, "b h w"],
        classes: Classes,
        sampling: Sampling = _DEFAULT,
        *,
        seed: int = 0,
        on_step: OnStep | None = None,
    ) -> Int64[Tensor, "b *token_shape"]:
        """Redraw the tokens where the mask is true; with another class than the image's, this edits it."""
        numbers = self.class_numbers(classes)
        if len(numbers) != len(tokens):
            raise LGQError(f"classes must be one per image, got {len(numbers)} for {len(tokens)} images.")
        if tokens.shape[1:] != self.token_shape:
            raise LGQError(
                f"tokens must have shape {_shape(self.token_shape)} per image, got "
                f"{_shape(tokens.shape[1:])}: were they made by another tokenizer, or from other images?"
            )
        if mask.shape != tokens.shape[:3]:
            rule = f"one value for each place of {_shape(tokens.shape[:3])} tokens"
            raise LGQError(f"mask must have {rule}, got shape {_shape(mask.shape)}.")
        hidden = mask.reshape(*mask.shape, *[1] * (tokens.ndim - 3)).to(tokens.device)
        blank = tokens.masked_fill(hidden, self.transformer.mask_token)
        return self._fill(blank, numbers, sampling, seed, on_step)

    @torch.no_grad()
    def _fill(
        self, tokens: Tensor, classes: list[int], sampling: Sampling, seed: int, on_step: OnStep | None
    ) -> Tensor:
        device = self.transformer.positions.device
        with in_eval_mode(self.transformer):
            flat = sample_tokens(
                self.transformer,
                tokens.to(device).flatten(1),
                torch.tensor(classes, dtype=torch.int64).to(device),
                sampling,
                mask_token=self.transformer.mask_token,
                null_class=self.transformer.null_class,
                grid=self.token_shape,
                generator=torch.Generator(device).manual_seed(seed),
                on_step=on_step,
            )
        return flat.view(tokens.shape)

    def class_numbers(self, classes: Classes) -> list[int]:
        """Return the numbers of classes that are given by name or number; others are an error.

        A word is a name before it is a number: folders may be called 0, 1, 10, 2.
        """
        if isinstance(classes, Tensor):
            classes = classes.tolist()
        elif isinstance(classes, str):
            classes = (classes,)
        numbers = {name: number for number, name in enumerate(self.classes)}
        return [numbers[x] if isinstance(x, str) and x in numbers else self._numbered(x) for x in classes]

    def _numbered(self, word: int | str) -> int:
        if isinstance(word, str) and not re.fullmatch(r"-?\d{1,9}", word, re.ASCII):
            similar = _similar(word, self.classes)
            hint = f"did you mean {similar}?" if similar else f"the names are {_first_of(self.classes)}."
            raise LGQError(f"the generator knows no class {word!r}: {hint}")
        if not 0 <= int(word) < len(self.classes):
            raise LGQError(
                f"class {word} is not among 0..{len(self.classes) - 1}, "
                f"the classes of the images that the generator was trained on."
            )
        return int(word)

    def _saved_network(self) -> nn.Module:
        return self.transformer

    @classmethod
    def _load(cls, find: Callable[[str], Path]) -> "MaskGIT":
        weights, config = find(WEIGHTS), find(CONFIG)
        settings = read_settings(_Settings, config)
        tokenizer = Tokenizer._load(lambda name: find(f"{TOKENIZER}/{name}"))
        if tokenizer.fingerprint() != settings.fingerprint:
            expected, actual = settings.fingerprint[:12], tokenizer.fingerprint()[:12]
            raise PretrainedError(
                f"{config.parent} was trained on tokens of tokenizer {expected}, and its {TOKENIZER}/ holds "
                f"{actual}: copy the directory again, all of it."
            )
        arguments = {name: getattr(settings, name) for name in ("image_size", "classes", "transformer")}
        return build_pretrained(lambda: cls(tokenizer, **arguments), config, weights)

    def _save_pretrained(self, save_directory: Path) -> None:
        require_room_for_copy(self.tokenizer, save_directory)
        super()._save_pretrained(save_directory)
        copy_tokenizer(self.tokenizer, save_directory)

    def _card(self) -> dict[str, str]:
        size = self.image_size
        return {
            "title": f"Image generator: MaskGIT, {size} x {size} pixels",
            "text": f"Draws images of {len(self.classes)} class(es) as {_shape(self.token_shape)} tokens, "
            f"and fills in parts of images. The tokenizer is in `{TOKENIZER}/`.",
            "example": "from lgq import MaskGIT\n\n"
            'maskgit = MaskGIT.from_pretrained("path/to/this/directory")  # or its owner/name on the Hub\n'
            f"images = maskgit.generate([{self.classes[0]!r}])  # (1, 3, {size}, {size}) in [-1, 1]",
        }


def load_generator(
    source: str | Path | MaskGIT,
    weights: WeightsChoice = "best",
    *,
    device: str | torch.device | None = None,
) -> MaskGIT:
    """Load the generator of a run directory, of a directory that `save_pretrained` wrote, or of the Hub.

    weights: of a run, those of the best validation or those of the last checkpoint.
    device: the words of `--device`, such as "auto" or "cuda"; None loads onto the CPU.

    A generator that is loaded already is returned as it is, on the device if one is given.
    """
    if isinstance(source, MaskGIT):
        return source if device is None else source.to(resolve_device(device))
    require_kind(source, "generator")
    own = resolve_device(device or "cpu")
    return MaskGIT.from_pretrained(published_weights(source, weights), map_location=own)


def _similar(word: str, names: Sequence[str]) -> str:
    """Return up to three names that begin with a word, hold it, or are spelled alike, whatever their case."""
    folded = word.casefold()
    begin = [name for name in names if folded and name.casefold().startswith(folded)]
    hold = [name for name in names if folded and folded in name.casefold()]
    by_case = {name.casefold(): name for name in names}
    alike = [by_case[name] for name in difflib.get_close_matches(folded, by_case, cutoff=0.5)]
    return " or ".join(map(repr, list(dict.fromkeys(begin + hold + alike))[:_SUGGESTIONS]))


def _first_of(names: Sequence[str]) -> str:
    more = f", ... ({len(names):,} in all)" if len(names) > _NAMES_SHOWN else ""
    return ", ".join(map(repr, names[:_NAMES_SHOWN])) + more


def _shape(sizes: Sequence[int]) -> str:
    return " x ".join(map(str, sizes))
