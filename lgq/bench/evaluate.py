"""An evaluation beside the network passes that it cannot do without, and its costly formulas beside others.

All pairs are timed in turns, in one process:

    evaluation           of a tokenizer; beside it, the forwards of all networks on batches that are there
    Fréchet distance     of two covariances; beside it, scipy.linalg.sqrtm of their product
    geometry             of a codebook: usage, pairs of codes, mutual information
"""

import importlib.util
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from lgq.bench.memory import peak_extra_bytes
from lgq.bench.timing import milliseconds, require_measurable
from lgq.checks import require_at_least
from lgq.data import ImageDataset, ImageLoader, LoaderSettings, open_dataset
from lgq.data.images import random_subset
from lgq.evaluation import evaluate_tokenizer
from lgq.metrics.fid import FeatureStatistics, Gaussian
from lgq.metrics.geometry import CodeGeometry
from lgq.metrics.metric_networks import MetricNetworks, judges_at_hand
from lgq.metrics.quality import through
from lgq.models.inception import InceptionV3
from lgq.models.lpips import LPIPS
from lgq.runs import named_run
from lgq.tokenizer import Tokenizer

Call = Callable[[], Any]

_IMAGES_PER_FEATURE = {"Fréchet distance, full rank": 2.0, "Fréchet distance, half rank": 0.5}
_GRID = (16, 16)
_GEOMETRY_BATCH = 32


@dataclass(frozen=True, kw_only=True)
class EvaluateBenchmark:
    """What to measure."""

    name: str = "pocket-lgq"
    """A named run, whose tokenizer is evaluated as it starts."""
    data: str = "sample"
    """Images: a folder, a shard pattern such as val-{000..001}.tar, or `sample`."""
    images: int = 128
    """Of these, chosen at random."""
    batch_size: int = 32
    """Images at a time."""
    rounds: int = 3
    """Turns of each contestant, of which the median counts."""
    features: int = 2048
    """Of the images whose Fréchet distance is taken."""
    codes: int = 16_384
    """Of the codebook whose geometry is taken."""
    geometry_images: int = 5000
    """Images for that, of 256 tokens each."""
    device: str = "cpu"
    """`cpu` or `cuda`, for the networks; the formulas are the CPU's."""


@dataclass(frozen=True, kw_only=True)
class EvaluateRow:
    what: str
    seconds: float
    beside: str | None = None
    """What it is compared with."""
    beside_seconds: float | None = None
    ratio: float | None = None
    """Its time over that of what is beside it: the median over the rounds."""
    difference: float | None = None
    """Of the two results, relative."""
    extra_bytes: int | None = None
    """Peak of the memory beyond what is there before."""


def plan() -> tuple[str, ...]:
    """The rows, by name; those that need scipy are absent without it."""
    has_scipy = importlib.util.find_spec("scipy") is not None
    return ("evaluation", *(_IMAGES_PER_FEATURE if has_scipy else ()), "geometry")


def run(settings: EvaluateBenchmark) -> Iterator[EvaluateRow]:
    require_at_least(1, images=settings.images, batch_size=settings.batch_size, rounds=settings.rounds)
    require_at_least(2, features=settings.features, geometry_images=settings.geometry_images)
    require_measurable((settings.codes,), settings.device)
    measures = {"evaluation": _evaluation_row, "geometry": _geometry_row}
    for what in plan():
        yield measures.get(what, _frechet_row)(what, settings)


def _evaluation_row(what: str, settings: EvaluateBenchmark) -> EvaluateRow:
    chosen, device = named_run(settings.name), torch.device(settings.device)
    data = random_subset(open_dataset(settings.data), settings.images)
    torch.manual_seed(chosen.seed)
    tokenizer = Tokenizer(chosen.backbone, chosen.quantizer, chosen.codebook_size).eval().to(device)
    lpips, inception = _networks(device)

    def evaluation(images: ImageDataset) -> Call:
        return lambda: evaluate_tokenizer(
            tokenizer,
            images,
            MetricNetworks(lpips, inception),
            image_size=chosen.image_size,
            batch_size=settings.batch_size,
            # Found features would spare it half of the network passes from the second round on.
            use_cache=False,
        )

    loading = LoaderSettings(image_size=chosen.image_size, batch_size=settings.batch_size)
    batches = [batch.images.to(device) for batch in ImageLoader(data, loading).one_pass()]
    evaluation(random_subset(data, 2))()  # imports, and the libraries' own buffers
    networks = networks_alone(tokenizer, lpips, inception, batches)
    return _in_turns(what, evaluation(data), "the networks alone", networks, settings)


