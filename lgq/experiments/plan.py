"""An experiment is a list of named rows; a plan is that list over training seeds, with an id for each run."""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from lgq.checks import require_at_least
from lgq.data import BrokenImage, ImageDataset
from lgq.experiments.results_directory import Plan, PlannedRow
from lgq.experiments.scales import Scale
from lgq.experiments.tasks import CostTask, Task
from lgq.quantizers import QUANTIZERS

LABELS = {name: quantizer.label for name, quantizer in QUANTIZERS.items()}
"""What tables call the quantizers."""

_PROBES = 16
_LONGEST_NAME = 100


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row of a table."""

    row: str
    """Short name, its own within the experiment."""
    label: str
    group: str = ""
    """Rows that belong together, if some do."""
    task: Task


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A table of the LGQ paper (Altun et al. 2026), or one of our own."""

    name: str
    title: str
    paper: str = ""
    """Label of the table in the paper."""
    about: str
    rows: Callable[[Scale], list[Row]]
    seeds: int = 1
    """Training seeds where the user gives no number."""


@dataclass(frozen=True, kw_only=True)
class Sources:
    """The images of an experiment."""

    data: ImageDataset
    validation: ImageDataset
    named: tuple[str, str]
    """As the user names both."""
    shown: ImageDataset
    """Images to look at."""
    shown_as: str
    """As the user names them."""

    def fingerprint(self) -> str:
        return _fingerprint(self.data) + _fingerprint(self.validation)


@dataclass(frozen=True, kw_only=True)
class SeededRow:
    """A row with a training seed, and the id of its run."""

    row: Row
    task: Task
    id: str

    def __str__(self) -> str:
        group = f", {self.row.group}" if self.row.group else ""
        seed = "" if self.task.kind == "cost" else f", seed {self.task.seed}"
        return f"{self.row.label}{group}{seed}"

    def planned(self) -> PlannedRow:
        row = self.row
        return PlannedRow(
            row=row.row,
            label=row.label,
            group=row.group,
            kind=self.task.kind,
            seed=self.task.seed,
            id=self.id,
        )


def seeded_rows(experiment: Experiment, scale: Scale, images: str, seeds: int | None) -> list[SeededRow]:
    """Every row with each seed, all rows of the first seed first.

    images: fingerprint of the sources.
    """
    count = experiment.seeds if seeds is None else seeds
    require_at_least(1, seeds=count)
    tasks = [(row, row.task.seeded(seed)) for seed in range(count) for row in experiment.rows(scale)]
    # What has no seed comes once.
    asked = [(row, task) for i, (row, task) in enumerate(tasks) if (row, task) not in tasks[:i]]
    return [SeededRow(row=row, task=task, id=run_id(task, scale, images)) for row, task in asked]


def plan_of(experiment: Experiment, scale: Scale, sources: Sources, rows: Sequence[SeededRow]) -> Plan:
    tokenizer, generator = scale.tokenizer, scale.generator
    return Plan(
        experiment=experiment.name,
        title=experiment.title,
        paper=experiment.paper,
        about=experiment.about,
        scale=scale.name,
        data=sources.named[0],
        validation_data=sources.named[1],
        images=sources.fingerprint(),
        shown=sources.shown_as,
        protocol={
            "steps": tokenizer.loop.steps,
            "ablation_steps": scale.ablation.steps,
            "generator_steps": generator.loop.steps,
            "precision": tokenizer.precision,
            "measuring": json.loads(json.dumps(asdict(scale.measuring))),
        },
        rows=tuple(row.planned() for row in rows),
    )


def run_id(task: Task, scale: Scale, images: str) -> str:
    """A readable name, and a hash of all that the record depends on: settings, images, what is measured."""
    content: dict[str, Any] = {"kind": task.kind, "settings": task.settings()}
    if not isinstance(task, CostTask):
        content |= {"images": images, "measuring": asdict(scale.measuring)}
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    return f"{task.name()[:_LONGEST_NAME]}-{digest[:8]}"


def _fingerprint(data: ImageDataset) -> str:
    """Of a data set wherever it lies: its size, its classes, and some of its images."""
    digest = hashlib.sha256(repr((len(data), tuple(getattr(data, "classes", ())))).encode())
    for index in sorted({i * (len(data) - 1) // (_PROBES - 1) for i in range(_PROBES)}):
        try:
            image = data[index]
        except BrokenImage:
            continue
        digest.update(repr((index, image.label)).encode() + hashlib.sha256(image.data).digest())
    return digest.hexdigest()[:16]
