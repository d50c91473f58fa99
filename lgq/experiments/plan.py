"""From a table to its runs: every row has one run per training seed, with an id and an estimated time."""

import difflib
import hashlib
import json
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from lgq.checks import require_at_least
from lgq.data import ImageDataset, open_dataset
from lgq.data.stream import require_random_access
from lgq.distributed import join_processes
from lgq.errors import LGQError
from lgq.experiments.results_directory import Plan, PlannedRow, ResultsDirectory
from lgq.experiments.scales import Scale
from lgq.experiments.tasks import CostTask, GeneratorTask, Sources, Task, TokenizerTask
from lgq.models.masking import masked_loss, random_masks
from lgq.training.networks import require_feasible
from lgq.training.tokenizer_trainer import TokenizerTrainer
from lgq.weights import WeightsError

_LONGEST_NAME = 100
_TIMED_STEPS, _SLOW_SECONDS = 3, 5.0
"""Steps to time; fewer once they have taken this long."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row of a table."""

    row: str
    """Short name, unique within the experiment."""
    label: str
    """Name of the row in the table."""
    group: str = ""
    """Heading that the row shares with others, such as a codebook size; may be empty."""
    task: Task


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A table of the LGQ paper (Altun et al. 2026), or one of our own."""

    name: str
    title: str
    paper: str = ""
    """Label of the table in the paper; empty where the paper has none."""
    about: str
    rows: Callable[[Scale], list[Row]]
    seeds: int = 1
    """Number of training seeds where the user gives none."""


@dataclass(frozen=True, kw_only=True)
class SeededRow:
    """A row with a training seed and the id of its run."""

    row: Row
    task: Task
    id: str

    def __str__(self) -> str:
        group = f", {self.row.group}" if self.row.group else ""
        seed = "" if isinstance(self.task, CostTask) else f", seed {self.task.seed}"
        return f"{self.row.label}{group}{seed}"

    @property
    def names(self) -> set[str]:
        """Names by which a user may choose the row, in lower case."""
        return {name.casefold() for name in (self.row.row, self.row.label, self.row.group) if name}

    def planned(self) -> PlannedRow:
        row, task = self.row, self.task
        return PlannedRow(
            row=row.row, label=row.label, group=row.group, kind=task.kind, seed=task.seed, id=self.id
        )


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Size and time of one row."""

    row: SeededRow
    finished: bool
    parameters: int
    """Number of learned parameters."""
    seconds: float | None
    """Training time; None where nothing is trained, or the weights of a metric network are missing."""


@dataclass(frozen=True, kw_only=True)
class PlannedExperiment:
    """The rows of an experiment at a scale, on some images."""

    experiment: Experiment
    scale: Scale
    sources: Sources
    results: ResultsDirectory
    rows: tuple[SeededRow, ...]
    """All rows of the table."""
    chosen: tuple[SeededRow, ...]
    """Rows of this call: those that the user chose, or its share of them."""

    def plan(self) -> Plan:
        """Return what the results directory keeps of it."""
        experiment, scale, names = self.experiment, self.scale, self.sources.names
        return Plan(
            experiment=experiment.name,
            title=experiment.title,
            paper=experiment.paper,
            about=experiment.about,
            scale=scale.name,
            data=names[0],
            validation_data=names[1],
            images=self.sources.fingerprint,
            shown=names[2],
            protocol={
                "steps": scale.tokenizer.loop.steps,
                "ablation_steps": scale.ablation.steps,
                "generator_steps": scale.generator.loop.steps,
                "precision": scale.tokenizer.precision,
                "measuring": json.loads(json.dumps(asdict(scale.measuring))),
            },
            rows=tuple(row.planned() for row in self.rows),
        )

    def estimates(self) -> list[Estimate]:
        """Estimate the training time of each row from a few steps on this machine; nothing is written.

        Finished rows take no time. Rows of one kind have the same time per step, measured once.
        """
        seconds_per_step: dict[str, float | None] = {}
        estimates = []
        for row in self.chosen:
            finished, kind, seconds = self.results.is_finished(row.id), _kind(row.task), None
            if not finished:
                if kind not in seconds_per_step:
                    seconds_per_step[kind] = _seconds_per_step(row.task, self.sources)
                seconds = seconds_per_step[kind]
            estimates.append(
                Estimate(
                    row=row,
                    finished=finished,
                    parameters=row.task.parameters(),
                    seconds=None if seconds is None else seconds * row.task.steps,
                )
            )
        return estimates


def open_sources(
    data: str | Path | ImageDataset,
    val_data: str | Path | ImageDataset | None = None,
    show: str | Path | ImageDataset | None = None,
) -> Sources:
    """Open the images to train on, to validate on and to show; each defaults to the one before it."""
    if val_data is None:
        _log.info("no validation data: validating and evaluating on the training images.")
    training, training_name = _opened(data, "data")
    validation, validation_name = (
        (training, training_name) if val_data is None else _opened(val_data, "val-data")
    )
    shown, shown_name = (validation, validation_name) if show is None else _opened(show, "show")
    names = (training_name, validation_name, shown_name)
    return Sources(data=training, validation=validation, shown=shown, names=names)


