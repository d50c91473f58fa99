"""`lgq.experiment`: train, evaluate and record the rows of a table, one after the other.

    outcome = lgq.experiment("comparison", "pocket", "photos", "results", seeds=3)

Finished rows are kept, and a row that was stopped continues. Rows depend on nothing but their settings and
the images, so any number of calls may share a results directory: the first to reach a row holds it, and the
others leave it and look at it again at the end.
"""

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from lgq.distributed import broadcast_from_first, join_processes, rank
from lgq.experiments.plan import (
    Estimate,
    Images,
    PlannedExperiment,
    estimate_rows,
    needed_first,
    open_sources,
    plan_rows,
)
from lgq.experiments.records import Context, Stopped, make_record
from lgq.experiments.results_directory import Plan, PlannedRow, ResultsDirectory
from lgq.experiments.scales import WarmStart, named_scale
from lgq.experiments.tables import named_experiment
from lgq.experiments.tasks import Task
from lgq.files import LockError, directory_lock, make_directory
from lgq.results import ResultsError
from lgq.training.loop import INTERRUPTED, stop_on_signals
from lgq.training.settings import Precision

_ATTEMPTS, _PAUSE_SECONDS = 200, 0.05
"""How often, and how far apart, to try for the lock on plans, which other processes hold for a moment."""
_PATIENCE_SECONDS = 5
"""How long to wait between two looks at what another process works on."""
_IN_WORDS = {
    "scale": "`scale`",
    "data": "`data`",
    "validation_data": "`val_data`",
    "shown": "`show`",
    "steps": "`steps`",
    "ablation_steps": "the steps of ablations (`steps`)",
    "generator_steps": "`generator_steps`",
    "precision": "`precision`",
    "start_steps": "the steps of the autoencoder (`warm_start`)",
    "measuring": "what is measured",
}
"""Parts of the protocol, with the options that choose them."""
_OF_ALL_EXPERIMENTS = ("scale", "data", "validation_data", "shown")
"""Parts of the protocol that all experiments of a directory share."""

_log = logging.getLogger(__name__)


@dataclass
class ExperimentOutcome:
    """How a call ended."""

    plan: Plan
    rows: int
    """Number of rows that were asked for."""
    new_rows: int = 0
    """Number of rows that this call finished; all others were finished before."""
    failed: list[str] = field(default_factory=list)
    """Ids of finished rows whose training diverged."""
    busy: list[str] = field(default_factory=list)
    """Ids of rows that another process works on."""
    stopped: bool = False
    """Whether a signal ended the call."""
    estimates: list[Estimate] = field(default_factory=list)
    """Size and time of each row; only a dry run has them."""

    @property
    def exit_code(self) -> int:
        """75 where the same command should be run again, 0 where all rows are finished."""
        return INTERRUPTED if self.stopped or self.busy else 0


def experiment(
    name: str,
    scale: str,
    data: Images,
    out: str | Path,
    *,
    val_data: Images | None = None,
    show: Images | None = None,
    recordings: str | Path | None = None,
    seeds: int | None = None,
    shard: str | None = None,
    only: Sequence[str] = (),
    steps: int | None = None,
    generator_steps: int | None = None,
    precision: Precision | None = None,
    warm_start: WarmStart = "auto",
    dry_run: bool = False,
    device: str | torch.device = "auto",
    command: Sequence[str] = (),
) -> ExperimentOutcome:
    """Train, evaluate and record the rows of an experiment that are not finished yet.

    name: such as "comparison"; `lgq.experiments.tables.EXPERIMENTS` has all.
    scale: "smoke", "pocket" or "imagenet256".
    data: training images, a data set or what the command line calls DATA.
    out: results directory, which several processes and machines may share.
    val_data: images for validation and evaluation; None takes the training images.
    show: images of which every row shows eight; None takes the validation images.
    recordings: folder or tar of WAV files (16 bits, one channel), for "modality".
    seeds: number of training seeds, from 0 on; None takes the experiment's own.
    shard: "i/n", the i-th of n calls that share the rows; None takes all rows.
    only: labels, groups or names of rows; none takes all rows.
    steps, generator_steps, precision: settings for all rows alike; None takes the scale's.
    warm_start: "never" trains every tokenizer from random weights, "auto" from the autoencoder of its seed
        where the scale has one; it is trained before the first row that needs it.
    dry_run: estimate how long the rows take on this machine, and run nothing.
    device: where to compute, the words of `--device` (`lgq.distributed.resolve_device`).
    command: what the records name as their command.
    """
    table, settings = named_experiment(name), named_scale(scale)
    settings = settings.adjusted(
        steps=steps, generator_steps=generator_steps, precision=precision, warm_start=warm_start
    )
    sources = open_sources(data, val_data, show, recordings)
    planned = plan_rows(table, settings, sources, out, seeds=seeds, shard=shard, only=only)
    if val_data is None:
        _log.info("no validation data: validating and evaluating on the training images.")
    if dry_run:
        _require_same_protocol(planned.results, planned.plan)
        _require_intact(planned)
        return ExperimentOutcome(planned.plan, len(planned.rows), estimates=estimate_rows(planned, device))
    return run_planned(planned, command, device)


