"""Results of experiments that nobody ran, in memory and on the disk."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lgq.experiments.results_directory import Plan, PlannedRow, ResultsDirectory
from lgq.report.finished import FinishedRun
from lgq.report.ledger import Ledger

Line = tuple[int, str, Mapping[str, float]]
"""Step, split and values of a line of metrics.jsonl."""


@dataclass
class FakeRow:
    """A row of a plan, with a run a seed."""

    label: str
    config: Mapping[str, Any]
    values: Sequence[Mapping[str, float | None]]
    """Of each seed, by the names that `FinishedRun.value` knows."""
    group: str = ""
    kind: str = "tokenizer"
    journals: Sequence[Sequence[Line]] = ()
    """Of each seed."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Further parts of the records."""
    tokenizers: Sequence[str] = ()
    """Of a generator, the ids of its tokenizers."""

    def ids(self, experiment: str) -> list[str]:
        name = "-".join(word for text in (experiment, self.label, self.group) for word in text.split())
        return [f"{name.replace('/', '-')}-s{seed}" for seed in range(len(self.values))]

    def record(self, id: str, seed: int) -> dict[str, Any]:
        values = dict(self.values[seed])
        geometry = {name.split(".")[1]: values.pop(name) for name in list(values) if "." in name}
        return {
            "id": id,
            "kind": self.kind,
            "command": ["lgq", "experiment", "made-up", "--seeds", str(len(self.values))],
            "config": {**self.config, "seed": seed},
            "seed": seed,
            "seconds": values.pop("seconds_a_step", None),
            "steps": 1,
            "metrics": values,
            "geometry": geometry,
            "environment": {"torch": "2", "seed": seed},
            "tokenizer": self.tokenizers[seed] if self.tokenizers else None,
            **self.extra,
        }

    def run(self, id: str, seed: int) -> FinishedRun:
        journal = self.journals[seed] if self.journals else ()
        lines = ({"step": step, "split": split, "values": values} for step, split, values in journal)
        return FinishedRun(self.record(id, seed), tuple(lines))


def plan_of(experiment: str, rows: Iterable[FakeRow]) -> Plan:
    planned = [
        PlannedRow(
            row=f"{row.label} {row.group}", label=row.label, group=row.group, kind=row.kind, seed=seed, id=id
        )
        for row in rows
        for seed, id in enumerate(row.ids(experiment))
    ]
    return Plan(
        experiment=experiment,
        title=f"Title of {experiment}",
        paper="",
        about="About it.",
        scale="imagenet256",
        data="photos",
        validation_data="photos",
        shown="photos",
        images="0",
        protocol={},
        rows=tuple(planned),
    )


def ledger_of(experiments: Mapping[str, Sequence[FakeRow]]) -> Ledger:
    runs = {
        id: row.run(id, seed)
        for name, rows in experiments.items()
        for row in rows
        for seed, id in enumerate(row.ids(name))
    }
    linked = {id: replace(run, tokenizer=runs.get(run.record["tokenizer"])) for id, run in runs.items()}
    return Ledger(
        ResultsDirectory("nowhere"), {name: plan_of(name, rows) for name, rows in experiments.items()}, linked
    )


def write_results(root: Path, experiments: Mapping[str, Sequence[FakeRow]]) -> ResultsDirectory:
    results, ledger = ResultsDirectory(root), ledger_of(experiments)
    for plan in ledger.plans.values():
        results.write_plan(plan)
    for id, run in ledger.runs.items():
        results.write_record(id, run.record)
        results.run(id).mkdir(parents=True)
        lines = "".join(json.dumps(line) + "\n" for line in run.journal)
        (results.run(id) / "metrics.jsonl").write_text(lines)
    return results
