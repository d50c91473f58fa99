"""Code usage: counts of codes over a data set, and the metrics that follow from them.   k = codes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Float32, Int, Integer
from torch import Tensor

from lgq.checks import require_indices, require_tensor
from lgq.distributed import sum_over_ranks
from lgq.errors import LGQError
from lgq.ops.numerics import entropy
from lgq.quantizers import Quantized, Quantizer
from lgq.quantizers.compositions.composition import Composition

_PAPER, _BAR, _UNIFORM = torch.tensor([[255, 255, 255], [0, 114, 178], [213, 94, 0]]) / 127.5 - 1


_MOST_COUNTS = 2**28
"""Largest number of codes that are counted: the counts take 2 GiB."""


@dataclass
class CodeUsage:
    """Streaming counts of codes: `update` per batch, `over_ranks`, then read.

        usage = CodeUsage.of(q)
        usage.update(q.encode(z))
        usage.summary(), [stage.summary() for stage in usage.by_stage()]

    Counts are integers, so the result does not depend on the order of batches or processes.
    """

    counts: Int[Tensor, " k"]
    """Counts of the codes; those of stages or groups follow each other."""
    sizes: tuple[int, ...] = ()
    """Number of codes of each stage or group; () for one codebook."""
    index_shape: tuple[int, ...] = ()
    """Trailing axes of the indices that are stages or groups."""

    @classmethod
    def of(cls, quantizer: Quantizer) -> "CodeUsage":
        """Return no counts yet for the indices of any quantizer; stages and groups are counted apart."""
        if not isinstance(quantizer, Quantizer):
            kind = type(quantizer).__name__
            raise LGQError(f"CodeUsage.of needs a quantizer, got {kind}: pass `quantizer` of a tokenizer.")
        sizes = _sizes_of(quantizer)
        usage = cls.empty(sum(sizes))
        usage.sizes, usage.index_shape = sizes, quantizer.index_shape
        return usage

    @classmethod
    def empty(cls, codebook_size: int) -> "CodeUsage":
        """Return no counts yet for indices below `codebook_size`; of a quantizer, take `of`.

        `codebook_size` of `Residual` and `Grouped` is the number of combinations, whose indices are
        `joint_indices`; indices with an axis of stages or groups would all be counted as one codebook.
        """
        if codebook_size > _MOST_COUNTS:
            raise LGQError(
                f"counts of {codebook_size:,} codes do not fit into memory, up to {_MOST_COUNTS:,} do: for "
                "Residual or Grouped, CodeUsage.of(q) counts each stage or group apart."
            )
        return cls(torch.zeros(codebook_size, dtype=torch.int64))

    def update(self, indices: Integer[Tensor, "*tokens"]) -> None:
        """Count the codes of a batch; -1 stands for no code, as where `Residual` drops a stage."""
        if isinstance(indices, Quantized):
            raise LGQError("indices must be a tensor, got the whole result: pass out.indices.")
        if self.index_shape:
            indices = self._numbered(indices)
        indices = require_indices(indices, len(self.counts), lowest=-1)
        indices = indices[indices >= 0]
        self.counts += torch.bincount(indices.flatten().cpu(), minlength=len(self.counts))

    def _numbered(self, indices: Integer[Tensor, "*tokens"]) -> Int[Tensor, "n s"]:
        """Return indices among the codes of all stages or groups."""
        require_tensor("indices", indices)
        axes = tuple(indices.shape[-len(self.index_shape) :])
        if axes != self.index_shape:
            raise LGQError(
                f"indices must end with axes of shape {self.index_shape}, its stages or groups, got "
                f"{tuple(indices.shape)}: pass what `encode` returns."
            )
        numbered, first = [], 0
        for part, size in zip(indices.reshape(-1, len(self.sizes)).unbind(1), self.sizes, strict=True):
            codes = require_indices(part, size, lowest=-1)
            numbered.append(torch.where(codes < 0, codes, codes + first))
            first += size
        return torch.stack(numbered, 1)

    def over_ranks(self) -> "CodeUsage":
        """Return the counts of all processes."""
        return replace(self, counts=sum_over_ranks(self.counts))

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

    def by_stage(self, stages: int | None = None) -> "list[CodeUsage]":
        """Return the usage of each stage or group; a quantizer without them has one.

        stages: number of equal codebooks whose codes follow each other; None takes those of `of`.
        """
        if stages is not None:
            return [CodeUsage(counts) for counts in self.counts.view(stages, -1)]
        return [CodeUsage(counts) for counts in self.counts.split(self.sizes or (len(self.counts),))]

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


def _sizes_of(quantizer: Quantizer) -> tuple[int, ...]:
    parts = quantizer.parts if isinstance(quantizer, Composition) else []
    return tuple(size for part in parts for size in _sizes_of(part)) or (quantizer.codebook_size,)


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
