"""From a table to its runs: every row has one run per training seed, with an id and an estimated time."""

import hashlib
import json
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch

from lgq.bench.measure import milliseconds
from lgq.checks import require_at_least, require_known
from lgq.config import to_json
from lgq.data import BrokenImage, ImageDataset, open_dataset
from lgq.data.images import Subset, random_subset
from lgq.data.recordings import Recordings
from lgq.data.stream import require_random_access
from lgq.distributed import join_processes
from lgq.errors import LGQError
from lgq.experiments.results_directory import Plan, PlannedRow, ResultsDirectory
from lgq.experiments.scales import Measuring, Scale
from lgq.experiments.speech import CLIP_SAMPLES
from lgq.experiments.tasks import (
    AutoencoderTask,
    CostTask,
    GaussianTask,
    GeneratorTask,
    SpeechTask,
    Task,
    TokenizerTask,
    without_defaults,
)
from lgq.models.masking import masked_loss
from lgq.training.networks import require_feasible
from lgq.training.tokenizer_trainer import TokenizerTrainer
from lgq.weights import WeightsError

Images = str | Path | ImageDataset
"""A data set, or what the command line calls DATA."""

_PROBES = 16
_LEAST_VALIDATION = 2
_LONGEST_NAME = 100
_TIMED_STEPS, _SLOW_MS = 3, 5_000
"""Steps to time; fewer once they have taken this long."""
_MASKED = 2 / math.pi
"""Mean share of masked tokens in training."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Sources:
    """The images of an experiment."""

    data: ImageDataset
    validation: ImageDataset
    shown: ImageDataset
    """Images to show."""
    names: tuple[str, ...]
    """What the user calls the three."""
    recordings: Recordings | None = None
    """Recordings, for experiments on speech."""

    @cached_property
    def choosing(self) -> ImageDataset:
        """A random half of the validation images: they choose weights and settings, and no table has them."""
        return self._halves[0]

    @cached_property
    def reported(self) -> ImageDataset:
        """The other half, on which tables are measured."""
        return self._halves[1]

    @cached_property
    def _halves(self) -> tuple[Subset, Subset]:
        half = random_subset(self.validation, len(self.validation) // 2).indices
        others = sorted(set(range(len(self.validation))) - set(half))
        choosing = Subset(self.validation, half, role="the half that chooses")
        return choosing, Subset(self.validation, others, role="the half that is reported")

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the training and the validation images."""
        return _fingerprint(self.data) + _fingerprint(self.validation)


