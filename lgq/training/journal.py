"""Records of a run: RUN/metrics.jsonl with one record per line, TensorBoard, and Weights & Biases.

    {"step": 100, "split": "train", "seconds": 41.7, "values": {"l1": 0.21, ...}}
    {"step": 500, "split": "warning", "seconds": 190.2, "values": {}, "cause": "few_codes", "message": ...}

`seconds` is the training time so far, over restarts. Everything else depends only on the run's settings, so a
run that was stopped and resumed has the records of one that was not.
"""

import json
import logging
import math
import os
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, UInt8
from torch import Tensor

from lgq.data.transforms import to_pixels
from lgq.errors import LGQError
from lgq.files import json_bytes, make_directory, replace_file, replace_json, sync_directory
from lgq.training.watch import WARNING, Finding

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

METRICS, TENSORBOARD, WANDB = "metrics.jsonl", "tensorboard", "wandb.json"
HISTORY = "history"
"""Split of records without values: the weights that the run began with, and changes of its length."""

_log = logging.getLogger(__name__)


class Journal:
    """Writes records: a killed process loses none, and a power cut none from before a `sync`."""

    def __init__(self, file: FileIO, board: "SummaryWriter", tracker: "WandbTracker | None"):
        self._file, self._board, self._tracker = file, board, tracker

    def record(
        self, step: int, split: str, values: dict[str, float], *, seconds: float, **notes: Any
    ) -> None:
        """Add a record; `notes` are further fields, which are not plotted.

        NaN and infinity become null in the file, as JSON has neither.
        """
        finite = {name: value if math.isfinite(value) else None for name, value in values.items()}
        record = {"step": step, "split": split, "seconds": round(seconds, 3), "values": finite, **notes}
        self._file.write(json_bytes(record))
        for name, value in values.items():
            self._board.add_scalar(f"{split}/{name}", value, step)
        self._board.flush()
        if self._tracker is not None and values:
            self._tracker.record(step, split, values)

    def warn(self, step: int, finding: Finding, *, seconds: float) -> None:
        """Add a record of something that will probably make the training fail."""
        self.record(step, WARNING, {}, seconds=seconds, **finding._asdict())
        self._board.add_text(f"{WARNING}/{finding.cause}", finding.message, step)
        self._board.flush()
        if self._tracker is not None:
            self._tracker.alert(finding)

    def show(self, step: int, split: str, pictures: Mapping[str, Float[Tensor, "3 height width"]]) -> None:
        """Give TensorBoard and Weights & Biases images in [-1, 1], by name."""
        pixels = {f"{split}/{name}": to_pixels(image) for name, image in pictures.items()}
        for name, array in pixels.items():
            self._board.add_image(name, array, step, dataformats="HWC")
        self._board.flush()
        if self._tracker is not None:
            self._tracker.show(step, pixels)

    def sync(self) -> None:
        """Wait until all records are on disk, so that no checkpoint is ever ahead of them."""
        os.fsync(self._file.fileno())


@contextmanager
def open_journal(run: Path, *, step: int, tracker: "WandbTracker | None" = None) -> Iterator[Journal]:
    """Continue after `step`: what the run will record again is dropped first.

    Those are the records of later steps, and the history of this one.
    """
    # Takes over a second to import, and only the process that writes needs it.
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
    """Return the records of a run directory, without a last line that a killed process left torn."""
    file = Path(run) / METRICS
    return [record for _, record in _records(file, file.read_bytes())] if file.exists() else []


def _drop_after(file: Path, step: int) -> None:
    if not file.exists():
        return
    data = file.read_bytes()
    # History at a step is written before the next one, so the checkpoint of this step knows none.
    ends = {True: step - 1, False: step}
    lines = ((line, record["step"], record.get("split") == HISTORY) for line, record in _records(file, data))
    kept = b"".join(line for line, when, is_history in lines if when <= ends[is_history])
    if kept != data:
        replace_file(file, kept)


def _records(file: Path, data: bytes) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Yield every line with its record, except a torn last line."""
    lines = data.splitlines(keepends=True)
    for number, line in enumerate(lines, 1):
        record = _record(line)
        if record is not None:
            yield line, record
        elif number < len(lines):
            way_out = "restore the file from a copy, or remove the line"
            raise LGQError(f"line {number} of {file} is damaged: {way_out}; the checkpoints do not need it.")


def _record(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
        whole = line.endswith(b"\n") and isinstance(record["step"], int)
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return record if whole else None


class WandbTracker:
    """Sends records to Weights & Biases until that fails for the first time; a failure never ends a run.

    run: the run directory. Its wandb.json holds the id of the W&B run, which a resumed run continues. Steps
        that a killed run repeats are there twice, with the same values.
    project: name of the project, or owner/name.
    config: the settings that W&B shows.
    resumed: whether the run has trained before. A new run is refused if W&B does not start; a resumed run
        continues without it.
    """

    def __init__(self, run: Path, project: str, config: dict[str, Any], *, resumed: bool):
        self._wandb_run: Any = None
        run_id = _run_id(run, project)
        try:
            self._wandb_run = _start(run, project, run_id, config)
        except ImportError as error:
            way_out = "install it with: pip install 'lgq[wandb]', or leave `wandb` unset"
            raise LGQError(
                f"`wandb` {project!r} needs a package that is not installed: {way_out}."
            ) from error
        except Exception as error:
            if not resumed:
                way_out = "log in with `wandb login`, or set WANDB_MODE=offline in the environment"
                raise LGQError(f"Weights & Biases does not start: {error}; {way_out}.") from error
            _log.warning("Weights & Biases does not start, the run continues without it: %s", error)

    def record(self, step: int, split: str, values: dict[str, float]) -> None:
        named = {f"{split}/{name}": value for name, value in values.items()}
        self._attempt(lambda run: run.log({"step": step, **named}))

    def show(self, step: int, pixels: Mapping[str, UInt8[np.ndarray, "height width 3"]]) -> None:
        def log(run: Any) -> None:
            from wandb import Image

            run.log({"step": step, **{name: Image(array) for name, array in pixels.items()}})

        if pixels:
            self._attempt(log)

    def alert(self, finding: Finding) -> None:
        self._attempt(lambda run: run.alert(title=finding.cause, text=finding.message, level="WARN"))

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
            _log.warning("Weights & Biases failed, the run continues without it: %s", error)


def _start(run: Path, project: str, run_id: str, config: dict[str, Any]) -> Any:
    # An optional package, which takes seconds to import.
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
        settings=Settings(console="off"),  # keeps the progress bar out of its log
    )
    # W&B's own steps must never decrease, as those of a resumed run do.
    wandb_run.define_metric("*", step_metric="step")
    return wandb_run


def _run_id(run: Path, project: str) -> str:
    """Return the id that this directory has in this project, or a new one, which it keeps."""
    file = run / WANDB
    known: dict[str, str] = json.loads(file.read_text()) if file.exists() else {}
    if known.get("project") != project:
        known = {"project": project, "id": uuid.uuid4().hex[:8]}
        replace_json(file, known)
    return known["id"]
