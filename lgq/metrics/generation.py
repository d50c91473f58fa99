"""How good is a generator? gFID, KID, precision, recall and Inception Score of images that it draws.

b = images of a batch, s = their side in pixels, p = images to look at.

    judges = judges_of_generation(device)
    reference = reference_of_images(data, 256, judges.inception, device)        # or reference_of_file(path)
    evaluation = evaluate_generation(draw, 1000, reference, judges, device=device)
    evaluation.metrics["gfid"], evaluation.std["gfid"], evaluation.absent

Image i has class i modulo the number of classes. The images are numbered through and cut into batches,
which processes take by turns, and `batch_seed` gives each batch a seed of its own. So the images belong to
the sampling seed and the batch size, whoever draws them. Of none more is kept than features.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean, stdev
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from lgq.checks import require_at_least
from lgq.distributed import broadcast_from_first, rank, sum_over_ranks, world_size
from lgq.errors import LGQError
from lgq.metrics.features import SAMPLE, FeatureSet
from lgq.metrics.fid import StatisticsError
from lgq.metrics.inception_score import InceptionScore
from lgq.metrics.metric_networks import NEED_CLASSIFIER, NEED_FEATURES, MetricNetworks
from lgq.metrics.quality import Images
from lgq.metrics.reference import RealImages
from lgq.models.inception import CLASSES, FEATURES, InceptionV3
from lgq.progress import Progress, unwatched
from lgq.random import SAMPLING_BATCH, batch_seed
from lgq.weights import WeightsError

Draw = Callable[[Int64[Tensor, " b"], int], Images]
"""Classes and a seed to an image of each of them, in [-1, 1]; the same whenever the arguments are."""

PICTURES = 16
"""Images that are handed back, to look at."""
SPLITS = 10
"""Of Inception Score."""


@dataclass(frozen=True, kw_only=True)
class GenerationEvaluation:
    """What an evaluation found, over all processes."""

    metrics: dict[str, float]
    """gfid, kid, precision, recall and inception_score: means over the sampling seeds."""
    std: dict[str, float]
    """Their sample standard deviations (divided by n - 1) over n seeds; empty of one seed."""
    seeds: list[dict[str, float]]
    """The metrics of each seed, with the `seed` itself."""
    images: int
    """That were drawn with each seed."""
    batch_size: int
    classes: dict[str, int]
    """Their `number`, and how many images the rarest (`fewest`) and the most frequent (`most`) have."""
    absent: dict[str, str]
    """Metrics that were not taken, and why."""
    fid: dict[str, Any]
    """The conventions behind gfid, kid, precision and recall."""
    inception_score: dict[str, Any] | None
    """Those behind inception_score; none where it is absent."""
    pictures: Float[Tensor, "p 3 s s"]
    """The first images of the first seed, one class after the other, on the CPU of every process."""

    def record(self) -> dict[str, Any]:
        """Its part of a results record (`lgq.results`)."""
        return {name: value for name, value in vars(self).items() if name != "pictures"}


@torch.no_grad()
def evaluate_generation(
    draw: Draw,
    classes: int,
    reference: RealImages,
    judges: MetricNetworks,
    *,
    samples: int = 50_000,
    seeds: Sequence[int] = (0, 1, 2, 3),
    batch_size: int = SAMPLING_BATCH,
    device: torch.device,
    on_progress: Progress = unwatched,
) -> GenerationEvaluation:
    """samples: images to draw with each sampling seed; on_progress counts those of all seeds."""
    require_at_least(1, classes=classes)
    require_drawable(samples, seeds, batch_size)
    inception = require_comparable(reference, judges)
    each: list[dict[str, float]] = []
    pictures = torch.empty(0)
    for turn, seed in enumerate(seeds):
        drawn = _Drawn.of(inception, judges.classifier, samples)
        for position in _fill(drawn, draw, classes, seed, batch_size, device):
            on_progress(turn * samples + position, len(seeds) * samples)
        each.append(drawn.metrics(reference))
        pictures = pictures if turn else drawn.pictures()
    return GenerationEvaluation(
        **_over_seeds(seeds, each),
        images=samples,
        batch_size=batch_size,
        classes={"number": classes, "fewest": samples // classes, "most": -(-samples // classes)},
        absent=_absent(each[0], samples, reference, judges),
        fid=_fid_conventions(inception, reference, samples, image_size=pictures.shape[-1]),
        inception_score=_score_conventions(judges) if "inception_score" in each[0] else None,
        pictures=pictures,
    )


def require_drawable(samples: int, seeds: Sequence[int], batch_size: int) -> None:
    """Refuse what no evaluation can draw; for callers that have real images to read before it."""
    require_at_least(1, batch_size=batch_size)
    require_at_least(2, samples=samples)
    if not seeds or len(set(seeds)) < len(seeds):
        raise LGQError(f"sampling seeds must be one or more, each another, got {list(seeds)}.")


def require_comparable(reference: RealImages, judges: MetricNetworks) -> InceptionV3:
    """Before hours of drawing: can the images be compared? Returns the network that does."""
    inception = require_inception(judges)
    found = len(reference.gaussian.mean)
    if found != FEATURES:
        raise StatisticsError(
            f"{reference.name} has {found:,} features an image, and Inception has {FEATURES:,}: "
            "take statistics of the Inception of FID."
        )
    if reference.convention not in (None, inception.convention):
        raise StatisticsError(
            f"the features of {reference.name} are of {reference.convention}, and those of the generated "
            f"images would be of {inception.convention}: make the reference with the same network."
        )
    return inception


def require_inception(judges: MetricNetworks) -> InceptionV3:
    """Refuse judges without the network that everything is compared by."""
    if judges.inception is None:
        reason = judges.absent.get("gfid", "these judges lack Inception.")
        raise WeightsError(f"there is nothing to judge generated images by: {reason}")
    return judges.inception


def _fill(
    drawn: "_Drawn", draw: Draw, classes: int, seed: int, batch_size: int, device: torch.device
) -> Iterator[int]:
    """Draw this process's images of a seed; tells after each batch how many all processes then have."""
    everyone = batch_size * world_size()
    for start in range(0, drawn.samples, everyone):
        first = start + rank() * batch_size
        if first < drawn.samples:
            numbers = torch.arange(first, min(first + batch_size, drawn.samples))
            images = draw((numbers % classes).to(device), batch_seed(seed, first))
            drawn.update(images.to(device), numbers)
            yield min(start + everyone, drawn.samples)


