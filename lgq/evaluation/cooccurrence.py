"""Which codes combine: pairs of codes seen together in some image, a bit a pair.   k = codes, b = images.

Pairs are unordered and of two different codes, a < b: a codebook has k (k - 1) / 2 of them. However
often, and wherever in an image, two codes meet, they are one pair.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Int64, Integer
from torch import Tensor

from lgq.checks import require_at_least, require_indices
from lgq.distributed import sum_over_ranks, world_size

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
            raise ValueError(f"pairs of codebooks of different sizes cannot be merged, got {sizes}.")
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