def _opened(data: str | Path | ImageDataset, option: str) -> tuple[ImageDataset, str]:
    if not isinstance(data, str | Path):
        return data, repr(data)
    dataset = open_dataset(data)
    require_random_access(dataset, f"an experiment's --{option}")
    return dataset, str(data)


def plan_rows(
    experiment: Experiment,
    scale: Scale,
    sources: Sources,
    out: str | Path,
    *,
    seeds: int | None = None,
    shard: str | None = None,
    only: Sequence[str] = (),
) -> PlannedExperiment:
    """Plan the rows of an experiment; the arguments are those of `lgq.experiment`."""
    count = experiment.seeds if seeds is None else seeds
    require_at_least(1, seeds=count)
    # All rows of the first seed come first; what has no seed comes once.
    tasks = [(row, row.task.seeded(seed)) for seed in range(count) for row in experiment.rows(scale)]
    once = [(row, task) for i, (row, task) in enumerate(tasks) if (row, task) not in tasks[:i]]
    rows = [SeededRow(row=row, task=task, id=run_id(task, scale, sources.fingerprint)) for row, task in once]
    return PlannedExperiment(
        experiment=experiment,
        scale=scale,
        sources=sources,
        results=ResultsDirectory(out),
        rows=tuple(rows),
        chosen=tuple(_share(_named(rows, only), shard or "0/1")),
    )


def run_id(task: Task, scale: Scale, images: str) -> str:
    """Return a readable name with a hash of all that the record depends on.

    images: fingerprint of the sources.
    """
    content: dict[str, Any] = {"kind": task.kind, "settings": task.settings()}
    if not isinstance(task, CostTask):
        content |= {"images": images, "measuring": asdict(scale.measuring)}
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    return f"{task.name()[:_LONGEST_NAME]}-{digest[:8]}"


def _named(rows: Sequence[SeededRow], only: Sequence[str]) -> list[SeededRow]:
    """Return the rows with one of these names, labels or groups; all rows where none is given."""
    known, wanted = {name for row in rows for name in row.names}, {word.casefold().strip() for word in only}
    for word in sorted(wanted - known):
        close = difflib.get_close_matches(word, known, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"choose from {', '.join(sorted(known))}."
        raise LGQError(f"no row is called {word!r}: {hint}")
    return [row for row in rows if not wanted or wanted & row.names]


def _share(rows: Sequence[SeededRow], shard: str) -> list[SeededRow]:
    """Return the i-th of n shares, given as i/n; a run that several rows ask for is in one share only."""
    number, slash, count = shard.partition("/")
    if not (slash and number.isdecimal() and count.isdecimal()):
        raise LGQError(f"shard must have the form i/n, such as 0/4, got {shard!r}.")
    if not int(number) < int(count):
        raise LGQError(f"shard i/n must have i from 0 to n - 1, got {shard}.")
    return list({row.id: row for row in rows}.values())[int(number) :: int(count)]


def _kind(task: Task) -> str:
    """Describe what decides the time of a step."""
    if isinstance(task, TokenizerTask):
        return f"{task.run.quantizer}, {task.run.codebook_size} codes, {task.run.stages} stages"
    return f"generator, {_kind(task.tokenizer)}" if isinstance(task, GeneratorTask) else task.kind


def _seconds_per_step(task: Task, sources: Sources) -> float | None:
    """Return the time of the last step, which includes a discriminator that starts late."""
    if isinstance(task, CostTask):
        return None
    try:
        step = _tokenizer_step(task, sources) if isinstance(task, TokenizerTask) else _generator_step(task)
        times: list[float] = []
        while len(times) < _TIMED_STEPS and sum(times) < _SLOW_SECONDS:
            started = time.perf_counter()
            step(task.steps - 1)
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            times.append(time.perf_counter() - started)
    except WeightsError as error:
        _log.warning("no time of %s: %s", _kind(task), error)
        return None
    return min(times)


def _tokenizer_step(task: TokenizerTask, sources: Sources) -> Callable[[int], object]:
    require_feasible(task.run)
    # Validations are not timed, so their metric networks are not needed.
    run = replace(task.run, best_by="l1", rfid_images=None, workers=0)
    return TokenizerTrainer(run, sources.data, sources.data, Path()).train_step


def _generator_step(task: GeneratorTask) -> Callable[[int], object]:
    """Train on random tokens: those of the tokenizer do not exist yet."""
    run, device = task.run, join_processes()
    transformer = task.planned_transformer(device)
    optimizer = torch.optim.AdamW(transformer.parameters(), lr=run.learning_rate)
    shape = (run.batch_size, transformer.length)

    def step(_: int) -> None:
        for _ in range(run.accumulate):
            tokens = torch.randint(task.tokenizer.run.codebook_size, shape, device=device)
            hidden = random_masks(torch.rand(run.batch_size), torch.rand(shape)).to(device)
            with run.autocast(device.type):
                masked = tokens.masked_fill(hidden, transformer.mask_token)
                logits = transformer(masked, torch.zeros_like(tokens[:, 0]), hidden)
                loss = masked_loss(logits, tokens[hidden], smoothing=run.label_smoothing)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step