def run_planned(
    planned: PlannedExperiment, command: Sequence[str] = (), device: str | torch.device = "auto"
) -> ExperimentOutcome:
    """Train, evaluate and record the rows of a plan that are not finished yet."""
    outcome, own = ExperimentOutcome(planned.plan, len(planned.rows)), join_processes(device)
    _require_intact(planned)
    _write_plan(planned.results, planned.plan)
    with stop_on_signals() as stop:
        context = Context(planned, own, command, stop)
        try:
            busy = _attempt(context, list(planned.rows), outcome)
            # The processes that held them may have finished or died by now.
            outcome.busy = [row.id for row in _attempt(context, busy, outcome)] if busy else []
        except Stopped:
            outcome.stopped = True
    records = {row.id: planned.results.record(row.id) for row in planned.rows}
    outcome.failed = [id for id, record in records.items() if record and "failed" in record]
    return outcome


def _require_intact(planned: PlannedExperiment) -> None:
    """Refuse damaged records before any work, instead of after hours of it."""
    planned.results.require_intact(row.id for row in needed_first(planned) | planned.rows)


def _require_same_protocol(results: ResultsDirectory, plan: Plan) -> None:
    """Refuse what does not belong together with what earlier calls asked for."""
    for earlier in results.plans().values():
        before, now = _protocol(earlier), _protocol(plan)
        for name, value in now.items():
            shared = name in _OF_ALL_EXPERIMENTS or earlier.experiment == plan.experiment
            if shared and before.get(name) != value:
                was, is_now = (_in_words(asked, name) for asked in (earlier, plan))
                others = ", which holds other images" if was == is_now else ""
                raise ResultsError(
                    f"{results.root} was started with another protocol: {_IN_WORDS.get(name, name)} of "
                    f"{earlier.experiment} was {was}, now {is_now}{others}; give the same options, or choose "
                    "another directory, also where an earlier version of lgq had other defaults."
                )


def _protocol(plan: Plan) -> dict[str, Any]:
    """What calls that share a directory agree on; images by their fingerprints."""
    half = len(plan.images) // 2
    images = {"data": plan.images[:half], "validation_data": plan.images[half:]}
    return {"scale": plan.scale, **images, "shown": plan.shown, **plan.protocol}


def _in_words(plan: Plan, name: str) -> Any:
    """A part of the protocol as the user gave it."""
    return plan.protocol[name] if name in plan.protocol else getattr(plan, name, None)


def _write_plan(results: ResultsDirectory, plan: Plan) -> None:
    """Add what is asked for to what other calls asked for."""
    _require_same_protocol(results, plan)
    make_directory(results.root)
    with _locked(results, "shared", _ATTEMPTS):
        known = results.plan(plan.experiment)
        merged = plan.merged(known) if known else plan
        if rank() == 0 and merged != known:
            results.write_plan(merged)


def _attempt(context: Context, rows: Sequence[PlannedRow], outcome: ExperimentOutcome) -> list[PlannedRow]:
    """Finish the rows that no other process holds; return those that one does."""
    busy = []
    for number, row in enumerate(rows, 1):
        _log.info("row %d of %d: %s (%s)", number, len(rows), row, row.id)
        try:
            outcome.new_rows += _finish(context, context.planned.rows[row], row.id)
        except LockError as error:
            _log.info("left to another process: %s", error)
            busy.append(row)
    return busy


def _finish(context: Context, task: Task, id: str) -> bool:
    """Finish a row; return whether it took any work."""
    results = context.planned.results
    context.check_stop()
    if _is_finished(results, id):
        _log.info("%s is finished already", id)
        return False
    with _locked(results, id):
        # Another process may have finished it before this one got the lock.
        if _is_finished(results, id):
            return False
        if task.before is not None:
            _await(context, task.before)
        record = make_record(context, task, id)
        if rank() == 0:
            results.write_record(id, record)
        # All ranks wait for the record, so that none takes the row for unfinished.
        broadcast_from_first(torch.zeros(1))
    return True


def _await(context: Context, task: Task) -> None:
    """Finish a task that others need, or wait for the process that works on it."""
    id = context.planned.id_of(task)
    while True:
        try:
            _finish(context, task, id)
            return
        except LockError as error:
            _log.info("waiting: %s", error)
            time.sleep(_PATIENCE_SECONDS)


def _is_finished(results: ResultsDirectory, id: str) -> bool:
    """Return what the first process sees, so that all ranks agree."""
    return bool(broadcast_from_first(torch.tensor(int(rank() == 0 and results.is_finished(id)))))


@contextmanager
def _locked(results: ResultsDirectory, name: str, attempts: int = 1) -> Iterator[None]:
    """Keep all other calls out of the block; `LockError` on all ranks where another one stays in it."""
    with ExitStack() as stack:
        refusal = None
        for attempt in range(attempts if rank() == 0 else 0):
            time.sleep(_PAUSE_SECONDS if attempt else 0)
            try:
                stack.enter_context(directory_lock(results.lock(name)))
                refusal = None
                break
            except LockError as error:
                refusal = error
        if bool(broadcast_from_first(torch.tensor(int(refusal is not None)))):
            raise refusal or LockError(f"{name} is in use by another process.")
        yield
