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
    checkpoints = Checkpoints(run / "checkpoints")
    states = {path.name: checkpoints.load(path, rank) for path in checkpoints.paths()}
    for state in states.values():
        state.pop("seconds", None)  # further ranks keep no time
        del state["random"]["python"]  # the type checker of the tests draws from it
    return states


def last_state(run: Path, rank: int = 0) -> Any:
    return next(iter(saved_states(run, rank).values()))


def timeless_records(run: Path) -> list[dict[str, Any]]:
    return [
        {name: value for name, value in record.items() if name != "seconds"} for record in read_records(run)
    ]
