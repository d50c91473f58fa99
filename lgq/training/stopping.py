"""When is a run over? After its steps, its epochs or its time, when it no longer improves, or when asked."""

import math
from dataclasses import dataclass, replace
from typing import Literal

from lgq.checks import require_above_zero, require_at_least
from lgq.training.signals import INTERRUPTED

Reason = Literal["finished", "interrupted", "out_of_time", "no_improvement"]


@dataclass(frozen=True, kw_only=True)
class LoopSettings:
    """How long a run goes on, and what it leaves behind on the way."""

    steps: int = 20_000
    """Optimizer steps of the whole run, over which schedules and temperatures go their way."""
    epochs: float | None = None
    """Passes over the data after which the run is over, if these come before `steps`: a run that knows
    its data lowers its `steps` to them. None has no such limit."""
    log_every: int = 50
    """Steps from one training record to the next."""
    validate_every: int = 1_000
    """Steps from one validation to the next; the last step has one in any case."""
    checkpoint_every: int = 1_000
    """Steps that a killed run may have to do again; a new best score has a checkpoint in any case."""
    keep: int = 3
    """Checkpoints to keep, the newest ones."""
    patience: int | None = None
    """Stop after this many validations in a row without a better score; None never does."""
    minutes: float | None = None
    """Stop after this time, which counts over restarts; None has no limit."""
    wandb: str | None = None
    """Project of Weights & Biases, or owner/project, that gets the records too; None does without."""

    def __post_init__(self) -> None:
        require_at_least(1, steps=self.steps, log_every=self.log_every, validate_every=self.validate_every)
        require_at_least(1, checkpoint_every=self.checkpoint_every, keep=self.keep)
        if self.patience is not None:
            require_at_least(1, patience=self.patience)
        limits = {"epochs": self.epochs, "minutes": self.minutes}
        require_above_zero(**{name: limit for name, limit in limits.items() if limit is not None})

    def for_data(self, items: int, items_per_step: int) -> "LoopSettings":
        """With `steps` lowered to those that take `epochs` passes over this many items, rounded up."""
        if self.epochs is None:
            return self
        # Rounded first: 0.1 of 30 items are 3, though not in binary fractions.
        whole = math.ceil(round(self.epochs * items / items_per_step, 6))
        return replace(self, steps=min(self.steps, max(1, whole)))


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a run ended."""

    reason: Reason
    step: int
    """Optimizer steps done, over all restarts."""
    best: float | None
    """The best score of a validation, if there was one."""
    best_step: int | None

    @property
    def exit_code(self) -> int:
        """75 where the same command should be run again, 0 where the run is over."""
        return INTERRUPTED if self.reason == "interrupted" else 0


@dataclass
class Best:
    """The best score so far, and how long ago it was."""

    score: float | None = None
    step: int | None = None
    validations_since: int = 0

    def take(self, score: float, step: int, *, higher_is_better: bool) -> bool:
        """Whether this score is the best one."""
        better = self.score is None or (score > self.score if higher_is_better else score < self.score)
        if better and math.isfinite(score):
            self.score, self.step, self.validations_since = score, step, 0
            return True
        self.validations_since += 1
        return False
