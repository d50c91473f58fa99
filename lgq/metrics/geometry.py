"""Which codes combine: pairs of codes seen together in some image, a bit a pair.   k = codes, b = images.

Pairs are unordered and of two different codes, a < b: a codebook has k (k - 1) / 2 of them. However
often, and wherever in an image, two codes meet, they are one pair.

How much one token of an image says about another: mutual information of random pairs of positions.

n = images, p = pairs of positions, h w = tokens along the height and the width.

The estimate is the plug-in one: the formula, applied to observed frequencies. It cannot exceed log n,
and comes near that whenever images are few beside codes, so it ranks tokenizers and measures none.

The geometry of a codebook (paper, section 5): how evenly codes are used, and how freely they combine.

b = images, h w = tokens along the height and the width.

    geometry = CodeGeometry.of(16_384, grid=(16, 16))
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
from lgq.errors import LGQError
from lgq.metrics.code_usage import CodeUsage

_WORD = 64
_ROWS_AT_A_TIME = 64


@dataclass
class CoOccurrence:
    """Streaming; takes k² / 8 bytes (34 MB at k = 16,384), and memory is claimed as codes occur.

    Sets are joined, so the result does not depend on the order of batches or processes.
    """

    codebook_size: int
    bits: Int64[Tensor, "k words"]
    """Bit j of row i: codes i and j were seen in one image. Symmetric; the diagonal marks used codes."""

    @classmethod
    def of(cls, codebook_size: int, *, device: torch.device | str = "cpu") -> "CoOccurrence":
        require_at_least(1, codebook_size=codebook_size)
        words = -(-codebook_size // _WORD)
        return cls(codebook_size, torch.zeros(codebook_size, words, dtype=torch.int64, device=device))

    def update(self, tokens: Integer[Tensor, "b *tokens"]) -> None:
        """Tokens of whole images, one image a row."""
        tokens = require_indices(tokens, self.codebook_size).to(self.bits.device)
        for image in tokens.flatten(1):
            codes = image.unique()
            self.bits[codes] |= self._row(codes)

    def _row(self, codes: Int64[Tensor, " used"]) -> Int64[Tensor, " words"]:
        """The set of codes as bits; a sum of different powers of 2 is their union."""
        row = self.bits.new_zeros(self.bits.shape[1])
        return row.index_add_(0, codes // _WORD, torch.ones_like(codes) << codes % _WORD)

    def merge(self, other: "CoOccurrence") -> "CoOccurrence":
        """Pairs of two parts of a data set."""
        if self.codebook_size != other.codebook_size:
            sizes = f"{self.codebook_size} and {other.codebook_size}"
            raise LGQError(f"pairs of codebooks of different sizes cannot be merged, got {sizes}.")
        return CoOccurrence(self.codebook_size, self.bits | other.bits.to(self.bits.device))

    def over_ranks(self) -> "CoOccurrence":
        """Pairs of all processes."""
        if world_size() == 1:
            return self
        parts = [_union_over_ranks(rows) for rows in self.bits.split(_ROWS_AT_A_TIME)]
        return CoOccurrence(self.codebook_size, torch.cat(parts))

    @property
    def pairs(self) -> int:
        """Number of pairs that were seen."""
        histogram = self.bits.view(torch.uint8).flatten().bincount(minlength=256).tolist()
        ones = sum(count * byte.bit_count() for byte, count in enumerate(histogram))
        return (ones - self._used()) // 2

    def _used(self) -> int:
        codes = torch.arange(self.codebook_size, device=self.bits.device)
        return int((self.bits[codes, codes // _WORD] >> codes % _WORD & 1).sum())

    @property
    def density(self) -> float:
        """Share of all pairs that were seen; 0 of a single code, which has none."""
        return self.pairs / max(self.codebook_size * (self.codebook_size - 1) // 2, 1)


def _union_over_ranks(words: Int64[Tensor, "rows words"]) -> Int64[Tensor, "rows words"]:
    """By sums, the only reduction that every backend has for these types."""
    places = torch.arange(_WORD, device=words.device)
    processes = sum_over_ranks((words[..., None] >> places & 1).int())
    return ((processes > 0).long() << places).sum(-1)


def mutual_information(a: Integer[Tensor, " n"], b: Integer[Tensor, " n"]) -> float:
    """H(a) + H(b) - H(a, b) of the observed frequencies, in nats; 0 of no images."""
    a_places, b_places = (x.unique(return_inverse=True)[1] for x in (a, b))
    joint = a_places * max(len(b), 1) + b_places
    return _entropy(a_places) + _entropy(b_places) - _entropy(joint)


def _entropy(labels: Int64[Tensor, " n"]) -> float:
    """As a sum over the values in their order, so that the order of images does not show in a single bit."""
    n = max(len(labels), 1)
    counts = labels.unique(return_counts=True)[1].double()
    return math.log(n) - float((counts * counts.log()).sum()) / n


@dataclass
class PositionPairs:
    """Streaming tokens at random pairs of positions: 8 p bytes an image, so 1.3 MB for 5,000 images."""

    grid: tuple[int, int]
    pairs: Int64[Tensor, "p 2"]
    """Positions in reading order, the lower one first."""
    parts: list[Int32[Tensor, "_ p 2"]] = field(default_factory=list)
    """Tokens at these positions, batch by batch."""

    @classmethod
    def of(cls, grid: tuple[int, int], *, pairs: int = 32, seed: int = 0) -> "PositionPairs":
        """Different pairs of two different positions; all of them where a grid has fewer."""
        positions = grid[0] * grid[1]
        require_at_least(1, pairs=pairs)
        if positions < 2:
            raise LGQError(f"mutual information needs 2 positions or more, got a grid of {grid}.")
        possible = range(positions * (positions - 1) // 2)
        chosen = random.Random(seed).sample(possible, min(pairs, len(possible)))
        return cls(grid, torch.tensor([_pair(number) for number in sorted(chosen)]))

    def update(self, tokens: Integer[Tensor, "b h w"]) -> None:
        if tuple(tokens.shape[1:]) != self.grid:
            raise LGQError(f"expected images of {self.grid} tokens, got shape {tuple(tokens.shape)}.")
        self.parts.append(tokens.cpu().flatten(1)[:, self.pairs].int())

    def merge(self, other: "PositionPairs") -> "PositionPairs":
        """Tokens of two parts of a data set."""
        if self.grid != other.grid or not torch.equal(self.pairs, other.pairs):
            raise LGQError("tokens at different pairs cannot be merged: use one grid, number and seed.")
        return PositionPairs(self.grid, self.pairs, self.parts + other.parts)

    def over_ranks(self) -> "PositionPairs":
        """Tokens of all processes."""
        sizes = stack_over_ranks(torch.tensor(self.images)).tolist()
        every = self.pairs.new_zeros(sum(sizes), len(self.pairs), 2, dtype=torch.int32)
        start = sum(sizes[: rank()])
        every[start : start + self.images] = self.tokens
        return PositionPairs(self.grid, self.pairs, [sum_over_ranks(every)])

    @property
    def images(self) -> int:
        return sum(map(len, self.parts))

    @property
    def tokens(self) -> Int32[Tensor, "n p 2"]:
        return torch.cat([self.pairs.new_zeros(0, len(self.pairs), 2, dtype=torch.int32), *self.parts])

    @property
    def information(self) -> float:
        """Mean over the pairs, in nats."""
        each = [mutual_information(*pair.unbind(1)) for pair in self.tokens.unbind(1)]
        return sum(each) / len(each)

    @property
    def ceiling(self) -> float:
        """log n: what the estimate cannot exceed, whatever the tokens are."""
        return math.log(max(self.images, 1))


def _pair(number: int) -> tuple[int, int]:
    """Unordered pairs, counted: (0, 1), (0, 2), (1, 2), (0, 3), ..."""
    higher = (1 + math.isqrt(1 + 8 * number)) // 2
    return number - higher * (higher - 1) // 2, higher


@dataclass
class CodeGeometry:
    """Streaming and exact: the result does not depend on the order of batches or processes."""

    usage: CodeUsage
    together: CoOccurrence
    positions: PositionPairs

    @classmethod
    def of(
        cls,
        codebook_size: int,
        *,
        grid: tuple[int, int],
        pairs: int = 32,
        seed: int = 0,
        device: torch.device | str = "cpu",
    ) -> "CodeGeometry":
        """grid: tokens along the height and the width; pairs: of positions, for mutual information."""
        return cls(
            CodeUsage.of(codebook_size, device=device),
            CoOccurrence.of(codebook_size, device=device),
            PositionPairs.of(grid, pairs=pairs, seed=seed),
        )

    def update(self, tokens: Integer[Tensor, "b h w"]) -> None:
        """Tokens of one codebook; of a residual quantizer, one stage."""
        tokens = require_indices(tokens, self.together.codebook_size)
        self.positions.update(tokens)  # first: it may refuse the grid, and then nothing was counted
        self.usage.update(tokens)
        self.together.update(tokens)

    def merge(self, other: "CodeGeometry") -> "CodeGeometry":
        """Of two parts of a data set."""
        return CodeGeometry(
            self.usage.merge(other.usage),
            self.together.merge(other.together),
            self.positions.merge(other.positions),
        )

    def over_ranks(self) -> "CodeGeometry":
        """Of all processes."""
        return CodeGeometry(self.usage.over_ranks(), self.together.over_ranks(), self.positions.over_ranks())

    def summary(self) -> dict[str, float]:
        """The numbers a table shows."""
        return self.usage.summary() | {
            "cooccurrence_density": self.together.density,
            "mutual_information": self.positions.information,
            "mutual_information_ceiling": self.positions.ceiling,
        }
