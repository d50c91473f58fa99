"""Features of a set of images: mean and covariance of all, a fixed random sample, distances to another set.

n = images of a batch, m = images in the sample, d = features, r = resamples.

    features = FeatureSet.empty(2048)
    features.update(inception(images), numbers)              # per batch; numbers: places in the data set
    features.over_ranks().compare(reference)                 # {"fid": ..., "kid": ..., ...}
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Float32, Float64, Int64, Integer
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from lgq.distributed import rank, stack_over_ranks, sum_over_ranks
from lgq.files import make_directory, replace_file
from lgq.metrics.fid import FeatureStatistics, StatisticsError, weighted_frechet_distance
from lgq.progress import Progress, unwatched
from lgq.random import Stream, mix, random_bits

SAMPLE = 10_000
"""Number of images whose features are kept for KID, precision and recall."""

_FREE = torch.iinfo(torch.int64).max
_MIN_IMAGES = 2
_NEIGHBOURS = 3
_DTYPES = {"mean": torch.float64, "scatter": torch.float64, "order": torch.int64, "numbers": torch.int64}


@dataclass
class FeatureSample:
    """Features of at most `limit` images: those that come first in a shuffled order of their numbers.

    The sample is uniform, and does not depend on the order of images, batches or processes. Each number
    must be given once.
    """

    order: Int64[Tensor, " limit"]
    """Place of each kept image in the shuffled order; the largest integer marks a free slot."""
    numbers: Int64[Tensor, " limit"]
    slots: Float32[Tensor, "limit d"]

    @classmethod
    def empty(cls, limit: int, *, dim: int) -> "FeatureSample":
        free = torch.full((limit,), _FREE)
        return cls(free, torch.zeros_like(free), torch.zeros(limit, dim))

    def update(self, features: Float[Tensor, "n d"], numbers: Integer[Tensor, " n"]) -> None:
        """Add a batch; numbers: place of each image in the data set."""
        numbers, limit = numbers.cpu().long(), len(self.order)
        order = _shuffled_places(numbers)
        kept = torch.cat([self.order, order]).argsort(stable=True)[:limit]
        replaced = torch.ones(limit, dtype=torch.bool)
        replaced[kept[kept < limit]] = False
        added = kept[kept >= limit] - limit
        self.order[replaced] = order[added]
        self.numbers[replaced] = numbers[added]
        self.slots[replaced] = features.detach()[added.to(features.device)].cpu().float()

    def over_ranks(self) -> "FeatureSample":
        """Return the sample of all processes."""
        limit = len(self.order)
        all_orders = stack_over_ranks(self.order).flatten()
        kept = all_orders.argsort(stable=True)[:limit]
        local = kept // limit == rank()
        slots = torch.zeros_like(self.slots)
        slots[local] = self.slots[kept[local] % limit]
        numbers = stack_over_ranks(self.numbers).flatten()[kept]
        return FeatureSample(all_orders[kept], numbers, sum_over_ranks(slots))

    @property
    def features(self) -> Float32[Tensor, "m d"]:
        """Features of the sample, in the order of the images' numbers."""
        taken = (self.order != _FREE).nonzero().squeeze(1)
        return self.slots[taken[self.numbers[taken].argsort()]]


def too_few_images(metric: str, images: int) -> str:
    """Say why a metric of features is absent."""
    fewest = _NEIGHBOURS + 1 if metric in ("precision", "recall") else _MIN_IMAGES
    return f"{images} {'image is' if images == 1 else 'images are'} too few: take {fewest} or more."


def _shuffled_places(numbers: Int64[Tensor, " n"]) -> Int64[Tensor, " n"]:
    """Place of each number in a random order: 62 bits, so always below the mark of a free slot."""
    words = mix(numbers.numpy().astype(np.uint64) + np.uint64(random_bits(Stream.FEATURES, 0)))
    return torch.from_numpy((words >> np.uint64(2)).astype(np.int64))


def _resampled_counts(images: int, resamples: int) -> Float64[Tensor, "r n"]:
    """Draw images with replacement, and return how often each was drawn; the same in every call."""
    words = np.arange(resamples * images, dtype=np.uint64) + np.uint64(random_bits(Stream.BOOTSTRAP, images))
    drawn = (mix(words) % np.uint64(images)).astype(np.int64).reshape(resamples, images)
    return torch.stack([torch.bincount(torch.from_numpy(row), minlength=images) for row in drawn]).double()


