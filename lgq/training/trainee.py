"""What the loop trains: anything that takes a step, validates, and can be saved to the last bit."""

from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from torch import Tensor


@runtime_checkable
class Trainee(Protocol):
    """What learns. With several processes every method is called on every rank, in the same order."""

    score: str
    """The value of `validate` that decides which weights are the best."""
    higher_is_better: bool
    items_per_step: int
    """Over all ranks; for the rate that is shown."""

    def config(self) -> dict[str, Any]:
        """All that the result depends on, resolved, as JSON; with a `seed`."""

    def train_step(self, step: int) -> dict[str, Tensor]:
        """One optimizer step, the `step`-th from 0; detached scalars, in the order in which one spoils
        the next. May raise `NonFiniteError` where it cannot go on."""

    def validate(self, step: int) -> dict[str, float]:
        """After `step` steps, the same on every rank; draws no random numbers."""

    def state(self) -> dict[str, Any]:
        """All that `load_state` needs to go on to the last bit, but the random states."""

    def load_state(self, state: dict[str, Any]) -> None: ...

    def save_pretrained(self, directory: Path) -> None:
        """Write what users load; on the first rank alone."""

    def describe_batch(self) -> list[str]:
        """Names of the files in the present batch of this rank."""


class NonFiniteError(ArithmeticError):
    """Raised by a trainee that met NaN or infinity before it had a loss; names the term."""