def _fingerprint(data: ImageDataset) -> str:
    """Hash a data set wherever it is stored: its size, its classes, and some of its images."""
    digest = hashlib.sha256(repr((len(data), tuple(getattr(data, "classes", ())))).encode())
    for index in sorted({i * (len(data) - 1) // (_PROBES - 1) for i in range(_PROBES)}):
        try:
            image = data[index]
        except BrokenImage:
            continue
        digest.update(repr((index, image.label)).encode() + hashlib.sha256(image.data).digest())
    return digest.hexdigest()[:16]


class Row(NamedTuple):
    """A row of a table; the fields are those of `PlannedRow`."""

    row: str
    label: str
    task: Task
    group: str = ""


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A table of the LGQ paper (Altun et al. 2026), or one of our own."""

    name: str
    title: str
    paper: str = ""
    """Number of the table in the paper, such as "Table 2"; empty where the paper has none."""
    rows: Callable[[Scale], list[Row]]
    seeds: int = 3
    """Number of training seeds where the user gives none; a scale may have fewer."""
    first_seed: int = 0
    """The first of them."""

    @property
    def about(self) -> str:
        """What the table shows: the docstring of the function to its rows."""
        return " ".join((self.rows.__doc__ or "").split())


@dataclass(frozen=True, kw_only=True)
class PlannedExperiment:
    """The rows of an experiment at a scale, on some images."""

    plan: Plan
    """All rows of the table."""
    rows: dict[PlannedRow, Task]
    """Rows of this call, those that the user chose or a share of them, and what each asks for."""
    scale: Scale
    sources: Sources
    results: ResultsDirectory

    def id_of(self, task: Task) -> str:
        """Return the id of the run that a task asks for."""
        return run_id(task, self.scale, self.sources.fingerprint)


def open_sources(
    data: Images,
    val_data: Images | None = None,
    show: Images | None = None,
    recordings: str | Path | None = None,
) -> Sources:
    """Open the images to train on, to validate on and to show; each defaults to the one before it.

    recordings: folder or tar of WAV files, where an experiment is about speech.
    """
    val_data = data if val_data is None else val_data
    show = val_data if show is None else show
    training = _open(data, "data")
    validation = training if val_data is data else _open(val_data, "val_data")
    if len(validation) < _LEAST_VALIDATION:
        raise LGQError(
            f"an experiment needs {_LEAST_VALIDATION} validation images or more, got {len(validation)}: half "
            "of them choose the best weights, and the other half is measured."
        )
    shown = validation if show is val_data else _open(show, "show")
    named = [str(x) if isinstance(x, str | Path) else repr(x) for x in (data, val_data, show)]
    speech = None if recordings is None else Recordings(recordings, length=CLIP_SAMPLES)
    return Sources(data=training, validation=validation, shown=shown, names=tuple(named), recordings=speech)


def _open(source: Images, name: str) -> ImageDataset:
    if not isinstance(source, str | Path):
        return source
    dataset = open_dataset(source)
    require_random_access(dataset, f"an experiment's `{name}`")
    return dataset


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
    count = min(experiment.seeds, scale.seeds) if seeds is None else seeds
    require_at_least(1, seeds=count)
    rows: dict[PlannedRow, Task] = {}  # each row once: costs have no seed
    for seed in range(experiment.first_seed, experiment.first_seed + count):
        for row in experiment.rows(scale):
            task = _on_recordings(row.task.seeded(seed), sources)
            id = run_id(task, scale, sources.fingerprint)
            named = {"row": row.row, "label": row.label, "group": row.group}
            rows[PlannedRow(**named, kind=task.kind, seed=task.seed, id=id)] = task
    plan = Plan(
        experiment=experiment.name,
        title=experiment.title,
        paper=experiment.paper,
        about=experiment.about,
        scale=scale.name,
        data=sources.names[0],
        validation_data=sources.names[1],
        shown=sources.names[2],
        images=sources.fingerprint,
        protocol={
            "steps": scale.tokenizer.steps,
            "ablation_steps": scale.ablation.steps,
            "generator_steps": scale.generator.loop.steps,
            "precision": scale.tokenizer.run.precision,
            "start_steps": scale.start.steps if scale.start else 0,
            # Without what is not limited: plans of before have no such settings.
            "measuring": {k: v for k, v in to_json(scale.measuring).items() if v is not None},
        },
        rows=tuple(rows),
    )
    return PlannedExperiment(
        plan=plan,
        rows={row: rows[row] for row in _chosen(plan.rows, only, shard or "0/1")},
        scale=scale,
        sources=sources,
        results=ResultsDirectory(out),
    )


def _on_recordings(task: Task, sources: Sources) -> Task:
    """Return the task with the fingerprint of the recordings, if it is about speech."""
    if not isinstance(task, SpeechTask):
        return task
    if sources.recordings is None:
        raise LGQError(
            "this experiment is about speech: name a folder or a .tar of WAV files with `recordings`."
        )
    return replace(task, recordings=sources.recordings.fingerprint)


def run_id(task: Task, scale: Scale, images: str) -> str:
    """Return a readable name with a hash of all that the record depends on.

    images: fingerprint of the sources.
    """
    content: dict[str, Any] = {"kind": task.kind, "settings": task.identity()}
    if not isinstance(task, CostTask | GaussianTask | SpeechTask):
        measuring = without_defaults(asdict(scale.measuring), asdict(Measuring()))
        content |= {"images": images, "measuring": measuring}
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    return f"{task.name()[:_LONGEST_NAME]}-{digest[:8]}"


def _chosen(rows: Sequence[PlannedRow], only: Sequence[str], shard: str) -> list[PlannedRow]:
    """Return the i-th of n shares of the rows with one of these names, labels or groups.

    shard: i/n. A run that several rows ask for is in one share only.
    """
    wanted = {word.casefold().strip() for word in only}
    names = {row: {name.casefold() for name in (row.row, row.label, row.group) if name} for row in rows}
    for word in wanted:
        require_known("row", word, sorted(set().union(*names.values())))
    number, slash, count = shard.partition("/")
    if not (slash and number.isdecimal() and count.isdecimal() and int(number) < int(count)):
        raise LGQError(f"`shard` must have the form i/n with i from 0 to n - 1, such as 0/4, got {shard!r}.")
    runs = {row.id: row for row in rows if not wanted or wanted & names[row]}
    return list(runs.values())[int(number) :: int(count)]


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Size and time of one row."""

    row: PlannedRow
    finished: bool
    steps: int
    parameters: int
    """Number of learned parameters."""
    seconds: float | None
    """Training time; None where nothing is trained but a quantizer, or the weights of LPIPS are missing."""


def estimate_rows(planned: PlannedExperiment, device: str | torch.device = "auto") -> list[Estimate]:
    """Estimate the training time of each row from a few steps on this machine; nothing is written.

    What rows start from comes first, as rows of their own. Finished rows take no time. Rows of one kind have
    the same time per step, measured once.
    """
    ms_per_step: dict[str, float | None] = {}
    own = join_processes(device)
    estimates = []
    for row, task in (needed_first(planned) | planned.rows).items():
        finished, ms = planned.results.is_finished(row.id), None
        if not finished and isinstance(task, AutoencoderTask | TokenizerTask | GeneratorTask):
            tokenizer = (task.tokenizer if isinstance(task, GeneratorTask) else task).run
            kind = f"{task.kind}, {tokenizer.quantizer}, {tokenizer.codebook_size}, {tokenizer.stages}"
            if kind not in ms_per_step:
                ms_per_step[kind] = _ms_per_step(task, planned.sources, own)
            ms = ms_per_step[kind]
        seconds = None if ms is None else ms * task.steps / 1e3
        size = {"steps": task.steps, "parameters": task.parameters()}
        estimates.append(Estimate(row=row, finished=finished, seconds=seconds, **size))
    return estimates


def needed_first(planned: PlannedExperiment) -> dict[PlannedRow, Task]:
    """Return the tasks that rows wait for and that are no rows themselves, as rows of their own."""
    asked = {row.id for row in planned.rows}
    needed: dict[PlannedRow, Task] = {}
    waiting = [task.before for task in planned.rows.values()]
    while waiting:
        task = waiting.pop(0)
        if task is not None and (id := planned.id_of(task)) not in asked:
            asked.add(id)
            row = PlannedRow(
                row=task.name(),
                label=f"first its {task.kind}",
                group="",
                kind=task.kind,
                seed=task.seed,
                id=id,
            )
            needed[row] = task
            waiting.append(task.before)
    return needed


def _ms_per_step(
    task: AutoencoderTask | TokenizerTask | GeneratorTask, sources: Sources, device: torch.device
) -> float | None:
    """Return the time of the last step, which includes a discriminator that starts late."""
    try:
        if isinstance(task, GeneratorTask):
            step = _generator_step(task, device)
        else:
            require_feasible(task.run, device)
            # Validations are not timed, so their metric networks are not needed.
            run = replace(task.run, best_by="l1", rfid_images=None, workers=0)
            step = TokenizerTrainer(run, sources.data, sources.data, Path(), device=device).train_step
    except WeightsError as error:
        _log.warning("no time of %s: %s", task.name(), error)
        return None
    times: list[float] = []
    while len(times) < _TIMED_STEPS and sum(times) < _SLOW_MS:
        times.append(milliseconds(lambda: step(task.steps - 1), device))
    return min(times)


def _generator_step(task: GeneratorTask, device: torch.device) -> Callable[[int], object]:
    """Train on random tokens: those of the tokenizer do not exist yet."""
    run, transformer = task.run, task.planned_transformer(device)
    optimizer = torch.optim.AdamW(transformer.parameters(), lr=run.learning_rate)
    shape = (run.batch_size, transformer.length)

    def step(_: int) -> None:
        for _ in range(run.accumulate):
            tokens = torch.randint(task.tokenizer.run.codebook_size, shape, device=device)
            hidden = torch.rand(shape, device=device) < _MASKED
            with run.autocast(device.type):
                logits = transformer(tokens, torch.zeros_like(tokens[:, 0]), hidden)
                loss = masked_loss(logits, tokens[hidden], smoothing=run.label_smoothing)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step
