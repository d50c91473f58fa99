"""RESULTS, the directory in which experiments write their records and from which reports read them.

    RESULTS/experiments/<name>.json   what was asked for: a `Plan`, with the id of every row's run
    RESULTS/rows/<id>.json            record of a run, written once: a row with a record is finished
    RESULTS/runs/<id>/                its run directory: config.json, metrics.jsonl, best/, last/, ...
    RESULTS/tokens/<id>/              tokens of a tokenizer's training images; those of the two halves of the
                                      validation images are in <id>-choosing/ and <id>-reported/
    RESULTS/latents/<id>.safetensors  latents of an autoencoder's training images
    RESULTS/pictures/<id>/            PNG files; pictures/originals.png has the images behind them
    RESULTS/locks/<id>/               held by the process that works on a row

Plans and records carry a checksum, so that a changed file is refused.
Several processes and machines may share the directory: a run has one id, whichever experiments ask for it.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lgq.config import ConfigError, from_json, to_json
from lgq.files import DamagedFileError, sealed_json, unsealed_json, write_file
from lgq.results import ResultsError, strict


@dataclass(frozen=True, kw_only=True)
class PlannedRow:
    """A row of a table with one training seed."""

    row: str
    """Short name of the row within its experiment, the same for all seeds."""
    label: str
    """Name of the row in the table."""
    group: str
    """Heading that the row shares with others, such as a codebook size; may be empty."""
    kind: str
    """autoencoder, tokenizer, generator, gaussian, latents, speech or cost."""
    seed: int
    id: str
    """Id of the run."""

    def __str__(self) -> str:
        seed = "" if self.kind == "cost" else f"seed {self.seed}"
        return ", ".join(filter(None, (self.label, self.group, seed)))


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What an experiment asks for."""

    experiment: str
    title: str
    paper: str
    """Number of the table in the LGQ paper; empty where the paper has none."""
    about: str
    """What the table shows, and what to know when reading it."""
    scale: str
    data: str
    """Training images, as the user named them."""
    validation_data: str
    images: str
    """Fingerprint of the training and the validation images."""
    shown: str
    """Images to show, as the user named them."""
    protocol: dict[str, Any]
    """What all rows have in common beyond the scale, such as `steps`."""
    rows: tuple[PlannedRow, ...]

    def merged(self, earlier: "Plan") -> "Plan":
        """Return this plan with the rows of an earlier call too, the seeds of each row together."""
        own = {(row.row, row.seed) for row in self.rows}
        rows = [*self.rows, *(row for row in earlier.rows if (row.row, row.seed) not in own)]
        names = list(dict.fromkeys(row.row for row in rows))
        return replace(self, rows=tuple(sorted(rows, key=lambda row: (names.index(row.row), row.seed))))


class ResultsDirectory:
    """Paths, plans and records in a RESULTS directory; nothing is created before something is written."""

    def __init__(self, root: str | Path):
        self.root = Path(root)

    def run(self, id: str) -> Path:
        return self.root / "runs" / id

    def tokens(self, id: str) -> Path:
        return self.root / "tokens" / id

    def latents(self, id: str) -> Path:
        return self.root / "latents" / f"{id}.safetensors"

    def pictures(self, id: str) -> Path:
        return self.root / "pictures" / id

    def lock(self, id: str) -> Path:
        return self.root / "locks" / id

    @property
    def originals(self) -> Path:
        return self.root / "pictures" / "originals.png"

    def is_finished(self, id: str) -> bool:
        return self._row(id).is_file()

    def record(self, id: str) -> dict[str, Any] | None:
        """Return the record of a row; None where it is not finished."""
        return _read(self._row(id)) if self.is_finished(id) else None

    def require_intact(self, ids: Iterable[str]) -> None:
        """Name all damaged records of these rows in one error."""
        damaged = []
        for id in ids:
            try:
                self.record(id)
            except ResultsError:
                damaged.append(str(self._row(id)))
        if damaged:
            records, them = ("record is", "it") if len(damaged) == 1 else ("records are", "them")
            raise ResultsError(
                f"{len(damaged)} {records} damaged: remove {them}, and run the same command again: "
                f"{', '.join(damaged)}."
            )

    def records(self) -> dict[str, dict[str, Any]]:
        """Return the records of all finished rows, by id."""
        return {file.stem: _read(file) for file in sorted((self.root / "rows").glob("*.json"))}

    def plan(self, experiment: str) -> Plan | None:
        """Return what earlier calls of an experiment asked for; None where there were none."""
        file = self._plan(experiment)
        try:
            return from_json(Plan, _read(file)) if file.is_file() else None
        except ConfigError as error:
            raise ResultsError(f"{file} is no plan that this version of lgq can read: {error}") from error

    def plans(self) -> dict[str, Plan]:
        """Return the plans of all experiments, by name."""
        names = sorted(file.stem for file in (self.root / "experiments").glob("*.json"))
        return {name: plan for name in names if (plan := self.plan(name))}

    def write_record(self, id: str, record: dict[str, Any]) -> None:
        """Write the record in one step, once everything else of the row is on disk."""
        write_file(self._row(id), sealed_json(strict(record)))

    def write_plan(self, plan: Plan) -> None:
        write_file(self._plan(plan.experiment), sealed_json(to_json(plan)))

    def write_pictures(self, id: str, pictures: dict[str, bytes]) -> None:
        """Write PNG files, given by the stems of their names."""
        for stem, picture in pictures.items():
            write_file(self.pictures(id) / f"{stem}.png", picture)

    def _row(self, id: str) -> Path:
        return self.root / "rows" / f"{id}.json"

    def _plan(self, experiment: str) -> Path:
        return self.root / "experiments" / f"{experiment}.json"


def _read(file: Path) -> dict[str, Any]:
    try:
        return unsealed_json(file.read_bytes())
    except OSError as error:
        raise ResultsError(f"cannot read {file} ({error}): check the path.") from error
    except DamagedFileError as error:
        raise ResultsError(f"{file} {error}: remove it, and run its experiment again.") from error
