"""Code usage: counts of codes over a data set, and the metrics that follow from them.   k = codes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Float32, Int, Integer
from torch import Tensor

from lgq.checks import require_indices
from lgq.distributed import sum_over_ranks
from lgq.ops.numerics import entropy
from lgq.quantizers import Quantizer

_PAPER, _BAR, _UNIFORM = torch.tensor([[255, 255, 255], [0, 114, 178], [213, 94, 0]]) / 127.5 - 1


@dataclass
class CodeUsage:
    """Streaming counts of codes: `update` per batch, `over_ranks`, then read.

    Counts are integers, so the result does not depend on the order of batches or processes.
    """

    counts: Int[Tensor, " k"]

    @classmethod
    def empty(cls, codebook_size: int) -> "CodeUsage":
        return cls(torch.zeros(codebook_size, dtype=torch.int64))

    def update(self, indices: Integer[Tensor, "*tokens"]) -> None:
        """Count the codes of a batch; -1 stands for no code, as where `Residual` drops a stage."""
        indices = require_indices(indices, len(self.counts), lowest=-1)
        indices = indices[indices >= 0]
        self.counts += torch.bincount(indices.flatten().cpu(), minlength=len(self.counts))

    def over_ranks(self) -> "CodeUsage":
        """Return the counts of all processes."""
        return CodeUsage(sum_over_ranks(self.counts))

    @property
    def tokens(self) -> int:
        """Number of tokens that were counted."""
        return int(self.counts.sum())

    @property
    def frequencies(self) -> Float[Tensor, " k"]:
        return self.counts.cpu().double() / max(self.tokens, 1)

    @property
    def dead_codes(self) -> Int[Tensor, " dead"]:
        """Codes that never occurred."""
        return (self.counts == 0).nonzero().squeeze(1)

    @property
    def utilization(self) -> float:
        """Share of the codes that occurred at least once."""
        return 1 - len(self.dead_codes) / len(self.counts)

    @property
    def entropy(self) -> float:
        """Entropy of the histogram of codes in nats."""
        return float(entropy(self.frequencies))

    @property
    def perplexity(self) -> float:
        """exp(entropy): number of equally used codes that would have this entropy; 0 for no tokens."""
        return float(torch.tensor(self.entropy).cpu().double().exp()) if self.tokens else 0.0

    @property
    def normalized_entropy(self) -> float:
        """Entropy divided by its largest value log k; 1 is uniform use. A codebook of one code has 1."""
        k = len(self.counts)
        return self.entropy / float(torch.tensor(k, dtype=torch.float64).log()) if k > 1 else 1.0

    @property
    def top_percent_mass(self) -> float:
        """Share of the tokens that the most frequent 1% of the codes take (rounded up, at least one code)."""
        return float(self.frequencies.topk(-(-len(self.counts) // 100)).values.sum())

    def by_stage(self, stages: int) -> "list[CodeUsage]":
        """Return the usage of each stage of a residual quantizer, whose codes follow each other."""
        return [CodeUsage(counts) for counts in self.counts.view(stages, -1)]

    def norm_summary(self, codebook: Float[Tensor, "k c"]) -> dict[str, float]:
        """Return the smallest and largest norm of dead and of live codes, and `norm_correlation`.

        `norm_correlation` is the Pearson correlation of a code's norm with the log of its count + 1: near 1
        where long codes win, near 0 where only the position decides. What does not exist is left out.
        """
        norms, dead = torch.linalg.vector_norm(codebook.detach().cpu().double(), dim=1), self.counts == 0
        values: dict[str, float] = {}
        for name, group in (("dead", norms[dead]), ("live", norms[~dead])):
            if len(group):
                values |= {f"{name}_norm_min": float(group.min()), f"{name}_norm_max": float(group.max())}
        pair = torch.stack([norms, self.counts.cpu().double().log1p()])
        centred = pair - pair.mean(1, keepdim=True)
        lengths = torch.linalg.vector_norm(centred, dim=1)
        correlation = float(centred[0] @ centred[1] / lengths.prod())  # NaN where either is constant
        return values if math.isnan(correlation) else values | {"norm_correlation": correlation}

    def summary(self) -> dict[str, float]:
        """Return the values of a results record."""
        return {
            "utilization": self.utilization,
            "perplexity": self.perplexity,
            "normalized_entropy": self.normalized_entropy,
            "top_percent_mass": self.top_percent_mass,
            "dead_codes": float(len(self.dead_codes)),
        }


def batch_utilization(indices: Integer[Tensor, "*tokens"], codebook_size: int) -> Float[Tensor, ""]:
    """Return the share of the codes within reach, at most one per token, that a batch uses.

    Stays on the device of the indices, without a wait for it.
    """
    used = torch.zeros(codebook_size, device=indices.device).scatter_(0, indices.flatten(), 1.0).sum()
    return used / min(codebook_size, indices.numel())


def usage_bars(
    usages: Sequence[CodeUsage], *, width: int = 256, height: int = 96
) -> Float[Tensor, "3 rows width"]:
    """Draw the frequencies of codes as bars, the most frequent first: an image in [-1, 1], a row per usage.

    A bar reaches the top at the largest frequency; the line is that of a uniform distribution.
    """
    rows = []
    for usage in usages:
        ordered = usage.frequencies.sort(descending=True).values
        columns = torch.arange(width) * len(ordered) // width
        top = ordered[0].clamp_min(1e-12)
        level = 1 - (torch.arange(height) + 0.5)[:, None] / height
        row = torch.where(ordered[columns] / top > level, _BAR[:, None, None], _PAPER[:, None, None])
        line = int((1 - 1 / len(ordered) / top).clamp(0, 1) * (height - 1))
        row[:, line] = _UNIFORM[:, None]
        rows.append(row)
    return torch.cat(rows, dim=1)


@torch.no_grad()
def learned_codebook(quantizer: Quantizer) -> Float32[Tensor, "k c"] | None:
    """Return a copy of the codes on the CPU; None for a fixed grid, and without a `codebook`."""
    codes: Any = getattr(quantizer, "codebook", None) if quantizer.learned_codes else None
    return None if codes is None else codes.detach().float().cpu().clone()
