"""The geometry of a codebook (paper, section 5): how evenly codes are used, and how freely they combine.

b = images, h w = tokens along the height and the width.

    geometry = CodeGeometry.of(16_384, grid=(16, 16))
    geometry.update(tokens)                              # per batch
    geometry.over_ranks().summary()
"""

from dataclasses import dataclass

import torch
from jaxtyping import Integer
from torch import Tensor

from lgq.checks import require_indices
from lgq.evaluation.codebook import CodeUsage
from lgq.evaluation.cooccurrence import CoOccurrence
from lgq.evaluation.mutual_information import PositionPairs


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
