"""A training step of a tokenizer: how fast, beside the plain model, and where its time goes.

Contestants train in turns, some steps at a time, in one process:

    plain         the same model as one would first write it: float32, channels first, n x k quantizer
    float32       the run in float32 with channels last, on one batch that is there already
    cached        the run as it is set, on one batch that is there already
    with data     the run as it is set, reading and decoding its images
"""

import statistics
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator  # type: ignore[import-untyped]
from jaxtyping import Float
from torch import Tensor, nn

from lgq.bench.contestants import DENSE
from lgq.bench.stopwatch import PARTS, timed_by_part
from lgq.bench.timing import BenchmarkError, milliseconds
from lgq.checks import require_at_least
from lgq.data import ImageDataset, open_dataset
from lgq.runs import named_run
from lgq.tokenizer import Tokenizer
from lgq.training.settings import Precision, TokenizerRun
from lgq.training.tokenizer_trainer import TokenizerTraining
from lgq.training.trainer import prepare_accelerator

Step = Callable[[int], object]

CONTESTANTS = 4
_BATCHES_AHEAD = 8
"""More than the loader keeps ready: these are not timed, as they were decoded in others' turns."""


@dataclass(frozen=True, kw_only=True)
class TrainBenchmark:
    """What to measure."""

    name: str = "pocket-lgq"
    """A named run."""
    data: str = "sample"
    """Images: a folder, a shard pattern such as train-{000..005}.tar, or `sample`."""
    batch_size: int | None = None
    """Images a step; None takes the run's."""
    precision: Precision | None = None
    """Of the run; None takes its own."""
    steps: int = 10
    """Steps of a turn."""
    rounds: int = 5
    """Turns of each contestant, of which the median counts."""


@dataclass(frozen=True, kw_only=True)
class TrainRow:
    contestant: str
    images_per_second: float
    over_plain: float
    """Its rate over the plain model's: the median over the rounds."""
    over_cached: float
    """Its rate over that of the run on a cached batch, likewise."""
    shares: dict[str, float] | None
    """Share of each part in a step, forward and backward; None of the plain model."""


def run(settings: TrainBenchmark) -> Iterator[TrainRow]:
    require_at_least(1, steps=settings.steps, rounds=settings.rounds)
    data, chosen = open_dataset(settings.data), _run_to_measure(settings)
    with tempfile.TemporaryDirectory() as out:
        accelerator = prepare_accelerator()
        device, field = accelerator.device, _field(chosen, data, Path(out), accelerator)
        rounds = [_round(field, chosen, settings.steps, device) for _ in range(settings.rounds)]
        for name, (_, training) in field.items():
            rates = [rate[name] for rate in rounds]
            yield TrainRow(
                contestant=name,
                images_per_second=statistics.median(rates),
                over_plain=_ratio(rounds, name, "plain"),
                over_cached=_ratio(rounds, name, "cached"),
                shares=None if training is None else _shares(training, settings.steps),
            )


def _run_to_measure(settings: TrainBenchmark) -> TokenizerRun:
    given: dict[str, Any] = {"batch_size": settings.batch_size, "precision": settings.precision}
    run = named_run(settings.name)
    if run.loss.gan or run.loss.lpips:
        raise BenchmarkError(
            f"the plain model has no LPIPS and no GAN, which {settings.name} has: take a pocket run."
        )
    return replace(run, **{name: value for name, value in given.items() if value is not None})


def _field(
    run: TokenizerRun, data: ImageDataset, out: Path, accelerator: Accelerator
) -> dict[str, tuple[Step, TokenizerTraining | None]]:
    float32 = replace(run, precision="float32", channels_last=True)
    cached = OnOneBatch(run, data, data, out, accelerator)
    trainings = {
        "float32": OnOneBatch(float32, data, data, out, accelerator),
        "cached": cached,
        "with data": TokenizerTraining(run, data, data, out, accelerator),
    }
    plain = plain_step(run, cached.images())
    return {"plain": (plain, None)} | {name: (it.train_step, it) for name, it in trainings.items()}


class OnOneBatch(TokenizerTraining):
    """Trains on its first batch over and over."""

    _images: Tensor | None = None

    def images(self) -> Float[Tensor, "b 3 s s"]:
        if self._images is None:
            self._images = super()._next_images()
            self._batches = None  # ends the worker, which would decode for nobody
        return self._images

    def _next_images(self) -> Float[Tensor, "b 3 s s"]:
        return self.images()


def plain_step(run: TokenizerRun, images: Float[Tensor, "b 3 s s"]) -> Step:
    """A step of the plain model: l1 and the quantizer's loss, AdamW."""
    torch.manual_seed(run.seed)
    tokenizer = Tokenizer(run.backbone, run.quantizer, run.codebook_size).to(images.device)
    quantizer: nn.Module = tokenizer.quantizer
    if run.quantizer in DENSE:
        channels = run.backbone.latent_channels
        quantizer = OnRows(DENSE[run.quantizer](channels, run.codebook_size)).to(images.device)
    learned = [*tokenizer.encoder.parameters(), *quantizer.parameters(), *tokenizer.decoder.parameters()]
    optimizer = torch.optim.AdamW(learned, lr=run.learning_rate)
    images = images.contiguous()

    def step(_: int) -> Tensor:
        quantized, _indices, quantizer_loss = quantizer(tokenizer.encoder(images))
        loss = quantizer_loss + (tokenizer.decoder(quantized) - images).abs().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


class OnRows(nn.Module):
    """The plain formulas take one vector a row."""

    def __init__(self, formula: nn.Module):
        super().__init__()
        self.formula = formula

    def forward(self, z: Float[Tensor, "b c h w"]) -> tuple[Tensor, Tensor, Tensor]:
        rows = z.movedim(1, -1)
        quantized, indices, loss = self.formula(rows.flatten(0, 2))
        return quantized.view(rows.shape).movedim(-1, 1).contiguous(), indices, loss


def _round(
    field: dict[str, tuple[Step, TokenizerTraining | None]],
    run: TokenizerRun,
    steps: int,
    device: torch.device,
) -> dict[str, float]:
    """Images a second of each contestant, one after the other."""
    rates = {}
    for name, (step, _) in field.items():
        for i in range(_BATCHES_AHEAD if name == "with data" else 1):
            step(i)
        seconds = milliseconds(partial(_take, step, steps), device) / 1e3
        rates[name] = run.batch_size * run.accumulate * steps / seconds
    return rates


def _take(step: Step, steps: int) -> None:
    for i in range(steps):
        step(i)


def _ratio(rounds: list[dict[str, float]], name: str, reference: str) -> float:
    return statistics.median(rates[name] / rates[reference] for rates in rounds)


def _shares(training: TokenizerTraining, steps: int) -> dict[str, float]:
    for step in range(_BATCHES_AHEAD):
        training.train_step(step)
    seconds = timed_by_part(training, steps)
    return {part: seconds[part] / sum(seconds.values()) for part in PARTS}
