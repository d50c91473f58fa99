"""A bounded sample of features that depends on the images' numbers alone, for KID and precision and recall.

n = images of a batch, m = images in the sample, d = features.

    sample = FeatureSample.of(10_000, dim=2048)
    sample.update(inception(images), numbers)          # numbers: which images of the data set these are
    features = sample.over_ranks().features

A set of images as a network sees it, and how far it is from another: FID, KID, precision and recall.

n = images of a batch, d = features.

    ours = FeatureSet.of(2048)
    ours.update(inception(images), numbers)                  # per batch
    ours.over_ranks().compare(reference)                     # {"fid": ..., "kid": ..., ...}
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Float32, Int64, Integer
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from lgq.checks import require_at_least
from lgq.distributed import rank, stack_over_ranks, sum_over_ranks
from lgq.errors import LGQError
from lgq.files import make_directory, replace_file
from lgq.metrics.fid import FeatureStatistics, StatisticsError
from lgq.metrics.kid import kernel_distance
from lgq.metrics.precision_recall import precision_recall
from lgq.random import Stream, mix, random_bits

_FREE = torch.iinfo(torch.int64).max


@dataclass
class FeatureSample:
    """The features of the `limit` images that come first in a shuffled order of their numbers.

    So the sample is a fair one, and the same in whichever order, batches and processes the images come.
    Each number is to be given once.
    """

    seed: int
    order: Int64[Tensor, " limit"]
    """Place of each kept image in the shuffled order; the largest integer marks a free slot."""
    numbers: Int64[Tensor, " limit"]
    slots: Float32[Tensor, "limit d"]

    @classmethod
    def of(cls, limit: int, *, dim: int, seed: int = 0) -> "FeatureSample":
        require_at_least(1, limit=limit, dim=dim)
        free = torch.full((limit,), _FREE)
        return cls(seed, free, torch.zeros_like(free), torch.zeros(limit, dim))

    def update(self, features: Float[Tensor, "n d"], numbers: Integer[Tensor, " n"]) -> None:
        """numbers: place of each image in the data set."""
        if features.shape != (len(numbers), self.slots.shape[1]):
            expected = (len(numbers), self.slots.shape[1])
            raise LGQError(f"expected features of shape {expected}, got {tuple(features.shape)}.")
        numbers = numbers.cpu().long()
        self._offer(_shuffled(numbers, self.seed), numbers, features.detach())

    def _offer(
        self, order: Int64[Tensor, " n"], numbers: Int64[Tensor, " n"], features: Float[Tensor, "n d"]
    ) -> None:
        limit = len(self.order)
        kept = torch.cat([self.order, order]).argsort(stable=True)[:limit]
        given_up = torch.ones(limit, dtype=torch.bool)
        given_up[kept[kept < limit]] = False
        chosen = kept[kept >= limit] - limit
        self.order[given_up] = order[chosen]
        self.numbers[given_up] = numbers[chosen]
        self.slots[given_up] = features[chosen.to(features.device)].cpu().float()

    def merge(self, other: "FeatureSample") -> "FeatureSample":
        """The sample of two parts of a data set."""
        if (self.seed, self.slots.shape) != (other.seed, other.slots.shape):
            raise LGQError("samples of different seed, limit or features cannot be merged.")
        merged = FeatureSample(self.seed, self.order.clone(), self.numbers.clone(), self.slots.clone())
        merged._offer(other.order, other.numbers, other.slots)
        return merged

    def over_ranks(self) -> "FeatureSample":
        """The sample of all processes."""
        limit = len(self.order)
        every = stack_over_ranks(self.order).flatten()
        kept = every.argsort(stable=True)[:limit]
        mine = kept // limit == rank()
        slots = torch.zeros_like(self.slots)
        slots[mine] = self.slots[kept[mine] % limit]
        numbers = stack_over_ranks(self.numbers).flatten()[kept]
        return FeatureSample(self.seed, every[kept], numbers, sum_over_ranks(slots))

    @property
    def features(self) -> Float32[Tensor, "m d"]:
        """In the order of the images' numbers."""
        taken = (self.order != _FREE).nonzero().squeeze(1)
        return self.slots[taken[self.numbers[taken].argsort()]]