@dataclass
class _Drawn:
    """What is kept of the images of a sampling seed, in this process."""

    inception: InceptionV3
    classifier: InceptionV3 | None
    samples: int
    features: FeatureSet
    scores: InceptionScore | None
    shown: dict[int, Float[Tensor, "3 s s"]] = field(default_factory=dict)

    @classmethod
    def of(cls, inception: InceptionV3, classifier: InceptionV3 | None, samples: int) -> "_Drawn":
        features = FeatureSet.of(FEATURES, sample=min(SAMPLE, samples))
        has_score = classifier is not None and samples >= SPLITS
        scores = InceptionScore.of(CLASSES, splits=SPLITS) if has_score else None
        return cls(inception, classifier, samples, features, scores)

    def update(self, images: Images, numbers: Int64[Tensor, " b"]) -> None:
        features = self.inception(images)
        self.features.update(features, numbers)
        if self.classifier is not None and self.scores is not None:
            if self.classifier is not self.inception:
                features = self.classifier(images)
            # Consecutive splits, as published: every tenth image of classes that take turns would be
            # of every tenth class, and the score of so few classes is lower.
            self.scores.update(self.classifier.logits(features), numbers * SPLITS // self.samples)
        for number, image in zip(numbers.tolist(), images, strict=True):
            if number < PICTURES:
                self.shown[number] = image.cpu().float()

    def metrics(self, reference: RealImages) -> dict[str, float]:
        """Of the images of all processes."""
        features = self.features.over_ranks()
        if reference.features is None:
            values = {"gfid": features.statistics.gaussian().distance(reference.gaussian)}
        else:
            distances = features.compare(reference.features)
            values = {"gfid" if name == "fid" else name: value for name, value in distances.items()}
        if self.scores is not None:
            values["inception_score"] = self.scores.over_ranks().compute().mean
        return values

    def pictures(self) -> Float[Tensor, "p 3 s s"]:
        """Of all processes, one of which may have drawn nothing."""
        side = self.shown[0].shape[-1] if rank() == 0 else 0
        side = int(broadcast_from_first(torch.tensor(side)))
        pictures = torch.zeros(min(PICTURES, self.samples), 3, side, side)
        for number, image in self.shown.items():
            pictures[number] = image
        return sum_over_ranks(pictures)


def _over_seeds(seeds: Sequence[int], each: list[dict[str, float]]) -> dict[str, Any]:
    """Means, deviations, and the values behind them."""
    values = {name: [one[name] for one in each] for name in each[0]}
    return {
        "metrics": {name: fmean(found) for name, found in values.items()},
        "std": {name: stdev(found) for name, found in values.items()} if len(each) > 1 else {},
        "seeds": [{"seed": seed} | one for seed, one in zip(seeds, each, strict=True)],
    }


def _absent(
    metrics: dict[str, float], samples: int, reference: RealImages, judges: MetricNetworks
) -> dict[str, str]:
    absent: dict[str, str] = {}
    missing = [name for name in NEED_FEATURES if name not in metrics]
    if reference.features is None:
        reason = f"{reference.name} holds a mean and a covariance alone: compare with images instead."
    else:
        images = min(samples, reference.features.statistics.count)
        reason = f"{images} images are too few for it: take 4 or more."
    absent |= dict.fromkeys(missing, reason)
    for name in (name for name in NEED_CLASSIFIER if name not in metrics):
        too_few = f"{samples} images are too few for it: take {SPLITS} or more."
        without = judges.absent.get(name, "these judges lack a classifier.")
        absent[name] = too_few if judges.classifier is not None else without
    return absent


def _fid_conventions(
    inception: InceptionV3, reference: RealImages, samples: int, *, image_size: int
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


def _score_conventions(judges: MetricNetworks) -> dict[str, Any]:
    assert judges.classifier is not None
    return asdict(judges.classifier.convention) | {"splits": f"{SPLITS}, consecutive"}
