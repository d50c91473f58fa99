"""Sampling images with MaskGIT beside its network passes alone, and where the time goes.

    plain       the default sampler: codes by their probability, positions by confidence
    guided      with guidance, whose forward passes take a batch twice as large
    halton      positions along the Halton sequence: a step predicts only the positions that it sets
    top-k       only the most likely codes
    top-p       only the most likely codes that together reach a probability

The weights are random: the time hardly depends on them.
b = images, n = tokens per image, m = predicted positions, k = codes.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from statistics import median
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from lgq.bench.measure import milliseconds, require_measurable
from lgq.checks import require_at_least
from lgq.maskgit import MaskGIT
from lgq.models.sampling import Sampling, sample_tokens
from lgq.runs import named_generator, named_run
from lgq.tokenizer import Tokenizer

_CLASSES = 1000


@dataclass(frozen=True, kw_only=True)
class SampleBenchmark:
    """What to measure."""

    name: str = "pocket"
    """Named generator, untrained, on the tokens of the LGQ tokenizer of the same scale."""
    batch_size: int = 32
    """Images per batch."""
    steps: int = 11
    """Steps of the sampler."""
    rounds: int = 3
    """Batches of each kind, of which the median counts."""
    device: str = "cpu"
    """`cpu` or `cuda`."""


@dataclass(frozen=True, kw_only=True)
class SampleRow:
    sampling: str
    images_per_second: float
    """Rate from classes to pixels."""
    forward_ms: float
    """Time per batch in the transformer."""
    sampling_ms: float
    """Time per batch outside transformer and decoder."""
    decoding_ms: float
    over_full_forwards: float
    """Time to tokens over that of as many forward passes that predict every position."""
    overhead: float
    """sampling_ms over the time of transformer and decoder."""


def plan(settings: SampleBenchmark) -> dict[str, Sampling]:
    """Samplers to measure, by name."""
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
    require_measurable(device=settings.device)
    device = torch.device(settings.device)
    maskgit = random_generator(settings.name).to(device)
    classes = torch.arange(settings.batch_size, device=device) % _CLASSES
    for name, sampling in plan(settings).items():
        measure(maskgit, classes, replace(sampling, steps=1))  # creates the buffers of libraries
        batches = [measure(maskgit, classes, sampling) for _ in range(settings.rounds)]
        rates = [len(classes) / (t.forward + t.sampling + t.decoding) * 1e3 for t in batches]
        yield SampleRow(
            sampling=name,
            images_per_second=median(rates),
            forward_ms=median(t.forward for t in batches),
            sampling_ms=median(t.sampling for t in batches),
            decoding_ms=median(t.decoding for t in batches),
            over_full_forwards=median((t.forward + t.sampling) / t.full for t in batches),
            overhead=median(t.sampling / (t.forward + t.decoding) for t in batches),
        )


def random_generator(name: str) -> MaskGIT:
    """The named generator and the LGQ tokenizer of its scale, untrained."""
    generator, run = named_generator(name), named_run(f"{name}-lgq")
    torch.manual_seed(generator.seed)
    tokenizer = Tokenizer(run.backbone, run.quantizer, run.codebook_size)
    classes, transformer = tuple(map(str, range(_CLASSES))), generator.transformer
    return MaskGIT(tokenizer, image_size=run.image_size, classes=classes, transformer=transformer).eval()


class Times(NamedTuple):
    """Milliseconds of a batch."""

    forward: float
    """Forward passes of the transformer."""
    full: float
    """As many forward passes that predict every position, each timed right after one of the others."""
    sampling: float
    decoding: float


def measure(maskgit: MaskGIT, classes: Int64[Tensor, " b"], sampling: Sampling) -> Times:
    """Times of one batch, sampled as `MaskGIT.sample` does."""
    transformer, device = maskgit.transformer, classes.device
    tokens = classes.new_full((len(classes), transformer.length), transformer.mask_token)
    forward = full = 0.0

    def predict(
        tokens: Int64[Tensor, "b n"], classes: Int64[Tensor, " b"], where: Bool[Tensor, "b n"]
    ) -> Float[Tensor, "m k"]:
        nonlocal forward, full
        logits: list[Tensor] = []
        forward += milliseconds(lambda: logits.append(transformer(tokens, classes, where)), device)
        full += milliseconds(lambda: transformer(tokens, classes, torch.ones_like(where)), device)
        return logits[0]

    def sample() -> None:
        nonlocal tokens
        tokens = sample_tokens(
            predict,
            tokens,
            classes,
            sampling,
            mask_token=transformer.mask_token,
            null_class=transformer.null_class,
            grid=maskgit.token_shape,
            generator=torch.Generator(device).manual_seed(0),
        )

    total = milliseconds(sample, device)
    decoding = milliseconds(lambda: maskgit.tokenizer.decode(tokens.view(-1, *maskgit.token_shape)), device)
    return Times(forward, full, total - forward - full, decoding)