def _shuffled(numbers: Int64[Tensor, " n"], seed: int) -> Int64[Tensor, " n"]:
    """Place of each number in a random order of 62 bits, below the mark of a free slot."""
    words = mix(numbers.numpy().astype(np.uint64) + np.uint64(random_bits(Stream.FEATURES, seed)))
    return torch.from_numpy((words >> np.uint64(2)).astype(np.int64))


SAMPLE = 10_000
"""Images whose features are kept for KID, precision and recall."""

_LEAST_IMAGES = 2
_NEIGHBOURS = 3
_DTYPES = {"mean": torch.float64, "scatter": torch.float64, "order": torch.int64, "numbers": torch.int64}


@dataclass
class FeatureSet:
    """Mean and covariance of all features, and a sample of them."""

    statistics: FeatureStatistics
    sample: FeatureSample

    @classmethod
    def of(cls, dim: int, *, sample: int = SAMPLE) -> "FeatureSet":
        """sample: images at most whose features are kept."""
        return cls(FeatureStatistics.of(dim), FeatureSample.of(sample, dim=dim))

    def update(self, features: Float[Tensor, "n d"], numbers: Integer[Tensor, " n"]) -> None:
        """numbers: place of each image in its data set."""
        self.statistics.update(features)
        self.sample.update(features, numbers)

    def over_ranks(self) -> "FeatureSet":
        """Of all processes."""
        return FeatureSet(self.statistics.over_ranks(), self.sample.over_ranks())

    def compare(self, reference: "FeatureSet") -> dict[str, float]:
        """fid of all images; kid, precision and recall of the samples; those that have images enough."""
        mine, theirs = self.sample.features, reference.sample.features
        images = min(len(mine), len(theirs))
        distances: dict[str, float] = {}
        if images >= _LEAST_IMAGES:
            distances["fid"] = self.statistics.gaussian().distance(reference.statistics.gaussian())
            distances["kid"] = kernel_distance(mine, theirs)
        if images > _NEIGHBOURS:
            distances |= precision_recall(mine, theirs, neighbours=_NEIGHBOURS)._asdict()
        return distances

    def save(self, path: Path) -> None:
        """With a hash in front: of the features that a later comparison rests on, no bit may differ."""
        tensors = {
            "count": torch.tensor(self.statistics.count),
            "mean": self.statistics.mean,
            "scatter": self.statistics.scatter,
            "seed": torch.tensor(self.sample.seed),
            "order": self.sample.order,
            "numbers": self.sample.numbers,
            "slots": self.sample.slots,
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
        if hashlib.sha256(data).digest() != digest:
            raise StatisticsError(
                f"{path} has other bytes than were written: delete it, and it is made again."
            )
        try:
            return cls._of(load(data))
        except (SafetensorError, KeyError, ValueError, RuntimeError) as error:
            raise StatisticsError(
                f"{path} holds no features ({error!s:.200}): delete it, and it is made again."
            ) from error

    @classmethod
    def _of(cls, saved: dict[str, Tensor]) -> "FeatureSet":
        limit, d = saved["slots"].shape
        shapes = {"mean": (d,), "scatter": (d, d), "order": (limit,), "numbers": (limit,)}
        for name, shape in shapes.items():
            if saved[name].shape != shape or saved[name].dtype != _DTYPES[name]:
                raise LGQError(f"{name} is {saved[name].dtype} of shape {tuple(saved[name].shape)}")
        statistics = FeatureStatistics(int(saved["count"]), saved["mean"], saved["scatter"])
        sample = FeatureSample(int(saved["seed"]), saved["order"], saved["numbers"], saved["slots"].float())
        return cls(statistics, sample)
