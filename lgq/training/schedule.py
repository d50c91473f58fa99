"""The learning rate over training, as a multiplier that depends on the step alone."""

import math
from dataclasses import dataclass
from typing import Literal, get_args

from lgq.checks import require_at_least, require_between, require_one_of

Kind = Literal["constant", "cosine"]


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """A linear rise to 1, then what `kind` says."""

    kind: Kind = "constant"
    """After the rise: stay at 1, or fall to `final` along half a cosine (Loshchilov & Hutter 2017)."""
    warmup_steps: int = 0
    """Steps before the multiplier is 1. Step 0 has 1 / (warmup_steps + 1), so that it learns already."""
    final: float = 0.0
    """Multiplier at the end of the cosine; `constant` has no use for it."""

    def __post_init__(self) -> None:
        require_one_of(get_args(Kind), kind=self.kind)
        require_at_least(0, warmup_steps=self.warmup_steps)
        require_between(0, 1, final=self.final)

    def multiplier(self, step: int, total_steps: int) -> float:
        """Exactly 1 at step `warmup_steps`; exactly the end value at `total_steps`, and after it."""
        require_at_least(0, step=step)
        _require_room(self.warmup_steps, total_steps)
        if step < self.warmup_steps:
            return (step + 1) / (self.warmup_steps + 1)
        if self.kind == "constant":
            return 1.0
        progress = min(1.0, (step - self.warmup_steps) / (total_steps - self.warmup_steps))
        height = (1 + math.cos(math.pi * progress)) / 2
        return height + (1 - height) * self.final


def _require_room(warmup_steps: int, total_steps: int) -> None:
    if warmup_steps >= total_steps:
        raise ValueError(
            f"warmup_steps must be fewer than the steps of the run, got {warmup_steps} of {total_steps}: "
            "shorten the warm-up or lengthen the run."
        )
