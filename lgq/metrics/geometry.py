"""Geometry of a codebook (paper, section 5): how evenly codes are used, and how freely they combine.

b = images, h w = tokens along the height and the width, k = codes, n = images in all, p = position pairs.

    geometry = CodeGeometry.empty(16_384, grid=(16, 16))
    geometry.update(tokens)                              # per batch
    geometry.over_ranks().summary()
"""

import math
import random
from dataclasses import dataclass, field

import torch
from jaxtyping import Int32, Int64, Integer
from torch import Tensor

from lgq.checks import require_at_least, require_indices
from lgq.distributed import rank, stack_over_ranks, sum_over_ranks, world_size
from lgq.metrics.code_usage import CodeUsage

MAX_PAIRED_CODES = 65_536
"""Largest codebook whose co-occurrence is counted: k² / 8 bytes are 0.5 GiB here, and 8 GiB at 262,144."""

_WORD = 64
_ROWS_AT_A_TIME = 64


@dataclass
class CoOccurrence:
    """Pairs of codes that occur together in some image, one bit per pair: k² / 8 bytes (34 MB at k = 16,384).

    Pairs are unordered and of two different codes, so there are k (k - 1) / 2. How often, and where in an
    image, two codes meet does not matter. Neither does the order of batches or processes.
    """

    codebook_size: int
    bits: Int64[Tensor, "k words"]
    """Bit j of row i is set if codes i and j occur in one image. Symmetric; the diagonal marks used codes."""

    @classmethod
    def empty(cls, codebook_size: int) -> "CoOccurrence":
        require_at_least(1, codebook_size=codebook_size)
        words = -(-codebook_size // _WORD)
        return cls(codebook_size, torch.zeros(codebook_size, words, dtype=torch.int64))

    def update(self, tokens: Integer[Tensor, "b *tokens"]) -> None:
        """Add the tokens of whole images, one image per row."""
        for image in require_indices(tokens, self.codebook_size).cpu().flatten(1):
            codes = image.unique()
            # A sum of different powers of 2 is their union.
            row = self.bits.new_zeros(self.bits.shape[1])
            row.index_add_(0, codes // _WORD, torch.ones_like(codes) << codes % _WORD)
            self.bits[codes] |= row

    def over_ranks(self) -> "CoOccurrence":
        """Return the pairs of all processes."""
        if world_size() == 1:
            return self
        parts = [_union_over_ranks(rows) for rows in self.bits.split(_ROWS_AT_A_TIME)]
        return CoOccurrence(self.codebook_size, torch.cat(parts))

    @property
    def pairs(self) -> int:
        """Number of pairs that occurred."""
        histogram = self.bits.view(torch.uint8).flatten().bincount(minlength=256).tolist()
        ones = sum(count * byte.bit_count() for byte, count in enumerate(histogram))
        codes = torch.arange(self.codebook_size)
        used = int((self.bits[codes, codes // _WORD] >> codes % _WORD & 1).sum())
        return (ones - used) // 2

    @property
    def density(self) -> float:
        """Share of all pairs that occurred; 0 for a codebook of one code, which has no pair."""
        return self.pairs / max(self.codebook_size * (self.codebook_size - 1) // 2, 1)


def _union_over_ranks(words: Int64[Tensor, "rows words"]) -> Int64[Tensor, "rows words"]:
    # By sums: the only reduction that every backend has for these types.
    places = torch.arange(_WORD, device=words.device)
    counts = sum_over_ranks((words[..., None] >> places & 1).int())
    return ((counts > 0).long() << places).sum(-1)


def mutual_information(a: Integer[Tensor, " n"], b: Integer[Tensor, " n"]) -> float:
    """Return H(a) + H(b) - H(a, b) of the observed frequencies in nats; 0 for no images."""
    a_values, b_values = (x.unique(return_inverse=True)[1] for x in (a, b))
    joint = a_values * max(len(b), 1) + b_values
    return _entropy(a_values) + _entropy(b_values) - _entropy(joint)


def _entropy(labels: Int64[Tensor, " n"]) -> float:
    # Summed in the order of the values, so that the order of images changes no bit.
    n = max(len(labels), 1)
    counts = labels.unique(return_counts=True)[1].double()
    return math.log(n) - float((counts * counts.log()).sum()) / n


@dataclass
class PositionPairs:
    """Tokens at random pairs of positions, for mutual information; 8 p bytes per image.

    The estimate is the plug-in one: the formula, applied to observed frequencies. It cannot exceed log n,
    and comes close where images are few compared with codes. So it ranks tokenizers, and is no absolute
    measure.
    """

    grid: tuple[int, int]
    pairs: Int64[Tensor, "p 2"]
    """Positions in reading order, the lower one first."""
    batches: list[Int32[Tensor, "_ p 2"]] = field(default_factory=list)
    """Tokens at these positions."""

    @classmethod
    def empty(cls, grid: tuple[int, int], *, pairs: int = 32, seed: int = 0) -> "PositionPairs":
        """Choose different pairs of two different positions; all of them where a grid has fewer."""
        positions = grid[0] * grid[1]
        require_at_least(1, pairs=pairs)
        require_at_least(2, positions=positions)
        possible = range(positions * (positions - 1) // 2)
        chosen = random.Random(seed).sample(possible, min(pairs, len(possible)))
        return cls(grid, torch.tensor([_numbered_pair(number) for number in sorted(chosen)]))

    def update(self, tokens: Integer[Tensor, "b h w"]) -> None:
        if tuple(tokens.shape[1:]) != self.grid:
            raise ValueError(f"expected images of {self.grid} tokens, got shape {tuple(tokens.shape)}.")
        self.batches.append(tokens.cpu().flatten(1)[:, self.pairs].int())

    def over_ranks(self) -> "PositionPairs":
        """Return the tokens of all processes."""
        sizes = stack_over_ranks(torch.tensor(self.images)).tolist()
        tokens = self.pairs.new_zeros(sum(sizes), len(self.pairs), 2, dtype=torch.int32)
        start = sum(sizes[: rank()])
        tokens[start : start + self.images] = self.tokens
        return PositionPairs(self.grid, self.pairs, [sum_over_ranks(tokens)])

    @property
    def images(self) -> int:
        return sum(map(len, self.batches))

    @property
    def tokens(self) -> Int32[Tensor, "n p 2"]:
        return torch.cat([self.pairs.new_zeros(0, len(self.pairs), 2, dtype=torch.int32), *self.batches])

    @property
    def information(self) -> float:
        """Mutual information in nats, averaged over the pairs."""
        values = [mutual_information(*pair.unbind(1)) for pair in self.tokens.unbind(1)]
        return sum(values) / len(values)

    @property
    def ceiling(self) -> float:
        """log n, which the estimate cannot exceed, whatever the tokens are."""
        return math.log(max(self.images, 1))


def _numbered_pair(number: int) -> tuple[int, int]:
    """Return a pair by its number in the order (0, 1), (0, 2), (1, 2), (0, 3), ..."""
    higher = (1 + math.isqrt(1 + 8 * number)) // 2
    return number - higher * (higher - 1) // 2, higher


@dataclass
class CodeGeometry:
    """Usage, co-occurrence and mutual information of codes; exact, whatever the order of batches."""

    usage: CodeUsage
    cooccurrence: CoOccurrence | None
    """None for codebooks of more than `MAX_PAIRED_CODES` codes."""
    positions: PositionPairs | None
    """None for images of one token."""

    @classmethod
    def empty(cls, codebook_size: int, *, grid: tuple[int, int], pairs: int = 32) -> "CodeGeometry":
        """grid: tokens along the height and the width; pairs: position pairs for mutual information."""
        return cls(
            CodeUsage.empty(codebook_size),
            CoOccurrence.empty(codebook_size) if codebook_size <= MAX_PAIRED_CODES else None,
            PositionPairs.empty(grid, pairs=pairs) if grid != (1, 1) else None,
        )

    def update(self, tokens: Integer[Tensor, "b h w"]) -> None:
        """Add tokens of one codebook; for a residual quantizer, those of one stage."""
        tokens = require_indices(tokens, len(self.usage.counts)).cpu()
        if self.positions is not None:
            self.positions.update(tokens)  # first: it may raise on the grid, and then nothing was counted
        self.usage.update(tokens)
        if self.cooccurrence is not None:
            self.cooccurrence.update(tokens)

    def over_ranks(self) -> "CodeGeometry":
        """Return the geometry of all processes."""
        return CodeGeometry(
            self.usage.over_ranks(),
            self.cooccurrence and self.cooccurrence.over_ranks(),
            self.positions and self.positions.over_ranks(),
        )

    def summary(self) -> dict[str, float]:
        """Return the values of a results record; those that cannot be computed are left out."""
        values = self.usage.summary()
        if self.cooccurrence is not None:
            values["cooccurrence_density"] = self.cooccurrence.density
        if self.positions is not None:
            values["mutual_information"] = self.positions.information
            values["mutual_information_ceiling"] = self.positions.ceiling
        return values
