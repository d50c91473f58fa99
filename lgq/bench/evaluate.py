"""An evaluation beside its network passes, and the Fréchet distance beside scipy's, in turns."""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from statistics import median

import torch
from jaxtyping import Float
from torch import Tensor

from lgq.bench.measure import Call, milliseconds
from lgq.checks import require_at_least
from lgq.data import ImageDataset, ImageLoader, LoaderSettings, open_dataset
from lgq.data.images import random_subset
from lgq.distributed import resolve_device
from lgq.errors import LGQWarning
from lgq.metrics.fid import FeatureStatistics, Gaussian
from lgq.metrics.metric_networks import MetricNetworks
from lgq.metrics.quality import evaluate_tokenizer, reconstruct_with
from lgq.models.inception import InceptionV3
from lgq.models.lpips import LPIPS
from lgq.runs import named_run
from lgq.tokenizer import Tokenizer

_IMAGES_PER_FEATURE = {"Fréchet distance, full rank": 2.0, "Fréchet distance, half rank": 0.5}


@dataclass(frozen=True, kw_only=True)
class EvaluateBenchmark:
    """What to measure."""

    name: str = "pocket-lgq"
    """Named run whose untrained tokenizer is evaluated."""
    data: str = "sample"
    """Images: a folder, a shard pattern such as val-{000..001}.tar, or `sample`."""
    images: int = 128
    """Number of images, chosen at random."""
    batch_size: int = 32
    """Images per batch."""
    rounds: int = 3
    """Turns of each side, of which the median counts."""
    features: int = 2048
    """Features per image in the Fréchet distance."""
    device: str = "auto"
    """Where the networks run: auto (CUDA, else MPS, else the CPU), cpu, cuda, cuda:N or mps; the Fréchet
    distance runs on the CPU."""


@dataclass(frozen=True, kw_only=True)
class EvaluateRow:
    name: str
    reference: str
    """What it is compared with."""
    seconds: float
    reference_seconds: float
    ratio: float
    """Time over that of the reference, median over the rounds."""
    difference: float | None = None
    """Relative difference of the two distances."""


def plan(settings: EvaluateBenchmark) -> tuple[str, ...]:
    return ("evaluation", *_IMAGES_PER_FEATURE)


def run(settings: EvaluateBenchmark) -> Iterator[EvaluateRow]:
    require_at_least(1, images=settings.images, batch_size=settings.batch_size, rounds=settings.rounds)
    require_at_least(2, features=settings.features)
    device = resolve_device(settings.device)
    for name in plan(settings):
        yield (_evaluation_row if name == "evaluation" else _frechet_row)(name, settings, device)


def _evaluation_row(name: str, settings: EvaluateBenchmark, device: torch.device) -> EvaluateRow:
    run = named_run(settings.name)
    data = random_subset(open_dataset(settings.data), settings.images)
    torch.manual_seed(run.seed)
    tokenizer = Tokenizer(run.backbone, run.quantizer, run.codebook_size).eval().to(device)
    available = MetricNetworks.available(device)
    # Random weights where the published ones are missing: the time does not depend on them.
    lpips, inception = available.lpips or LPIPS().to(device), available.inception or InceptionV3().to(device)

    def evaluation(images: ImageDataset) -> object:
        # An FID of few images means little, and takes as long.
        with warnings.catch_warnings(action="ignore", category=LGQWarning):
            return evaluate_tokenizer(
                tokenizer,
                images,
                MetricNetworks(lpips, inception),
                image_size=run.image_size,
                batch_size=settings.batch_size,
                # Cached features would spare half of the network passes from the second round on.
                use_cache=False,
            )

    loading = LoaderSettings(image_size=run.image_size, batch_size=settings.batch_size)
    batches = [batch.images.to(device) for batch in ImageLoader(data, loading).one_pass()]
    evaluation(random_subset(data, 2))  # imports modules, and creates the buffers of libraries
    networks = networks_alone(tokenizer, lpips, inception, batches)
    return _in_turns(name, lambda: evaluation(data), "the networks alone", networks, settings.rounds, device)


def networks_alone(
    tokenizer: Tokenizer, lpips: LPIPS, inception: InceptionV3, batches: list[Float[Tensor, "b 3 s s"]]
) -> Call:
    """Every forward pass that an evaluation needs, and nothing else."""
    reconstruct = reconstruct_with(tokenizer)

    @torch.no_grad()
    def forward() -> None:
        for images in batches:
            reconstructions, _ = reconstruct(images)
            lpips(images, reconstructions)
            inception(images)
            inception(reconstructions)

    return forward


def _frechet_row(name: str, settings: EvaluateBenchmark, device: torch.device) -> EvaluateRow:
    size, gaussians = settings.features, []
    images, generator = int(size * _IMAGES_PER_FEATURE[name]) + 1, torch.Generator().manual_seed(0)
    for _ in range(2):
        # Like the features of Inception: correlated, of decaying size, clipped at zero.
        mixing = torch.randn(size, size, generator=generator, dtype=torch.float64)
        z = torch.randn(images, size, generator=generator, dtype=torch.float64)
        statistics = FeatureStatistics.empty(size)
        statistics.update((z / torch.arange(1, size + 1) ** 0.7 @ mixing + 0.3).relu())
        gaussians.append(statistics.gaussian())
    a, b = gaussians
    ours, scipy = (lambda: a.distance(b)), (lambda: distance_by_sqrtm(a, b))
    row = _in_turns(name, ours, "scipy.linalg.sqrtm", scipy, settings.rounds, device)
    return replace(row, difference=abs(ours() / scipy() - 1))


def distance_by_sqrtm(a: Gaussian, b: Gaussian) -> float:
    """The Fréchet distance as it is usually computed."""
    from scipy.linalg import sqrtm  # type: ignore[import-untyped]

    root = torch.from_numpy(sqrtm((a.covariance @ b.covariance).numpy()).real)
    spread = (a.covariance + b.covariance - 2 * root).trace()
    return float((a.mean - b.mean).square().sum() + spread)


def _in_turns(
    name: str, ours: Call, reference: str, theirs: Call, rounds: int, device: torch.device
) -> EvaluateRow:
    times = [(milliseconds(ours, device) / 1e3, milliseconds(theirs, device) / 1e3) for _ in range(rounds)]
    seconds, reference_seconds = map(median, zip(*times, strict=True))
    ratio = median(own / their for own, their in times)
    return EvaluateRow(
        name=name, reference=reference, seconds=seconds, reference_seconds=reference_seconds, ratio=ratio
    )
