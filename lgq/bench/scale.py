"""From this machine to many: what was measured here, what was counted, and a forecast for n GPUs.

The forecast (`lgq.bench.scale_model`) takes its work from counts of the ImageNet run, its reading from the
decoder of this machine, and its cluster from the settings. Steps on one and on two processes here are
fitted by

    step = contention * (fixed + batch * image) + exchange

in time of the processor. That tries the part of the formula which computes; none of the rest has met a GPU.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import fmean, median
from typing import Any

from lgq.bench.scale_counts import Counts, counts_of, generator_operations
from lgq.bench.scale_local import Local, measure_local
from lgq.bench.scale_model import (
    Cluster,
    Encoding,
    Forecast,
    Images,
    Training,
    encoding_forecast,
    ring_bytes,
    training_forecast,
)
from lgq.bench.scale_turns import PROCESSES, Point, Turns, measure_turns
from lgq.checks import require_at_least
from lgq.runs import named_run

IMAGENET_IMAGES, IMAGENET_BYTES = 1_281_167, 147_897_477_120
"""Of the training set of ImageNet-1k, and of the archive that it comes in."""
PAPER_PROCESSES = 4
"""Of the paper's run."""
FORECASTS = ("training", "paper", "slow", "encoding")
STAGES = 4
"""That `run` reports on."""
AGREEMENTS = 3
"""Sums over the processes' CPUs that the training loop makes in a step."""


@dataclass(frozen=True, kw_only=True)
class ScaleBenchmark:
    """What to measure, and what to forecast for."""

    name: str = "pocket-lgq"
    """The run that is measured here."""
    batch_sizes: tuple[int, ...] = (4, 8, 16)
    """Images a process, of the steps that are measured."""
    steps: int = 2
    """Steps of a turn."""
    rounds: int = 4
    """Turns of each kind, of which the best counts."""
    images: int = 64
    """Images to decode and to encode."""
    forecast: str = "imagenet256-lgq"
    """The run that is forecast; its tokenizer encodes."""
    epochs: int = 50
    """Of ImageNet-1k."""
    encoded_images: int = 1_000_000_000
    """Of the size of ImageNet's."""
    shard_size: int = 4096
    """Of their tokens."""
    gpus: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
    """Numbers to forecast for."""
    cluster: Cluster = field(default_factory=Cluster)
    slow_network: float = 1.25e9
    """For comparison, bytes a second that a node sends to others: Ethernet of 10 Gbit/s."""

    def __post_init__(self) -> None:
        require_at_least(1, steps=self.steps, rounds=self.rounds, images=self.images, epochs=self.epochs)
        require_at_least(1, encoded_images=self.encoded_images, shard_size=self.shard_size)
        if len(set(self.batch_sizes)) < 2 or min(self.batch_sizes) < 1:
            raise ValueError(f"batch_sizes must be two or more, each from 1 on, got {self.batch_sizes}.")
        if not self.gpus or min(self.gpus) < 1:
            raise ValueError(f"gpus must be numbers from 1 on, got {self.gpus}.")


@dataclass(frozen=True, kw_only=True)
class Fit:
    """Of the formula to the measured steps; all in seconds but the first."""

    contention: float
    """How much slower a process is beside another one."""
    fixed: float
    image: float
    exchange: float
    """Work of summing gradients: hidden or not, time of the processor does not tell."""

    def seconds(self, point: Point) -> float:
        alone = self.fixed + point.batch_size * self.image
        if point.turn == "alone":
            return alone
        return self.contention * alone + (self.exchange if point.turn == "together" else 0.0)


@dataclass(frozen=True, kw_only=True)
class Scale:
    """All that the command finds."""

    local: Local
    turns: Turns
    fit: Fit
    counts: Counts
    generator: tuple[float, float]
    """Operations of an image in the generator of the same scale, forward and backward."""
    training: list[Forecast]
    """The global batch grows with the GPUs."""
    paper: list[Forecast]
    """The global batch is the paper's: 32 images."""
    slow: list[Forecast]
    """The same, with the slow network between nodes."""
    encoding: list[Forecast]

    def record(self) -> dict[str, Any]:
        """As JSON."""
        plain = asdict(self)
        for name in FORECASTS:
            rows: list[Forecast] = getattr(self, name)
            derived = ("seconds", "efficiency", "bound")
            plain[name] = [asdict(row) | {each: getattr(row, each) for each in derived} for row in rows]
        plain["turns"]["points"] = [
            asdict(point) | {"fitted": self.fit.seconds(point)} for point in self.turns.points
        ]
        plain["turns"]["ring_bytes"] = ring_bytes(self.turns.summed_bytes, PROCESSES)
        return plain


