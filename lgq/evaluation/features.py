"""A bounded sample of features that depends on the images' numbers alone, for KID and precision and recall.

n = images of a batch, m = images in the sample, d = features.

    sample = FeatureSample.of(10_000, dim=2048)
    sample.update(inception(images), numbers)          # numbers: which images of the data set these are
    features = sample.over_ranks().features
"""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Float32, Int64, Integer
from torch import Tensor

from lgq.checks import require_at_least
from lgq.distributed import rank, stack_over_ranks, sum_over_ranks

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
            raise ValueError(f"expected features of shape {expected}, got {tuple(features.shape)}.")
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
            raise ValueError("samples of different seed, limit or features cannot be merged.")
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
    """Each number's place in a random order: 62 bits of SplitMix64 (Steele et al. 2014)."""
    start = np.random.SeedSequence(seed).generate_state(1, np.uint64)
    x = numbers.numpy().astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + start
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    # Below the mark of a free slot.
    return torch.from_numpy((x >> np.uint64(2)).astype(np.int64))
