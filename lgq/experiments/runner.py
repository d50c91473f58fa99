"""Runs of an experiment, one after the other: what is finished is kept, what was stopped goes on.

    ending = run_experiment(named_experiment("comparison"), pocket(), sources, "results", crew=crew)

Rows depend on nothing but their settings and the images, so any number of calls may share a directory:
whoever comes first to a row holds it, the others leave it to him and look at it again at the end.
"""

import difflib
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lgq.checks import require_at_least
from lgq.distributed import join_processes, rank
from lgq.errors import LGQError
from lgq.experiments.generator_row import generator_record
from lgq.experiments.plan import Experiment, SeededRow, Sources, plan_of, run_id, seeded_rows
from lgq.experiments.results_directory import Plan, ResultsDirectory, RowsError
from lgq.experiments.scales import Scale
from lgq.experiments.tasks import CostTask, GeneratorTask, Task
from lgq.experiments.tokenizer_row import tokenizer_record
from lgq.experiments.workplace import Crew, Stopped, Workplace, alone
from lgq.files import LockError
from lgq.training.signals import INTERRUPTED, stop_on_signals

_log = logging.getLogger(__name__)


@dataclass
class Ending:
    """How a call ended."""

    rows: int
    """That were asked for."""
    made: int = 0
    """By this call; all others were finished before."""
    failed: list[str] = field(default_factory=list)
    """Ids of finished rows whose training diverged."""
    left: list[str] = field(default_factory=list)
    """Ids of rows that another process works on."""
    stopped: bool = False
    """Whether a signal ended it."""

    @property
    def exit_code(self) -> int:
        """75 where the same command should be run again, 0 where all rows are finished."""
        return INTERRUPTED if self.stopped or self.left else 0


def run_experiment(
    experiment: Experiment,
    scale: Scale,
    sources: Sources,
    out: str | Path,
    *,
    crew: Crew,
    seeds: int | None = None,
    shard: tuple[int, int] = (0, 1),
    only: Sequence[str] = (),
    command: Sequence[str] = (),
) -> Ending:
    """Train, evaluate and record the rows that are not finished yet.

    seeds: number of training seeds, from 0 on; None takes the experiment's own.
    shard: i of n, the i-th of n calls that share the rows.
    only: labels, groups or names of rows.
    """
    images, results = sources.fingerprint(), ResultsDirectory(out)
    rows = seeded_rows(experiment, scale, images, seeds)
    mine = share_of(chosen(rows, only), shard)
    device = join_processes()
    with stop_on_signals() as stop:
        work = Workplace(
            results=results,
            scale=scale,
            sources=sources,
            images=images,
            device=device,
            crew=crew,
            command=tuple(command),
            stop=stop,
        )
        note_plan(results, plan_of(experiment, scale, sources, rows))
        return _work_through(work, mine)


def chosen(rows: Sequence[SeededRow], only: Sequence[str]) -> list[SeededRow]:
    """Rows with one of these names, labels or groups; all rows where none is given."""
    names = {_plain(name) for row in rows for name in _names(row)}
    for word in only:
        if _plain(word) not in names:
            close = difflib.get_close_matches(_plain(word), names, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"choose from {', '.join(sorted(names))}."
            raise LGQError(f"no row is called {word!r}: {hint}")
    wanted = set(map(_plain, only))
    return [row for row in rows if not wanted or wanted & {_plain(name) for name in _names(row)}]


def share_of(rows: Sequence[SeededRow], shard: tuple[int, int]) -> list[SeededRow]:
    """The i-th of n shares; a run that several rows ask for is in one of them."""
    number, count = shard
    require_at_least(1, shards=count)
    if not 0 <= number < count:
        raise LGQError(f"shard must be one of 0/{count} to {count - 1}/{count}, got {number}/{count}.")
    once = list({row.id: row for row in rows}.values())
    return once[number::count]


def note_plan(results: ResultsDirectory, plan: Plan) -> None:
    """Leave what is asked for beside what others asked for; refuse what does not go together."""
    for earlier in results.plans().values():
        _require_alike(results, plan, earlier)
    if rank() == 0:
        with alone(results):
            before = results.plan(plan.experiment)
            now = plan if before is None else plan.merged(before)
            if now != before:
                results.write_plan(now)


def _require_alike(results: ResultsDirectory, plan: Plan, earlier: Plan) -> None:
    pairs: dict[str, tuple[Any, Any]] = {
        "scale": (earlier.scale, plan.scale),
        "images": (earlier.images, plan.images),
        "shown": (earlier.shown, plan.shown),
    }
    if earlier.experiment == plan.experiment:
        names = sorted(plan.protocol.keys() | earlier.protocol.keys())
        pairs |= {name: (earlier.protocol.get(name), plan.protocol.get(name)) for name in names}
    for name, (before, now) in pairs.items():
        if before != now:
            raise RowsError(
                f"{results.root} was begun with another protocol: {name} of {earlier.experiment} was "
                f"{before}, now {now}; give the same options, or choose another directory."
            )


def _work_through(work: Workplace, rows: Sequence[SeededRow]) -> Ending:
    ending = Ending(rows=len(rows))
    try:
        left = _attempt(work, rows, ending)
        # Whoever held them may be done by now, or gone.
        ending.left = [row.id for row in _attempt(work, left, ending)] if left else []
    except Stopped:
        ending.stopped = True
    records = {row.id: work.results.record(row.id) for row in rows}
    ending.failed = [id for id, record in records.items() if record and "failed" in record]
    return ending


def _attempt(work: Workplace, rows: Sequence[SeededRow], ending: Ending) -> list[SeededRow]:
    """Returns the rows that others hold."""
    left = []
    for number, row in enumerate(rows, 1):
        _log.info("row %d of %d: %s (%s)", number, len(rows), row, row.id)
        try:
            ending.made += _ensure(work, row.task, row.id)
        except LockError as error:
            _log.info("left to another process: %s", error)
            left.append(row)
    return left


def _ensure(work: Workplace, task: Task, id: str) -> bool:
    """Have a row finished; whether it took work."""
    work.go_on()
    if work.is_finished(id):
        _log.info("%s is finished already", id)
        return False
    with work.hold(id):
        # Another process may have finished it while this one came for it.
        if work.is_finished(id):
            return False
        record = _record(work, task, id)
        if rank() == 0:
            work.results.write_record(id, record)
        work.wait_for_first()
    return True


def _record(work: Workplace, task: Task, id: str) -> dict[str, Any]:
    if isinstance(task, CostTask):
        return _cost_record(work, task, id)
    if isinstance(task, GeneratorTask):
        tokenizer_id = run_id(task.tokenizer, work.scale, work.images)
        _ensure(work, task.tokenizer, tokenizer_id)
        return generator_record(work, task, id, tokenizer_id)
    return tokenizer_record(work, task, id)


def _cost_record(work: Workplace, task: CostTask, id: str) -> dict[str, Any]:
    ours, *others = work.crew.measure_cost(task)
    return work.origin(task, id) | {
        "config": task.settings(),
        "metrics": {name: value for name, value in ours.items() if not isinstance(value, str)},
        "others": others,
    }


def _names(row: SeededRow) -> tuple[str, ...]:
    names = (row.row.row, row.row.label, row.row.group)
    return tuple(name for name in names if name)


def _plain(name: str) -> str:
    return name.casefold().strip()
