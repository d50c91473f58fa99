"""What a run measures as it goes: RUN/metrics.jsonl, a record a line, TensorBoard, and a progress bar.

    {"step": 100, "split": "train", "seconds": 41.7, "values": {"l1": 0.21, ...}}

`seconds` is the time that the run has taken so far. All else depends on the run's settings alone,
so a run that was stopped and resumed has the records of one that was not.

Weights & Biases as one more place for a run's records. It may refuse to begin, but it never ends a run.

RUN/wandb.json keeps which W&B run it is, and a resumed run continues it. Steps that a killed run has
to do again are there twice, with the same values.
"""

import json
import logging
import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from lgq.files import json_bytes, make_directory, replace_file, replace_json, sync_directory
from lgq.training.run_directory import RunError

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

METRICS, TENSORBOARD = "metrics.jsonl", "tensorboard"


class Journal:
    """The records of a run: a killed process loses none, and a power cut none from before a `sync`."""

    def __init__(self, file: FileIO, board: "SummaryWriter", tracker: "WandbTracker | None"):
        self._file, self._board, self._tracker = file, board, tracker

    def record(
        self, step: int, split: str, values: dict[str, float], *, seconds: float, **notes: Any
    ) -> None:
        """Add a record; `notes` are further fields that are no numbers over time.

        A value that is no finite number becomes null in the file: JSON knows none.
        """
        plain = {name: value if _is_finite(value) else None for name, value in values.items()}
        record = {"step": step, "split": split, "seconds": round(seconds, 3), "values": plain, **notes}
        self._file.write(json_bytes(record))
        for name, value in values.items():
            self._board.add_scalar(f"{split}/{name}", value, step)
        self._board.flush()
        if self._tracker is not None:
            self._tracker.record(step, split, values)

    def sync(self) -> None:
        """Wait until the disk has all records, so that what is saved next is never ahead of them."""
        os.fsync(self._file.fileno())


@contextmanager
def open_journal(run: Path, *, step: int, tracker: "WandbTracker | None" = None) -> Iterator[Journal]:
    """Go on after `step`: later records are of a future that the run left, and are dropped first."""
    # A second and more to import, which only the process that writes has to pay.
    from torch.utils.tensorboard import SummaryWriter

    make_directory(run)
    _drop_after(run / METRICS, step)
    # A record is one unbuffered write: a killed process leaves it whole, or torn at the end.
    with (run / METRICS).open("ab", buffering=0) as file:
        sync_directory(run)
        board = SummaryWriter(str(run / TENSORBOARD), purge_step=step + 1)
        try:
            yield Journal(file, board, tracker)
        finally:
            board.close()


def read_records(run: str | Path) -> list[dict[str, Any]]:
    """The records of a run directory, without a last line that a killed process left torn."""
    file = Path(run) / METRICS
    return [record for _, record in _records(file, file.read_bytes())] if file.exists() else []


def _drop_after(file: Path, step: int) -> None:
    if not file.exists():
        return
    data = file.read_bytes()
    kept = b"".join(line for line, record in _records(file, data) if record["step"] <= step)
    if kept != data:
        replace_file(file, kept)


def _records(file: Path, data: bytes) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Every line with its record, but a torn last one."""
    lines = data.splitlines(keepends=True)
    for number, line in enumerate(lines, 1):
        record = _record(line)
        if record is not None:
            yield line, record
        elif number < len(lines):
            way_out = "restore the file from a copy, or remove the line"
            raise RunError(f"line {number} of {file} is damaged: {way_out}; the checkpoints do not need it.")


def _record(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
        whole = line.endswith(b"\n") and isinstance(record["step"], int)
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return record if whole else None


def _is_finite(value: float) -> bool:
    return abs(value) < float("inf")


WANDB = "wandb.json"

_log = logging.getLogger(__name__)


class WandbTracker:
    """Sends records to a W&B run until that fails for the first time.

    run: the run directory.
    project: its name, or owner/name.
    config: the settings that W&B shows.
    resumed: a run that has got somewhere goes on without W&B where this one cannot begin.
    """

    def __init__(self, run: Path, project: str, config: dict[str, Any], *, resumed: bool):
        self._wandb_run: Any = None
        run_id = _run_id(run, project)
        try:
            self._wandb_run = _start(run, project, run_id, config)
        except ImportError as error:
            way_out = "install it with: pip install 'lgq[wandb]', or leave wandb unset"
            raise RunError(f"wandb={project!r} needs a package that is not here: {way_out}.") from error
        except Exception as error:
            if not resumed:
                way_out = "log in with `wandb login`, or set WANDB_MODE=offline in the environment"
                raise RunError(f"Weights & Biases does not start: {error}; {way_out}.") from error
            _log.warning("Weights & Biases does not start, the run goes on without it: %s", error)

    def record(self, step: int, split: str, values: dict[str, float]) -> None:
        named = {f"{split}/{name}": value for name, value in values.items()}
        self._attempt(lambda run: run.log({"step": step, **named}))

    def __enter__(self) -> "WandbTracker":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._attempt(lambda run: run.finish(exit_code=int(kind is not None)))

    def _attempt(self, action: Callable[[Any], None]) -> None:
        if self._wandb_run is None:
            return
        try:
            action(self._wandb_run)
        except Exception as error:
            self._wandb_run = None
            _log.warning("Weights & Biases failed, the run goes on without it: %s", error)


def _start(run: Path, project: str, run_id: str, config: dict[str, Any]) -> Any:
    # Seconds to import, and an extra of this package.
    from wandb import Settings, init

    owner, _, name = project.rpartition("/")
    wandb_run = init(
        entity=owner or None,
        project=name,
        id=run_id,
        name=run.resolve().name,
        dir=run,
        config=config,
        resume="allow",
        settings=Settings(console="off"),  # the progress bar is not for its log
    )
    # W&B's own steps must never fall back, as those of a resumed run do.
    wandb_run.define_metric("*", step_metric="step")
    return wandb_run


def _run_id(run: Path, project: str) -> str:
    """The one that this directory has in this project already, or a new one, which it keeps."""
    file = run / WANDB
    known: dict[str, str] = json.loads(file.read_text()) if file.exists() else {}
    if known.get("project") != project:
        known = {"project": project, "id": uuid.uuid4().hex[:8]}
        replace_json(file, known)
    return known["id"]
