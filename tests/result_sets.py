"""Made-up results of experiments, in memory and on the disk."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lgq.experiments.results_directory import Plan, PlannedRow, ResultsDirectory
from lgq.reporting.result_set import ResultSet, RunRecord

Line = tuple[int, str, Mapping[str, float]]
"""Step, split and values of a line of metrics.jsonl."""


@dataclass
class FakeRow:
    """A row of a plan, with one run per seed."""

    label: str
    config: Mapping[str, Any]
    values: Sequence[Mapping[str, float | None]]
    """Metrics of each seed, by their names in `RunRecord.value`."""
    group: str = ""
    kind: str = "tokenizer"
    journals: Sequence[Sequence[Line]] = ()
    """Lines of metrics.jsonl, for each seed."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Further parts of the records."""
    tokenizers: Sequence[str] = ()
    """Ids of the tokenizers of a generator, one per seed."""

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
            "seconds": values.pop("seconds_per_step", None),
            "steps": 1,
            "metrics": values,
            "geometry": geometry,
            "environment": {"torch": "2", "seed": seed},
            "images": 1000,
            "geometry_images": 5000,
            "tokenizer": self.tokenizers[seed] if self.tokenizers else None,
            **self.extra,
        }

    def run(self, id: str, seed: int) -> RunRecord:
        journal = self.journals[seed] if self.journals else ()
        lines = ({"step": step, "split": split, "values": values} for step, split, values in journal)
        return RunRecord(self.record(id, seed), tuple(lines))


def comparison_rows(psnrs: Mapping[str, Sequence[float]]) -> list[FakeRow]:
    """Rows of a comparison by the PSNR of each seed, with two validations each."""
    return [
        FakeRow(
            name.upper(),
            {"quantizer": name, "codebook_size": 1024, "lr": 0.1, "validation_images": 200},
            [{"psnr": value, "utilization": 1.0, "lpips": None} for value in values],
            journals=[
                [
                    (10, "validation", {"psnr": value - 1, "l1": 0.2, "utilization": 0.5}),
                    (20, "validation", {"psnr": value, "l1": 0.1, "utilization": 1.0}),
                ]
                for value in values
            ],
        )
        for name, values in psnrs.items()
    ]


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


def result_set_of(experiments: Mapping[str, Sequence[FakeRow]]) -> ResultSet:
    runs = {
        id: row.run(id, seed)
        for name, rows in experiments.items()
        for row in rows
        for seed, id in enumerate(row.ids(name))
    }
    linked = {id: replace(run, tokenizer=runs.get(run.record["tokenizer"])) for id, run in runs.items()}
    return ResultSet(
        ResultsDirectory("nowhere"), {name: plan_of(name, rows) for name, rows in experiments.items()}, linked
    )


def write_results(root: Path, experiments: Mapping[str, Sequence[FakeRow]]) -> ResultsDirectory:
    directory, results = ResultsDirectory(root), result_set_of(experiments)
    for plan in results.plans.values():
        directory.write_plan(plan)
    for id, run in results.runs.items():
        directory.write_record(id, run.record)
        directory.run(id).mkdir(parents=True)
        lines = "".join(json.dumps(line) + "\n" for line in run.journal)
        (directory.run(id) / "metrics.jsonl").write_text(lines)
    return directory
