"""Inception Score (Salimans et al. 2016): images that a classifier is sure of, and classes that all occur.

n = images, c = classes.

    scores = InceptionScore.of(1008)
    scores.update(logits, numbers)                       # per batch
    mean, std = scores.over_ranks().compute()
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Float64, Int64, Integer
from torch import Tensor

from lgq.checks import require_at_least
from lgq.distributed import sum_over_ranks
from lgq.errors import LGQError


class Score(NamedTuple):
    """Over the splits."""

    mean: float
    std: float
    """Divided by the number of splits, as published."""


def inception_score(logits: Float[Tensor, "n c"], *, splits: int = 10) -> Score:
    """exp of the mean KL divergence of p(class | image) from p(class), split by split.

    Image i belongs to split i modulo `splits`. Consecutive splits, as the authors took, would hold few
    classes each where images are sampled class by class, and could not be streamed before n is known.
    Logarithms of probabilities are logits too.
    """
    scores = InceptionScore.of(logits.shape[1], splits=splits)
    scores.update(logits, torch.arange(len(logits)))
    return scores.compute()


@dataclass
class InceptionScore:
    """Streaming sums a split; the order of batches and processes matters to float rounding only."""

    probabilities: Float64[Tensor, "splits c"]
    entropies: Float64[Tensor, " splits"]
    counts: Int64[Tensor, " splits"]

    @classmethod
    def of(cls, classes: int, *, splits: int = 10) -> "InceptionScore":
        require_at_least(1, classes=classes, splits=splits)
        zeros = torch.zeros(splits, dtype=torch.float64)
        return cls(zeros.new_zeros(splits, classes), zeros, torch.zeros(splits, dtype=torch.int64))

    def update(self, logits: Float[Tensor, "n c"], numbers: Integer[Tensor, " n"]) -> None:
        """numbers: place of each image in the data set."""
        if logits.shape != (len(numbers), self.probabilities.shape[1]):
            expected = (len(numbers), self.probabilities.shape[1])
            raise LGQError(f"expected logits of shape {expected}, got {tuple(logits.shape)}.")
        p = logits.detach().cpu().double().softmax(1)
        if p.isnan().any():
            raise LGQError("logits hold NaN or infinity: look at the images they were made of.")
        split = numbers.cpu().long() % len(self.counts)
        self.probabilities.index_add_(0, split, p)
        self.entropies.index_add_(0, split, torch.special.entr(p).sum(1))
        self.counts += split.bincount(minlength=len(self.counts))

    def merge(self, other: "InceptionScore") -> "InceptionScore":
        """Sums of two parts of a data set."""
        if self.probabilities.shape != other.probabilities.shape:
            shapes = f"{tuple(self.probabilities.shape)} and {tuple(other.probabilities.shape)}"
            raise LGQError(f"scores need the same splits and classes to be merged, got {shapes}.")
        probabilities = self.probabilities + other.probabilities
        return InceptionScore(probabilities, self.entropies + other.entropies, self.counts + other.counts)

    def over_ranks(self) -> "InceptionScore":
        """Sums of all processes."""
        return InceptionScore(*map(sum_over_ranks, (self.probabilities, self.entropies, self.counts)))

    def compute(self) -> Score:
        if not self.counts.all():
            rule = f"{len(self.counts)} splits need an image each"
            raise LGQError(f"{rule}, got {int(self.counts.sum())} images: take fewer splits.")
        marginal = self.probabilities / self.counts[:, None]
        gain = torch.special.entr(marginal).sum(1) - self.entropies / self.counts
        scores = gain.exp()
        return Score(float(scores.mean()), float(scores.std(correction=0)))
