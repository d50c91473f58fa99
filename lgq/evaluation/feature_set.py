"""A set of images as a network sees it, and how far it is from another: FID, KID, precision and recall.

n = images of a batch, d = features.

    ours = FeatureSet.of(2048)
    ours.update(inception(images), numbers)                  # per batch
    ours.over_ranks().compare(reference)                     # {"fid": ..., "kid": ..., ...}
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float, Integer
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from lgq.evaluation.features import FeatureSample
from lgq.evaluation.fid import FeatureStatistics, StatisticsError
from lgq.evaluation.kid import kernel_distance
from lgq.evaluation.precision_recall import precision_recall
from lgq.files import make_directory, replace_file

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
                raise ValueError(f"{name} is {saved[name].dtype} of shape {tuple(saved[name].shape)}")
        statistics = FeatureStatistics(int(saved["count"]), saved["mean"], saved["scatter"])
        sample = FeatureSample(int(saved["seed"]), saved["order"], saved["numbers"], saved["slots"].float())
        return cls(statistics, sample)
