"""A set of images as a network sees it, and how far it is from another: FID, KID, precision and recall.

n = images of a batch, d = features.

    ours = FeatureSet.of(2048)
    ours.update(inception(images), numbers)                  # per batch
    ours.over_ranks().compare(reference)                     # {"fid": ..., "kid": ..., ...}
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float, Integer
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from lgq.evaluation.features import FeatureSample
from lgq.evaluation.fid import FeatureStatistics, StatisticsError
from lgq.evaluation.kid import kernel_distance
from lgq.evaluation.precision_recall import precision_recall
from lgq.files import make_directory, replace_file

SAMPLE = 10_000
"""Images whose features are kept for KID, precision and recall."""
_NEIGHBOURS = 3


@dataclass
class FeatureSet:
    """Mean and covariance of all features, and a sample of them."""

    statistics: FeatureStatistics
    sample: FeatureSample

    @classmethod
    def of(cls, dim: int, *, sample: int = SAMPLE) -> "FeatureSet":
        return cls(FeatureStatistics.of(dim), FeatureSample.of(sample, dim=dim))

    def update(self, features: Float[Tensor, "n d"], numbers: Integer[Tensor, " n"]) -> None:
        """numbers: place of each image in its data set."""
        self.statistics.update(features)
        self.sample.update(features, numbers)

    def over_ranks(self) -> "FeatureSet":
        return FeatureSet(self.statistics.over_ranks(), self.sample.over_ranks())

    def compare(self, reference: "FeatureSet") -> dict[str, float]:
        """fid of all; kid, precision and recall of the samples, where these have images enough."""
        distances = {"fid": self.statistics.gaussian().distance(reference.statistics.gaussian())}
        mine, theirs = self.sample.features, reference.sample.features
        if min(len(mine), len(theirs)) > _NEIGHBOURS:
            distances["kid"] = kernel_distance(mine, theirs)
            distances |= precision_recall(mine, theirs, neighbours=_NEIGHBOURS)._asdict()
        return distances

    def save(self, path: Path) -> None:
        count, seed = (torch.tensor(number) for number in (self.statistics.count, self.sample.seed))
        tensors = {
            "count": count,
            "mean": self.statistics.mean,
            "scatter": self.statistics.scatter,
            "seed": seed,
            "order": self.sample.order,
            "numbers": self.sample.numbers,
            "slots": self.sample.slots,
        }
        make_directory(path.parent)
        replace_file(path, save(tensors))

    @classmethod
    def load(cls, path: Path) -> "FeatureSet":
        try:
            saved = load_file(path)
            statistics = FeatureStatistics(int(saved["count"]), saved["mean"], saved["scatter"])
            seed = int(saved["seed"])
            return cls(statistics, FeatureSample(seed, saved["order"], saved["numbers"], saved["slots"]))
        except (OSError, SafetensorError, KeyError, ValueError) as error:
            raise StatisticsError(f"{path} is damaged: delete it, and it is made again.") from error
