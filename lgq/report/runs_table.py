"""All runs behind a report: what differs between their settings, what is the same, and where they ran."""

import json
from dataclasses import dataclass
from typing import Any

from lgq.report.finished import FinishedRun
from lgq.report.ledger import Ledger

_FIRST = {"tokenizer"}


@dataclass(frozen=True)
class RunLine:
    id: str
    kind: str
    asked_by: str
    """Experiments, with the row's label in each."""
    seed: str
    settings: str
    """Those that differ between runs of its kind."""
    steps: str
    minutes: str
    parameters: str
    environment: str
    """Letter of its environment."""
    command: str
    failed: str


@dataclass(frozen=True)
class RunsTable:
    lines: tuple[RunLine, ...]
    common: dict[str, dict[str, str]]
    """Settings that all runs of a kind share."""
    environments: dict[str, dict[str, str]]
    """By letter."""


def runs_table(ledger: Ledger) -> RunsTable:
    kinds = sorted({run.kind for run in ledger.runs.values()}, key=lambda kind: (kind not in _FIRST, kind))
    flat = {id: _flat(run.record.get("config") or {}) for id, run in ledger.runs.items()}
    common = {
        kind: _common([flat[run.id] for run in ledger.runs.values() if run.kind == kind]) for kind in kinds
    }
    environments = _environments(ledger)
    lines = (
        _line(ledger, run, flat[run.id], common[run.kind], environments)
        for run in sorted(ledger.runs.values(), key=lambda run: (kinds.index(run.kind), run.id))
    )
    lettered = {letter: json.loads(text) for text, letter in environments.items()}
    return RunsTable(tuple(lines), common, lettered)


def _line(
    ledger: Ledger,
    run: FinishedRun,
    settings: dict[str, str],
    common: dict[str, str],
    environments: dict[str, str],
) -> RunLine:
    differing = {
        name.removeprefix("quantizer_options."): value
        for name, value in settings.items()
        if name not in common and name.split(".")[-1] != "seed" and value != "null"
    }
    seconds, steps = run.record.get("seconds"), run.record.get("steps")
    parameters = run.record.get("parameters")
    total = sum(n for n in parameters.values() if isinstance(n, int)) if isinstance(parameters, dict) else 0
    return RunLine(
        id=run.id,
        kind=run.kind,
        asked_by=", ".join(
            name for name, plan in ledger.plans.items() if run.id in {r.id for r in plan.rows}
        ),
        seed="" if run.seed is None else str(run.seed),
        settings=", ".join(f"{name} = {value}" for name, value in differing.items()),
        steps=f"{steps:,}" if isinstance(steps, int) else "",
        minutes=f"{seconds / 60:,.1f}" if isinstance(seconds, int | float) else "",
        parameters=f"{total:,}" if total else "",
        environment=environments[_environment(run)],
        command=run.command,
        failed=run.failed,
    )


def _flat(settings: Any, prefix: str = "") -> dict[str, str]:
    """Settings by their dotted names, as text."""
    found: dict[str, str] = {}
    for name, value in settings.items() if isinstance(settings, dict) else ():
        inner = _flat(value, f"{prefix}{name}.") if isinstance(value, dict) and value else None
        found |= {f"{prefix}{name}": _text(value)} if inner is None else inner
    return found


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _common(settings: list[dict[str, str]]) -> dict[str, str]:
    """What all have alike; of a single run, nothing is known to differ."""
    first = settings[0]
    return {name: value for name, value in first.items() if all(each.get(name) == value for each in settings)}


def _environment(run: FinishedRun) -> str:
    found = run.record.get("environment")
    flat = _flat(found) if isinstance(found, dict) else {}
    return json.dumps({name: value for name, value in sorted(flat.items()) if name != "seed"})


def _environments(ledger: Ledger) -> dict[str, str]:
    """A letter for each, or more than one beyond the 26th."""
    distinct = sorted({_environment(run) for run in ledger.runs.values()})
    return {text: _letters(number) for number, text in enumerate(distinct)}


def _letters(number: int) -> str:
    first, last = divmod(number, 26)
    return (_letters(first - 1) if first else "") + chr(ord("A") + last)
