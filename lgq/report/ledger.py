"""RESULTS, as a report reads them: what was asked, what is finished, and what of it is damaged.

RESULTS/experiments/NAME.json   what was asked        RESULTS/rows/ID.json           a finished run
RESULTS/runs/ID/metrics.jsonl   its curves            RESULTS/pictures/ID/*.png      its pictures

    ledger = read_ledger("results")
    ledger.sample("comparison", "psnr", {"quantizer": "lgq"}).mean
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from lgq.experiments.results_directory import Plan, ResultsDirectory, RowsError
from lgq.report.finished import FinishedRun, Where
from lgq.report.intervals import Sample
from lgq.training.journal import METRICS, read_records

Read = TypeVar("Read")
_NEEDED = {"id": str, "kind": str, "metrics": dict}
_DAMAGE = (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError)


@dataclass(frozen=True)
class Ledger:
    """All that a results directory holds."""

    results: ResultsDirectory
    plans: dict[str, Plan]
    """By experiment."""
    runs: dict[str, FinishedRun]
    """By id."""
    damaged: dict[str, str] = field(default_factory=dict)
    """Files that were left out, and why."""

    def finished(self, experiment: str, where: Where | None = None) -> list[FinishedRun]:
        """Runs that an experiment asked for, which have the settings, in its order."""
        asked = self.plans[experiment].rows if experiment in self.plans else ()
        ids = dict.fromkeys(row.id for row in asked)
        return [self.runs[id] for id in ids if id in self.runs and self.runs[id].has(where or {})]

    def leave_out(self, path: Path, error: Exception) -> None:
        """Note a file as damaged; of its place, the page need not know more than where it is in RESULTS."""
        self.damaged[str(path.relative_to(self.results.root))] = reason(error, path)

    def sample(self, experiment: str, metric: str, where: Where | None = None) -> Sample | None:
        """A metric over the seeds of the runs with these settings; none where nobody measured it."""
        return sample_of(self.finished(experiment, where), metric)


def sample_of(runs: Iterable[FinishedRun], metric: str) -> Sample | None:
    """A metric over runs that differ in their seeds alone."""
    found = [(run, value) for run in runs if (value := run.value(metric)) is not None]
    if not found:
        return None
    return Sample(tuple(value for _, value in found), tuple(run.id for run, _ in found))


def read_ledger(directory: str | Path) -> Ledger:
    """Everything; a file that is damaged is named in the ledger, and left out."""
    results, damaged = ResultsDirectory(directory), dict[str, str]()
    if not results.root.is_dir():
        raise RowsError(
            f"there is no directory {directory}: give the one that `lgq experiment --out` filled."
        )
    records = _read_all(results, "rows", lambda id: _checked(results.record(id), id), damaged)
    plans = _read_all(results, "experiments", results.plan, damaged)
    if not records and not plans:
        hint = f"; damaged: {', '.join(damaged)}" if damaged else ""
        raise RowsError(f"{directory} holds no results{hint}: run `lgq experiment` into it first.")
    journals = {id: _journal(results, id, damaged) for id in records}
    return Ledger(results, plans, _runs(records, journals), damaged)


def _read_all(
    results: ResultsDirectory, folder: str, read: Callable[[str], Read | None], damaged: dict[str, str]
) -> dict[str, Read]:
    found: dict[str, Read] = {}
    for path in sorted((results.root / folder).glob("*.json")):
        try:
            content = read(path.stem)
        except _DAMAGE as error:
            damaged[f"{folder}/{path.name}"] = reason(error, path)
        else:
            found |= {} if content is None else {path.stem: content}
    return found


def _checked(record: dict[str, Any] | None, id: str) -> dict[str, Any] | None:
    """A record with all that a report relies on."""
    if record is None:
        return None
    for name, kind in _NEEDED.items():
        if not isinstance(record.get(name), kind):
            raise RowsError(f"it has no {name!r}, or one that is no {kind.__name__}")
    if record["id"] != id:
        raise RowsError(f"it is the record of {record['id']!r}")
    return record


def _journal(results: ResultsDirectory, id: str, damaged: dict[str, str]) -> tuple[dict[str, Any], ...]:
    try:
        lines = read_records(results.run(id))
        if not all(map(_is_line, lines)):
            raise RowsError("it has a line that is no record of a step")
        return tuple(lines)
    except _DAMAGE as error:
        damaged[f"runs/{id}/{METRICS}"] = reason(error, results.run(id) / METRICS)
        return ()


def reason(error: Exception, path: Path) -> str:
    return str(error).replace(str(path), "it")


def _is_line(line: Any) -> bool:
    whole = isinstance(line, dict) and isinstance(line.get("values"), dict)
    return whole and isinstance(line.get("step"), int) and isinstance(line.get("split"), str)


def _runs(
    records: dict[str, dict[str, Any]], journals: dict[str, tuple[dict[str, Any], ...]]
) -> dict[str, FinishedRun]:
    """A generator's record names the run of its tokenizer."""
    runs = {id: FinishedRun(record, journals[id]) for id, record in records.items()}
    makers = {id: runs.get(str(record.get("tokenizer"))) for id, record in records.items()}
    return {id: replace(run, tokenizer=makers[id]) for id, run in runs.items()}
