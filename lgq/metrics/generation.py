"""Quality of a generator: gFID, KID, precision, recall and Inception Score of generated images.

b = images of a batch, s = their side in pixels, p = images for the picture.

    networks = MetricNetworks.available(device, for_generation=True)
    reference = Reference.from_images(data, 256, networks.require_inception(), device)
    evaluation = evaluate_generation(generate, 1000, reference, networks, device=device)
    evaluation.metrics["gfid"], evaluation.std["gfid"], evaluation.absent

Image i has class i modulo the number of classes. Images are numbered and cut into batches, which processes
take in turn, and each batch has a seed of its own (`batch_seed`). So the images depend on the sampling seed
and the batch size, and not on the number of processes. Only features are kept.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean, stdev
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from lgq.checks import require_at_least
from lgq.distributed import broadcast_from_first, rank, sum_over_ranks, world_size
from lgq.errors import LGQError
from lgq.metrics.features import SAMPLE, FeatureSet, too_few_images
from lgq.metrics.fid import warn_of_few_images
from lgq.metrics.inception_score import InceptionScore
from lgq.metrics.metric_networks import CLASSIFIER_METRICS, GENERATION_FEATURE_METRICS, MetricNetworks
from lgq.metrics.quality import Images
from lgq.metrics.reference import Reference
from lgq.models.inception import CLASSES, FEATURES, InceptionV3
from lgq.progress import Progress, unwatched
from lgq.random import SAMPLING_BATCH, batch_seed

Generate = Callable[[Int64[Tensor, " b"], int], Images]
"""Function from classes and a seed to one image per class in [-1, 1]; same arguments, same images."""

PICTURES = 16
"""Number of images that are returned for a picture."""
SPLITS = 10
"""Number of splits of Inception Score."""


@dataclass(frozen=True, kw_only=True)
class GenerationEvaluation:
    """Results of `evaluate_generation`, over all processes."""

    metrics: dict[str, float]
    """gfid, kid, precision, recall and inception_score: means over the sampling seeds."""
    std: dict[str, float]
    """Sample standard deviations (divisor n - 1) over n seeds; empty for one seed."""
    seeds: list[dict[str, float]]
    """Metrics of each seed, with the `seed` itself."""
    images: int
    """Number of images generated with each seed."""
    batch_size: int
    classes: dict[str, int]
    """`number` of classes, and images of the rarest (`fewest`) and of the most frequent one (`most`)."""
    absent: dict[str, str]
    """Metrics that were not computed, each with the reason."""
    fid: dict[str, Any]
    """Conventions behind gfid, kid, precision and recall."""
    inception_score: dict[str, Any] | None
    """Conventions behind inception_score; None where it is absent."""
    pictures: Float[Tensor, "p 3 s s"]
    """First images of the first seed, in the order of their classes, on the CPU of every process."""

    def record(self) -> dict[str, Any]:
        """Return the part of a results record (`lgq.results`)."""
        return {name: value for name, value in vars(self).items() if name != "pictures"}


@torch.no_grad()
def evaluate_generation(
    generate: Generate,
    classes: int,
    reference: Reference,
    networks: MetricNetworks,
    *,
    samples: int = 50_000,
    seeds: Sequence[int] = (0, 1, 2, 3),
    batch_size: int = SAMPLING_BATCH,
    device: torch.device,
    on_progress: Progress = unwatched,
) -> GenerationEvaluation:
    """Generate `samples` images with each sampling seed and measure them; progress counts all seeds."""
    require_at_least(1, classes=classes)
    require_sample_plan(samples, seeds, batch_size)
    inception = networks.require_inception()
    reference.require_comparable(inception)
    results: list[dict[str, float]] = []
    pictures, global_batch = torch.empty(0), batch_size * world_size()
    for turn, seed in enumerate(seeds):
        accumulator = _SampleMetrics.empty(inception, networks.classifier, samples)
        for first in range(rank() * batch_size, samples, global_batch):
            numbers = torch.arange(first, min(first + batch_size, samples))
            images = generate((numbers % classes).to(device), batch_seed(seed, first))
            accumulator.update(images.to(device), numbers)
            done = min(first - rank() * batch_size + global_batch, samples)
            on_progress(turn * samples + done, len(seeds) * samples)
        results.append(accumulator.metrics(reference))
        pictures = pictures if turn else accumulator.pictures()
    compared = samples if reference.gaussian.count is None else min(samples, reference.gaussian.count)
    warn_of_few_images("gFID", compared, FEATURES)
    values = {name: [result[name] for result in results] for name in results[0]}
    score_conventions = None
    if networks.classifier is not None and "inception_score" in values:
        score_conventions = asdict(networks.classifier.convention) | {"splits": f"{SPLITS}, consecutive"}
    return GenerationEvaluation(
        metrics={name: fmean(by_seed) for name, by_seed in values.items()},
        std={name: stdev(by_seed) for name, by_seed in values.items()} if len(seeds) > 1 else {},
        seeds=[{"seed": seed} | result for seed, result in zip(seeds, results, strict=True)],
        images=samples,
        batch_size=batch_size,
        classes={"number": classes, "fewest": samples // classes, "most": -(-samples // classes)},
        absent=_absent(results[0], samples, reference, networks),
        fid=_fid_conventions(inception, reference, samples, image_size=pictures.shape[-1]),
        inception_score=score_conventions,
        pictures=pictures,
    )


def require_sample_plan(samples: int, seeds: Sequence[int], batch_size: int) -> None:
    """Check numbers that `evaluate_generation` needs, for callers with long work before it."""
    require_at_least(1, batch_size=batch_size)
    require_at_least(2, samples=samples)
    if not seeds or len(set(seeds)) < len(seeds):
        raise LGQError(f"`sampling_seeds` must be one or more different numbers, got {list(seeds)}.")


@dataclass
class _SampleMetrics:
    """Streaming metrics of the images of one sampling seed: `update` per batch, then `metrics`."""

    inception: InceptionV3
    classifier: InceptionV3 | None
    samples: int
    features: FeatureSet
    score: InceptionScore | None
    first_images: dict[int, Float[Tensor, "3 s s"]] = field(default_factory=dict)

    @classmethod
    def empty(cls, inception: InceptionV3, classifier: InceptionV3 | None, samples: int) -> "_SampleMetrics":
        features = FeatureSet.empty(FEATURES, sample=min(SAMPLE, samples))
        has_score = classifier is not None and samples >= SPLITS
        score = InceptionScore.empty(CLASSES, splits=SPLITS) if has_score else None
        return cls(inception, classifier, samples, features, score)

    def update(self, images: Images, numbers: Int64[Tensor, " b"]) -> None:
        features = self.inception(images)
        self.features.update(features, numbers)
        if self.classifier is not None and self.score is not None:
            if self.classifier is not self.inception:
                features = self.classifier(images)
            # Consecutive splits, as published: as classes take turns, every tenth image would be of every
            # tenth class, and the score of so few classes is lower.
            self.score.update(self.classifier.logits(features), numbers * SPLITS // self.samples)
        for number, image in zip(numbers.tolist(), images, strict=True):
            if number < PICTURES:
                self.first_images[number] = image.cpu().float()

    def metrics(self, reference: Reference) -> dict[str, float]:
        """Return the metrics of the images of all processes."""
        features = self.features.over_ranks()
        if reference.features is None:
            values = {"gfid": features.statistics.gaussian().distance(reference.gaussian)}
        else:
            distances = features.compare(reference.features)
            values = {"gfid" if name == "fid" else name: value for name, value in distances.items()}
        if self.score is not None:
            values["inception_score"] = self.score.over_ranks().compute()
        return values

    def pictures(self) -> Float[Tensor, "p 3 s s"]:
        """Return the first images of all processes, some of which may have generated none."""
        side = self.first_images[0].shape[-1] if rank() == 0 else 0
        side = int(broadcast_from_first(torch.tensor(side)))
        pictures = torch.zeros(min(PICTURES, self.samples), 3, side, side)
        for number, image in self.first_images.items():
            pictures[number] = image
        return sum_over_ranks(pictures)


def _absent(
    metrics: dict[str, float], samples: int, reference: Reference, networks: MetricNetworks
) -> dict[str, str]:
    missing = [name for name in GENERATION_FEATURE_METRICS if name not in metrics]
    if reference.features is None:
        reason = f"{reference.name} holds only a mean and a covariance: compare with images instead."
        absent = dict.fromkeys(missing, reason)
    else:
        images = min(samples, reference.features.statistics.count)
        absent = {name: too_few_images(name, images) for name in missing}
    for name in CLASSIFIER_METRICS:
        if name not in metrics and networks.classifier is not None:
            absent[name] = f"{samples} images are too few: take {SPLITS} or more."
        elif name not in metrics:
            absent[name] = networks.absent.get(name, "no Inception with a classifier was given.")
    return absent


def _fid_conventions(
    inception: InceptionV3, reference: Reference, samples: int, *, image_size: int
) -> dict[str, Any]:
    kept = reference.features
    return asdict(inception.convention) | {
        "covariance": "divided by n - 1",
        "image_size": image_size,
        "images": samples,
        "sample": min(SAMPLE, samples),
        "reference": reference.name,
        "reference_image_size": reference.image_size,
        "reference_images": reference.gaussian.count,
        "reference_sample": None if kept is None else len(kept.sample.features),
        "reference_sha256": reference.sha256,
    }
