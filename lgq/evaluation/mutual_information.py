"""How much one token of an image says about another: mutual information of random pairs of positions.

n = images, p = pairs of positions, h w = tokens along the height and the width.

The estimate is the plug-in one: the formula, applied to observed frequencies. It cannot exceed log n,
and comes near that whenever images are few beside codes, so it ranks tokenizers and measures none.
"""

import math
import random
from dataclasses import dataclass, field

import torch
from jaxtyping import Int32, Int64, Integer
from torch import Tensor

from lgq.checks import require_at_least
from lgq.distributed import rank, stack_over_ranks, sum_over_ranks


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
            raise ValueError(f"mutual information needs 2 positions or more, got a grid of {grid}.")
        possible = range(positions * (positions - 1) // 2)
        chosen = random.Random(seed).sample(possible, min(pairs, len(possible)))
        return cls(grid, torch.tensor([_pair(number) for number in sorted(chosen)]))

    def update(self, tokens: Integer[Tensor, "b h w"]) -> None:
        if tuple(tokens.shape[1:]) != self.grid:
            raise ValueError(f"expected images of {self.grid} tokens, got shape {tuple(tokens.shape)}.")
        self.parts.append(tokens.cpu().flatten(1)[:, self.pairs].int())

    def merge(self, other: "PositionPairs") -> "PositionPairs":
        """Tokens of two parts of a data set."""
        if self.grid != other.grid or not torch.equal(self.pairs, other.pairs):
            raise ValueError("tokens at different pairs cannot be merged: use one grid, number and seed.")
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
