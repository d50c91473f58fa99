"""What a run leaves behind but times, to compare runs by; and a TensorBoard that leaves nothing."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from lgq.training.checkpoint import Checkpoints
from lgq.training.journal import read_records


class NoBoard:
    def __init__(self, *args, **kwargs):
        pass

    def add_scalar(self, *args) -> None:
        pass

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


NO_TENSORBOARD = SimpleNamespace(SummaryWriter=NoBoard)


def saved_states(run: Path, rank: int = 0) -> dict[str, Any]:
    """Every checkpoint by its name, newest first."""
    return {path.name: _state(path, rank) for path in Checkpoints(run / "checkpoints").paths()}


def last_state(run: Path, rank: int = 0) -> Any:
    return _state(Checkpoints(run / "checkpoints").paths()[0], rank)


def _state(path: Path, rank: int) -> Any:
    state = Checkpoints(path.parent).load(path, rank)
    state.pop("seconds", None)  # further ranks keep no time
    del state["random"]["python"]  # the type checker of the tests draws from it
    return state


def timeless_records(run: Path) -> list[dict[str, Any]]:
    return [
        {name: value for name, value in record.items() if name != "seconds"} for record in read_records(run)
    ]