@dataclass
class FeatureSet:
    """Mean and covariance of all features, and a sample of them."""

    statistics: FeatureStatistics
    sample: FeatureSample

    @classmethod
    def empty(cls, dim: int, *, sample: int = SAMPLE) -> "FeatureSet":
        """sample: largest number of images whose features are kept."""
        return cls(FeatureStatistics.empty(dim), FeatureSample.empty(sample, dim=dim))

    def update(self, features: Float[Tensor, "n d"], numbers: Integer[Tensor, " n"]) -> None:
        """Add a batch; numbers: place of each image in its data set."""
        self.statistics.update(features)
        self.sample.update(features, numbers)

    def over_ranks(self) -> "FeatureSet":
        """Return the features of all processes."""
        return FeatureSet(self.statistics.over_ranks(), self.sample.over_ranks())

    def compare(self, reference: "FeatureSet") -> dict[str, float]:
        """Return fid of all images, and kid, precision and recall of the samples.

        Metrics that need more images are left out.
        """
        # Not at the top: a training without rFID needs neither.
        from lgq.metrics.kid import kernel_distance
        from lgq.metrics.precision_recall import precision_recall

        sample, reference_sample = self.sample.features, reference.sample.features
        images = min(len(sample), len(reference_sample))
        distances: dict[str, float] = {}
        if images >= _MIN_IMAGES:
            distances["fid"] = self.statistics.gaussian().distance(reference.statistics.gaussian())
            distances["kid"] = kernel_distance(sample, reference_sample)
        if images > _NEIGHBOURS:
            distances |= precision_recall(sample, reference_sample, neighbours=_NEIGHBOURS)
        return distances

    def bootstrap_deviations(
        self, reference: "FeatureSet", resamples: int, on_progress: Progress = unwatched
    ) -> dict[str, float]:
        """Return the standard deviations of fid and kid over random resamples of the images.

        Both samples must be of the same images, which are resampled in pairs; nothing where there are fewer
        than two, or `resamples` is below two. Progress counts resamples.
        """
        x, y = self.sample.features.double(), reference.sample.features.double()
        if min(len(x), resamples) < _MIN_IMAGES:
            return {}
        if len(x) != len(y):
            raise ValueError(f"resampling in pairs needs the same images twice, got {len(x)} and {len(y)}.")
        from lgq.metrics.kid import weighted_kernel_distance

        counts = _resampled_counts(len(x), resamples)
        products = (x @ x.T, y @ y.T, x @ y.T)
        values: dict[str, list[float]] = {"fid": [], "kid": []}
        for done, weights in enumerate(counts, 1):
            values["fid"].append(weighted_frechet_distance(*products, weights))
            values["kid"].append(weighted_kernel_distance(*products, weights, dim=x.shape[1]))
            on_progress(done, resamples)
        return {name: float(torch.tensor(value).std()) for name, value in values.items()}

    def save(self, path: Path) -> None:
        """Write a file that begins with its own hash: later comparisons rest on every bit."""
        tensors = {
            "count": torch.tensor(self.statistics.count),
            "mean": self.statistics.mean,
            "scatter": self.statistics.scatter,
            **vars(self.sample),
        }
        data = save(tensors)
        make_directory(path.parent)
        replace_file(path, hashlib.sha256(data).digest() + data)

    @classmethod
    def load(cls, path: Path) -> "FeatureSet":
        try:
            content = memoryview(path.read_bytes())
        except OSError as error:
            raise StatisticsError(f"{path} cannot be read: {error.strerror or error}.") from error
        size = hashlib.sha256().digest_size
        digest, data = content[:size], bytes(content[size:])
        way_out = "delete it, and it is computed again"
        if hashlib.sha256(data).digest() != digest:
            raise StatisticsError(f"{path} is damaged: {way_out}.")
        try:
            return cls._from_tensors(load(data))
        except (SafetensorError, KeyError, ValueError, RuntimeError) as error:
            raise StatisticsError(f"{path} holds no features ({error!s:.200}): {way_out}.") from error

    @classmethod
    def _from_tensors(cls, saved: dict[str, Tensor]) -> "FeatureSet":
        limit, d = saved["slots"].shape
        shapes = {"mean": (d,), "scatter": (d, d), "order": (limit,), "numbers": (limit,)}
        for name, shape in shapes.items():
            if saved[name].shape != shape or saved[name].dtype != _DTYPES[name]:
                raise ValueError(f"{name} is {saved[name].dtype} of shape {tuple(saved[name].shape)}")
        statistics = FeatureStatistics(int(saved["count"]), saved["mean"], saved["scatter"])
        sample = FeatureSample(saved["order"], saved["numbers"], saved["slots"].float())
        return cls(statistics, sample)
