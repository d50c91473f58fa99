"""Inception Score (Salimans et al. 2016): is a classifier sure of each image, and do all classes occur?

n = images, c = classes.

    score = InceptionScore.empty(1008)
    score.update(logits, splits)                         # per batch
    score.over_ranks().compute()
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64, Int64, Integer
from torch import Tensor

from lgq.distributed import sum_over_ranks
from lgq.errors import LGQError


@dataclass
class InceptionScore:
    """Streaming sums per split; the order of batches and processes changes float rounding only."""

    probabilities: Float64[Tensor, "splits c"]
    entropies: Float64[Tensor, " splits"]
    counts: Int64[Tensor, " splits"]

    @classmethod
    def empty(cls, classes: int, *, splits: int = 10) -> "InceptionScore":
        zeros = torch.zeros(splits, dtype=torch.float64)
        return cls(zeros.new_zeros(splits, classes), zeros, torch.zeros(splits, dtype=torch.int64))

    def update(self, logits: Float[Tensor, "n c"], split: Integer[Tensor, " n"]) -> None:
        """Add a batch; split: number of the split that each image belongs to."""
        p = logits.detach().cpu().double().softmax(1)
        if p.isnan().any():
            raise LGQError("logits hold NaN or infinity: check the images they were computed from.")
        split = split.cpu().long()
        self.probabilities.index_add_(0, split, p)
        self.entropies.index_add_(0, split, torch.special.entr(p).sum(1))
        self.counts += split.bincount(minlength=len(self.counts))

    def over_ranks(self) -> "InceptionScore":
        """Return the sums of all processes."""
        return InceptionScore(*map(sum_over_ranks, (self.probabilities, self.entropies, self.counts)))

    def compute(self) -> float:
        """Return the mean over splits of exp(mean KL divergence of p(class | image) from p(class))."""
        if not self.counts.all():
            rule = f"{len(self.counts)} splits need one image each"
            raise ValueError(f"{rule}, got {int(self.counts.sum())} images: take fewer splits.")
        marginal = self.probabilities / self.counts[:, None]
        divergence = torch.special.entr(marginal).sum(1) - self.entropies / self.counts
        return float(divergence.exp().mean())
