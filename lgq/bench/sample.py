"""Sampling images with MaskGIT beside its network passes alone, and where the time goes.

    plain       the default sampler: codes by their probability, positions by confidence
    guided      with guidance, whose forward passes take a batch twice as large
    halton      positions along the Halton sequence: a step predicts only the positions that it sets
    top-k       only the most likely codes
    top-p       only the most likely codes that together reach a probability

The weights are random: the time hardly depends on them.   b = images.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from statistics import median

import torch
from jaxtyping import Int64
from torch import Tensor

from lgq.bench.measure import milliseconds, now
from lgq.checks import require_at_least
from lgq.distributed import resolve_device
from lgq.maskgit import MaskGIT
from lgq.models.sampling import Sampling
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
    device: str = "auto"
    """Where to measure: auto (CUDA, else MPS, else the CPU), cpu, cuda, cuda:N or mps."""


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
    device = resolve_device(settings.device)
    maskgit = random_generator(settings.name).to(device)
    classes = torch.arange(settings.batch_size, device=device) % _CLASSES
    for name, sampling in plan(settings).items():
        measure(maskgit, classes, replace(sampling, steps=1))  # creates the buffers of libraries
        batches = [measure(maskgit, classes, sampling) for _ in range(settings.rounds)]
        yield SampleRow(sampling=name, **{part: median(b[part] for b in batches) for part in batches[0]})


def random_generator(name: str) -> MaskGIT:
    """The named generator and the LGQ tokenizer of its scale, untrained."""
    generator, run = named_generator(name), named_run(f"{name}-lgq")
    torch.manual_seed(generator.seed)
    tokenizer = Tokenizer(run.backbone, run.quantizer, run.codebook_size)
    classes, transformer = tuple(map(str, range(_CLASSES))), generator.transformer
    return MaskGIT(tokenizer, image_size=run.image_size, classes=classes, transformer=transformer).eval()


def measure(maskgit: MaskGIT, classes: Int64[Tensor, " b"], sampling: Sampling) -> dict[str, float]:
    """Sample one batch, and return the numbers of a `SampleRow`.

    Right after each forward pass, one that predicts every position is timed beside it.
    """
    transformer, device = maskgit.transformer, classes.device
    forward = full = started = 0.0
    batches: list[Tensor] = []

    def before(*_: object) -> None:
        nonlocal started
        started = now(device)

    def after(_module: object, inputs: tuple[Tensor, Tensor, Tensor], _output: object) -> None:
        nonlocal forward, full
        forward += (now(device) - started) * 1e3
        tokens, classes, where = inputs
        full += milliseconds(lambda: transformer.forward(tokens, classes, torch.ones_like(where)), device)

    hooks = (transformer.register_forward_pre_hook(before), transformer.register_forward_hook(after))
    total = milliseconds(lambda: batches.append(maskgit.sample(classes, sampling, seed=0)), device)
    decoding = milliseconds(lambda: maskgit.tokenizer.decode(batches[0]), device)
    for hook in hooks:
        hook.remove()
    choosing = total - forward - full
    return {
        "images_per_second": len(classes) / (forward + choosing + decoding) * 1e3,
        "forward_ms": forward,
        "sampling_ms": choosing,
        "decoding_ms": decoding,
        "over_full_forwards": (forward + choosing) / full,
        "overhead": choosing / (forward + decoding),
    }
