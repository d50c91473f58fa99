"""Drawing images beside the network passes that it cannot do without, and where its time goes.

Ways to draw, each timed in turns with the forwards to compare it with, in one process:

    plain       the sampler as it is set by default: codes by their probability, places by confidence
    guided      the same with guidance, which takes a forward of a batch twice as large
    halton      places on Halton's sequence: each step asks for those alone that it sets
    top-k       codes among the likeliest alone
    top-p       codes among the likeliest that reach a probability together

b = images, n = tokens of an image, m = places that are asked for, k = codes. The weights
are random: the time hardly depends on them.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from statistics import median
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from lgq.bench.timing import milliseconds, require_measurable
from lgq.checks import require_at_least
from lgq.maskgit import MaskGIT
from lgq.models.sampling import Predict, Sampling, sample_tokens
from lgq.models.transformer import MaskedTransformer
from lgq.runs import named_generator, named_run
from lgq.tokenizer import Tokenizer

_CLASSES = 1000


@dataclass(frozen=True, kw_only=True)
class SampleBenchmark:
    """What to measure."""

    name: str = "pocket"
    """A named generator, on the tokens of the LGQ tokenizer of the same scale; both as they start."""
    batch_size: int = 32
    """Images at a time."""
    steps: int = 11
    """Of the sampler."""
    rounds: int = 3
    """Batches of each way to draw, of which the median counts."""
    device: str = "cpu"
    """`cpu` or `cuda`."""


@dataclass(frozen=True, kw_only=True)
class SampleRow:
    sampling: str
    images_per_second: float
    """From classes to pixels."""
    forward_ms: float
    """Of a batch, in the transformer."""
    sampling_ms: float
    """In all that is neither transformer nor decoder."""
    decoding_ms: float
    """From tokens to pixels."""
    over_full_forwards: float
    """Time to tokens, over that of as many forwards that ask for every place."""
    over_own_forwards: float
    """The same, over that of the forwards which it makes, alone."""
    overhead: float
    """sampling_ms over that of transformer and decoder."""


def plan(settings: SampleBenchmark) -> dict[str, Sampling]:
    """The rows, by name."""
    plain = Sampling(steps=settings.steps)
    return {
        "plain": plain,
        "guided": replace(plain, guidance=2.0),
        "halton": replace(plain, order="halton"),
        "top-k": replace(plain, top_k=100),
        "top-p": replace(plain, top_p=0.9),
    }


def run(settings: SampleBenchmark) -> Iterator[SampleRow]:
    require_at_least(1, batch_size=settings.batch_size, rounds=settings.rounds)
    require_measurable((_CLASSES,), settings.device)
    device = torch.device(settings.device)
    maskgit = random_generator(settings.name).to(device)
    classes = torch.arange(settings.batch_size, device=device) % _CLASSES
    for name, sampling in plan(settings).items():
        measure(maskgit, classes, replace(sampling, steps=1))  # the libraries' own buffers
        times = [measure(maskgit, classes, sampling) for _ in range(settings.rounds)]
        yield _row(name, times, len(classes))


def random_generator(name: str) -> MaskGIT:
    """A named generator with its named tokenizer, as they start."""
    chosen, beside = named_generator(name), named_run(f"{name}-lgq")
    torch.manual_seed(chosen.seed)
    tokenizer = Tokenizer(beside.backbone, beside.quantizer, beside.codebook_size)
    names = tuple(map(str, range(_CLASSES)))
    size, transformer = beside.image_size, chosen.transformer
    return MaskGIT(tokenizer, image_size=size, classes=names, transformer=transformer).eval()


class Times(NamedTuple):
    """Milliseconds of a batch."""

    forward: float
    """In the transformer."""
    full: float
    """In forwards beside these that ask for every place."""
    own: float
    """In forwards beside these that ask for the same."""
    sampling: float
    decoding: float

    @property
    def to_tokens(self) -> float:
        return self.forward + self.sampling

    @property
    def to_pixels(self) -> float:
        return self.to_tokens + self.decoding


class Turns:
    """The transformer under a clock: after each of its forwards, those to compare it with take their turn.

    So close to each other, all meet the same noise.
    """

    def __init__(self, transformer: MaskedTransformer):
        self.transformer, self.device = transformer, transformer.positions.device
        self.forward = self.full = self.own = 0.0

    def __call__(
        self, tokens: Int64[Tensor, "b n"], classes: Int64[Tensor, " b"], where: Bool[Tensor, "b n"]
    ) -> Float[Tensor, "m k"]:
        logits, spent = self._timed(tokens, classes, where)
        self.forward += spent
        self.full += self._timed(tokens, classes, torch.ones_like(where))[1]
        self.own += self._timed(tokens, classes, where)[1]
        return logits

    def _timed(self, *inputs: Tensor) -> tuple[Tensor, float]:
        answers: list[Tensor] = []
        spent = milliseconds(lambda: answers.append(self.transformer(*inputs)), self.device)
        return answers[0], spent


def measure(maskgit: MaskGIT, classes: Int64[Tensor, " b"], sampling: Sampling) -> Times:
    """The times of one batch, drawn as `MaskGIT.generate` does."""
    turns, drawn = Turns(maskgit.transformer), list[Tensor]()
    total = milliseconds(lambda: drawn.append(_draw(maskgit, turns, classes, sampling)), classes.device)
    decoding = milliseconds(lambda: maskgit.tokenizer.decode(drawn[0]), classes.device)
    beside = turns.forward + turns.full + turns.own
    return Times(turns.forward, turns.full, turns.own, total - beside, decoding)


def _draw(
    maskgit: MaskGIT, predict: Predict, classes: Int64[Tensor, " b"], sampling: Sampling
) -> Int64[Tensor, "b *token_shape"]:
    transformer = maskgit.transformer
    blank = classes.new_full((len(classes), transformer.length), transformer.mask_token)
    tokens = sample_tokens(
        predict,
        blank,
        classes,
        sampling,
        mask_token=transformer.mask_token,
        null_class=transformer.null_class,
        grid=maskgit.token_shape,
        generator=torch.Generator(classes.device).manual_seed(0),
    )
    return tokens.view(-1, *maskgit.token_shape)


def _row(name: str, times: list[Times], images: int) -> SampleRow:
    return SampleRow(
        sampling=name,
        images_per_second=median(images / each.to_pixels * 1e3 for each in times),
        forward_ms=median(each.forward for each in times),
        sampling_ms=median(each.sampling for each in times),
        decoding_ms=median(each.decoding for each in times),
        over_full_forwards=median(each.to_tokens / each.full for each in times),
        over_own_forwards=median(each.to_tokens / each.own for each in times),
        overhead=median(each.sampling / (each.forward + each.decoding) for each in times),
    )
