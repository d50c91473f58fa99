"""RESULTS, the directory of experiments: where runs lay their records down, and how reports find them.

    RESULTS/experiments/<name>.json   what was asked: a `Plan`, with the id of every row's run
    RESULTS/rows/<id>.json            the record of a run, written once: that it is there means finished
    RESULTS/runs/<id>/                its run directory: config.json, metrics.jsonl, best/, last/, ...
    RESULTS/tokens/<id>/              tokens of a tokenizer, <id>-validation/ of its validation images
    RESULTS/pictures/<id>/            PNG files; pictures/originals.png has the images behind them
    RESULTS/locks/<id>/               held by the process that is at work on a row

Plans and records carry a checksum, by which a changed one is refused.
Several processes and machines may share it: a run has one id, whichever experiments ask for it.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lgq.config import ConfigError, from_json, to_json
from lgq.errors import LGQError
from lgq.files import DamagedFileError, make_directory, replace_file, sealed_json, unsealed_json
from lgq.results import strict

ORIGINALS = "originals.png"


class RowsError(LGQError):
    """Results that cannot be read, or do not go together; the message says why, and the way out."""


@dataclass(frozen=True, kw_only=True)
class PlannedRow:
    """A row of a table, with one training seed."""

    row: str
    """Short name of the row within its experiment, the same for all seeds."""
    label: str
    """What the table calls it."""
    group: str
    """Rows that belong together, such as those of one codebook size; may be empty."""
    kind: str
    """tokenizer, generator or cost."""
    seed: int
    id: str
    """Of the run."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What an experiment asks for."""

    experiment: str
    title: str
    paper: str
    """Label of the table in the LGQ paper; empty where it has none."""
    about: str
    """What the table shows, and what to know when reading it."""
    scale: str
    data: str
    """Images to train on, as the user named them."""
    validation_data: str
    images: str
    """Fingerprint of both."""
    shown: str
    """Images to look at, as the user named them."""
    protocol: dict[str, Any]
    """What all rows have in common beyond the scale, such as `steps`."""
    rows: tuple[PlannedRow, ...]

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(sorted({row.seed for row in self.rows}))

    def merged(self, earlier: "Plan") -> "Plan":
        """With the rows of an earlier call of the same experiment too, each row's seeds together."""
        own = {(row.row, row.seed) for row in self.rows}
        rows = [*self.rows, *(row for row in earlier.rows if (row.row, row.seed) not in own)]
        names = list(dict.fromkeys(row.row for row in rows))
        return replace(self, rows=tuple(sorted(rows, key=lambda row: (names.index(row.row), row.seed))))


class ResultsDirectory:
    """The places in a RESULTS directory; nothing is made before something is written."""

    def __init__(self, root: str | Path):
        self.root = Path(root)

    def run(self, id: str) -> Path:
        return self.root / "runs" / id

    def tokens(self, id: str) -> Path:
        return self.root / "tokens" / id

    def validation_tokens(self, id: str) -> Path:
        return self.root / "tokens" / f"{id}-validation"

    def pictures(self, id: str) -> Path:
        return self.root / "pictures" / id

    def lock(self, id: str) -> Path:
        return self.root / "locks" / id

    @property
    def originals(self) -> Path:
        return self.root / "pictures" / ORIGINALS

    def is_finished(self, id: str) -> bool:
        return self._row(id).is_file()

    def record(self, id: str) -> dict[str, Any] | None:
        """Of a finished row; None where there is none yet."""
        return _read(self._row(id)) if self.is_finished(id) else None

    def records(self) -> dict[str, dict[str, Any]]:
        """Of all finished rows, by id."""
        return {file.stem: _read(file) for file in sorted((self.root / "rows").glob("*.json"))}

    def plan(self, experiment: str) -> Plan | None:
        """What was asked of an experiment so far."""
        file = self._plan(experiment)
        return _plan(file) if file.is_file() else None

    def plans(self) -> dict[str, Plan]:
        """Of all experiments, by name."""
        return {file.stem: _plan(file) for file in sorted((self.root / "experiments").glob("*.json"))}

    def write_record(self, id: str, record: dict[str, Any]) -> None:
        """In one step, when all else of the row is on the disk."""
        make_directory(self._row(id).parent)
        replace_file(self._row(id), sealed_json(strict(record)))

    def write_plan(self, plan: Plan) -> None:
        make_directory(self._plan(plan.experiment).parent)
        replace_file(self._plan(plan.experiment), sealed_json(to_json(plan)))

    def write_pictures(self, id: str, pictures: dict[str, bytes]) -> None:
        """Each by the stem of its file."""
        folder = self.pictures(id)
        make_directory(folder)
        for stem, picture in pictures.items():
            replace_file(folder / f"{stem}.png", picture)

    def _row(self, id: str) -> Path:
        return self.root / "rows" / f"{id}.json"

    def _plan(self, experiment: str) -> Path:
        return self.root / "experiments" / f"{experiment}.json"


def _plan(file: Path) -> Plan:
    try:
        return from_json(Plan, _read(file))
    except ConfigError as error:
        raise RowsError(f"{file} is no plan that this lgq knows: {error}") from error


def _read(file: Path) -> dict[str, Any]:
    try:
        return unsealed_json(file.read_bytes())
    except OSError as error:
        raise RowsError(f"cannot read {file} ({error}): check the path.") from error
    except DamagedFileError as error:
        raise RowsError(f"{file} {error}: remove it, and run its experiment again.") from error