def run(settings: ScaleBenchmark, on_stage: Callable[[int, int], None] = lambda done, all: None) -> Scale:
    how = {"rounds": settings.rounds}
    here = named_run(settings.name)
    local = measure_local(here, images=settings.images, **how)
    on_stage(1, STAGES)
    turns = measure_turns(here, settings.batch_sizes, steps=settings.steps, **how)
    on_stage(2, STAGES)
    chosen = named_run(settings.forecast)
    counts = counts_of(chosen)
    on_stage(3, STAGES)
    scale, tokens = settings.forecast.partition("-")[0], (chosen.image_size // chosen.backbone.factor) ** 2
    generator = generator_operations(scale, codes=chosen.codebook_size, tokens=tokens)
    on_stage(4, STAGES)
    return Scale(
        local=local,
        turns=turns,
        fit=fit(turns.points),
        counts=counts,
        generator=generator,
        **forecasts(settings, counts, local.decoded),
    )


def fit(points: Sequence[Point]) -> Fit:
    """Least squares through the steps of one process alone; medians over batch sizes of the rest."""
    times = {(point.turn, point.batch_size): point.seconds for point in points}
    sizes = sorted({point.batch_size for point in points})
    alone = [times["alone", size] for size in sizes]
    centre = fmean(sizes)
    spread = sum((size - centre) ** 2 for size in sizes)
    image = sum((size - centre) * seconds for size, seconds in zip(sizes, alone, strict=True)) / spread
    return Fit(
        contention=median(times["beside", size] / times["alone", size] for size in sizes),
        fixed=fmean(alone) - image * centre,
        image=image,
        exchange=max(0.0, median(times["together", size] - times["beside", size] for size in sizes)),
    )


def forecasts(settings: ScaleBenchmark, counts: Counts, decoded: float) -> dict[str, list[Forecast]]:
    """decoded: images a second of a worker."""
    fast, chosen = settings.cluster, named_run(settings.forecast)
    slow = replace(fast, network=settings.slow_network)
    shared = PAPER_PROCESSES * chosen.batch_size

    def training(gpus: int, batch_size: int, cluster: Cluster) -> Forecast:
        work = training_work(settings, counts, decoded, batch_size=batch_size)
        return training_forecast(work, gpus, cluster)

    divided = {n: shared // n for n in settings.gpus if shared % n == 0}
    encoding = encoding_work(settings, counts, decoded)
    return {
        "training": [training(n, chosen.batch_size, fast) for n in settings.gpus],
        "paper": [training(n, size, fast) for n, size in divided.items()],
        "slow": [training(n, size, slow) for n, size in divided.items()],
        "encoding": [encoding_forecast(encoding, n, fast) for n in settings.gpus],
    }


def training_work(settings: ScaleBenchmark, counts: Counts, decoded: float, *, batch_size: int) -> Training:
    images = settings.epochs * IMAGENET_IMAGES
    return Training(
        images=Images(count=images, bytes=IMAGENET_BYTES / IMAGENET_IMAGES, decoded=decoded),
        batch_size=batch_size,
        forward=counts.forward,
        backward=counts.backward,
        gradients=counts.gradients,
        late_gradients=counts.late_gradients,
        late_sums=counts.late_sums,
        agreements=AGREEMENTS,
        checkpoint=counts.checkpoint,
        checkpoint_every=named_run(settings.forecast).loop.checkpoint_every,
    )


def encoding_work(settings: ScaleBenchmark, counts: Counts, decoded: float) -> Encoding:
    each = IMAGENET_BYTES / IMAGENET_IMAGES
    return Encoding(
        images=Images(count=settings.encoded_images, bytes=each, decoded=decoded),
        forward=counts.encoder,
        shard_size=settings.shard_size,
        tokens=counts.tokens,
    )
