"""Geometry of a codebook (paper, section 5): which codes meet in an image, and how much a token says
about another one.

b = images, k = codes, n = images in all, p = position pairs.
"""

import math
import random
from dataclasses import dataclass, field

import torch
from jaxtyping import Int32, Int64, Integer
from torch import Tensor

from lgq.checks import require_indices
from lgq.distributed import rank, stack_over_ranks, sum_over_ranks, world_size

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
    counts = labels.unique(return_counts=True)[1].cpu().double()
    return math.log(n) - float((counts * counts.log()).sum()) / n


@dataclass
class PositionPairs:
    """Tokens at random pairs of positions, for mutual information; 8 p bytes per image.

    The estimate is the plug-in one: the formula, applied to observed frequencies. It cannot exceed log n,
    and comes close where images are few compared with codes. So it ranks tokenizers, and is no absolute
    measure.
    """

    pairs: Int64[Tensor, "p 2"]
    """Positions in reading order, the lower one first."""
    batches: list[Int32[Tensor, "_ p 2"]] = field(default_factory=list)
    """Tokens at these positions."""

    @classmethod
    def empty(cls, positions: int, *, pairs: int = 32) -> "PositionPairs":
        """Choose different pairs of 2 or more positions of an image; all of them where there are fewer."""
        possible = range(positions * (positions - 1) // 2)
        chosen = random.Random(0).sample(possible, min(pairs, len(possible)))
        return cls(torch.tensor([_numbered_pair(number) for number in sorted(chosen)]))

    def update(self, tokens: Integer[Tensor, "b *tokens"]) -> None:
        self.batches.append(tokens.cpu().flatten(1)[:, self.pairs].int())

    def over_ranks(self) -> "PositionPairs":
        """Return the tokens of all processes."""
        tokens = self.tokens
        sizes = stack_over_ranks(torch.tensor(len(tokens))).tolist()
        start = sum(sizes[: rank()])
        shared = tokens.new_zeros(sum(sizes), len(self.pairs), 2)
        shared[start : start + len(tokens)] = tokens
        return PositionPairs(self.pairs, [sum_over_ranks(shared)])

    @property
    def tokens(self) -> Int32[Tensor, "n p 2"]:
        return torch.cat([self.pairs.new_zeros(0, len(self.pairs), 2, dtype=torch.int32), *self.batches])

    def summary(self) -> dict[str, float]:
        """Return the mean over the pairs in nats, and log n, which no tokens can exceed."""
        values = [mutual_information(*pair.unbind(1)) for pair in self.tokens.unbind(1)]
        ceiling = math.log(max(len(self.tokens), 1))
        return {"mutual_information": sum(values) / len(values), "mutual_information_ceiling": ceiling}


def _numbered_pair(number: int) -> tuple[int, int]:
    """Return a pair by its number in the order (0, 1), (0, 2), (1, 2), (0, 3), ..."""
    higher = (1 + math.isqrt(1 + 8 * number)) // 2
    return number - higher * (higher - 1) // 2, higher
