"""States and records of a run without times, to compare runs; and a TensorBoard that writes nothing."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

from lgq.training.checkpoint import Checkpoints
from lgq.training.journal import read_records

NO_TENSORBOARD = SimpleNamespace(SummaryWriter=MagicMock())


def saved_states(run: Path, rank: int = 0) -> dict[str, Any]:
    """Return the state in every checkpoint by name, newest first."""
    return {path.name: _state(path, rank) for path in Checkpoints(run / "checkpoints").paths()}


def last_state(run: Path, rank: int = 0) -> Any:
    return _state(Checkpoints(run / "checkpoints").paths()[0], rank)


def _state(path: Path, rank: int) -> Any:
    state = Checkpoints(path.parent).load(path, rank)
    state.pop("seconds", None)  # only rank 0 has it
    del state["random"]["python"]  # the type checker of the tests uses it
    return state


def timeless_records(run: Path) -> list[dict[str, Any]]:
    return [
        {name: value for name, value in record.items() if name != "seconds"} for record in read_records(run)
    ]