def _networks(device: torch.device) -> tuple[LPIPS, InceptionV3]:
    """With random weights where the published ones are not here: the time does not depend on them."""
    found = judges_at_hand(device)
    return found.lpips or LPIPS().to(device), found.inception or InceptionV3().to(device)


def networks_alone(
    tokenizer: Tokenizer, lpips: LPIPS, inception: InceptionV3, batches: list[Float[Tensor, "b 3 s s"]]
) -> Call:
    """Every forward that an evaluation needs, and nothing else."""
    reconstruct = through(tokenizer)

    @torch.no_grad()
    def forward() -> None:
        for images in batches:
            reconstructions, _ = reconstruct(images)
            lpips(images, reconstructions)
            inception(images)
            inception(reconstructions)

    return forward


def _frechet_row(what: str, settings: EvaluateBenchmark) -> EvaluateRow:
    images = int(settings.features * _IMAGES_PER_FEATURE[what]) + 1
    a, b = (_gaussian(images, settings.features, seed) for seed in (1, 2))
    results: dict[str, float] = {}

    def ours() -> None:
        results["ours"] = a.distance(b)

    def by_scipy() -> None:
        results["scipy"] = distance_by_sqrtm(a, b)

    row = _in_turns(what, ours, "scipy.linalg.sqrtm", by_scipy, settings)
    return replace(row, difference=abs(results["ours"] / results["scipy"] - 1))


def _gaussian(images: int, features: int, seed: int) -> Gaussian:
    """Of features that are correlated, of decaying size, and clipped at zero, as those of Inception are."""
    generator = torch.Generator().manual_seed(seed)
    mixing = torch.randn(features, features, generator=generator, dtype=torch.float64)
    scales = torch.arange(1, features + 1, dtype=torch.float64) ** -0.7
    z = torch.randn(images, features, generator=generator, dtype=torch.float64)
    collected = FeatureStatistics.of(features)
    collected.update(((z * scales) @ mixing + 0.3).relu())
    return collected.gaussian()


def distance_by_sqrtm(a: Gaussian, b: Gaussian) -> float:
    """The Fréchet distance as it is usually computed."""
    from scipy.linalg import sqrtm  # type: ignore[import-untyped]

    root = torch.from_numpy(sqrtm((a.covariance @ b.covariance).numpy()).real)
    spread = (a.covariance + b.covariance - 2 * root).trace()
    return float((a.mean - b.mean).square().sum() + spread)


def _geometry_row(what: str, settings: EvaluateBenchmark) -> EvaluateRow:
    device, generator = torch.device("cpu"), torch.Generator().manual_seed(0)
    tokens = torch.randint(0, settings.codes, (settings.geometry_images, *_GRID), generator=generator)

    def geometry() -> dict[str, float]:
        collected = CodeGeometry.of(settings.codes, grid=_GRID)
        for batch in tokens.split(_GEOMETRY_BATCH):
            collected.update(batch)
        return collected.summary()

    times = [milliseconds(geometry, device) for _ in range(settings.rounds)]
    extra = peak_extra_bytes(geometry, device)
    return EvaluateRow(what=what, seconds=statistics.median(times) / 1e3, extra_bytes=extra)


def _in_turns(what: str, ours: Call, beside: str, other: Call, settings: EvaluateBenchmark) -> EvaluateRow:
    device = torch.device(settings.device)
    rounds = [(milliseconds(ours, device), milliseconds(other, device)) for _ in range(settings.rounds)]
    return EvaluateRow(
        what=what,
        seconds=statistics.median(mine for mine, _ in rounds) / 1e3,
        beside=beside,
        beside_seconds=statistics.median(theirs for _, theirs in rounds) / 1e3,
        ratio=statistics.median(mine / theirs for mine, theirs in rounds),
    )
