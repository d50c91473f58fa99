"""The loop around any training: resuming, signals, validation, checkpoints, and a reason to stop.

What learns is a `Trainee`; what a run leaves behind is listed in `directory.py`. Steps are optimizer
steps, counted from 0; "after step n" is after n of them.
"""

import dataclasses
import logging
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lgq.distributed import rank, sum_over_ranks, world_size
from lgq.files import directory_lock, replace_directory
from lgq.hub import BEST, LAST, seal
from lgq.training.checkpoint import Checkpoints, capture_random_state, read_manifest, restore_random_state
from lgq.training.journal import Journal, WandbTracker, open_journal, show_progress
from lgq.training.losses import first_non_finite
from lgq.training.run_directory import (
    CHECKPOINTS,
    FREE_FIELDS,
    Resume,
    RunError,
    describe_run,
    disk_errors_named,
    require_as_asked,
    require_same_settings,
)
from lgq.training.settings import Best, LoopSettings, Outcome, Reason
from lgq.training.signals import StopRequest, stop_on_signals
from lgq.training.trainer import NonFiniteError, Trainee

__all__ = [
    "FREE_FIELDS",
    "DivergedError",
    "LoopSettings",
    "NonFiniteError",
    "Outcome",
    "Resume",
    "RunError",
    "Trainee",
    "run_loop",
]

_log = logging.getLogger(__name__)


class DivergedError(RunError):
    """A term of the loss is NaN or infinite; the last good checkpoint stands."""

    exit_code = 1


def run_loop(trainee: Trainee, settings: LoopSettings, out: str | Path, resume: Resume = "auto") -> Outcome:
    """Train until a reason to stop; whatever ends the process, the same call goes on from there.

    resume: `auto` continues what is in `out`, if anything; `never` refuses a directory with a run in
        it; `must` refuses one without.
    """
    run = Path(out)
    first = rank() == 0
    # Before the lock, which makes the directory: a refusal leaves nothing behind.
    require_as_asked(run, resume)
    with directory_lock(run) if first else nullcontext(), stop_on_signals() as stop, _lost_workers_named():
        loop = _Loop(trainee, settings, run)
        loop.resume()
        with _begun(run, trainee.config(), settings, loop.step) if first else nullcontext() as journal:
            return loop.go_on(journal, stop)


@contextmanager
def _lost_workers_named() -> Iterator[None]:
    """Within, the death of a process of the data loader is a `RunError`.

    torch notices it in whatever we are at, or in the midst of a batch that no longer comes.
    """
    try:
        yield
    except (RuntimeError, ConnectionResetError, ConnectionRefusedError, EOFError) as error:
        if isinstance(error, RuntimeError) and not str(error).startswith("DataLoader worker"):
            raise
        way_out = "look whether memory ran out, then run the same command again, perhaps with fewer workers"
        raise RunError(f"a process that reads images was killed or has crashed: {way_out}.") from error


@contextmanager
def _begun(run: Path, config: dict[str, Any], settings: LoopSettings, step: int) -> Iterator[Journal]:
    """The journal of a run whose files are in place."""
    describe_run(run, config)
    with ExitStack() as stack:
        tracker = None
        with disk_errors_named(run):
            if settings.wandb is not None:
                tracker = stack.enter_context(WandbTracker(run, settings.wandb, config, resumed=step > 0))
            journal = stack.enter_context(open_journal(run, step=step, tracker=tracker))
        yield journal


class _Loop:
    def __init__(self, trainee: Trainee, settings: LoopSettings, run: Path):
        self.trainee, self.settings, self.run = trainee, settings, run
        self.checkpoints = Checkpoints(run / CHECKPOINTS, settings.keep)
        self.step, self.best = 0, Best()
        self.saved_step: int | None = None
        self._seconds, self._last_look = 0.0, time.monotonic()

    @property
    def seconds(self) -> float:
        """Taken so far, over restarts. No clock of the machine can turn it back."""
        before, self._last_look = self._last_look, time.monotonic()
        self._seconds += max(0.0, self._last_look - before)
        return self._seconds

    def resume(self) -> None:
        path = self.checkpoints.latest()
        if path is None and (damaged := self.checkpoints.paths()):
            way_out = "restore one from a copy, or choose another directory to start over"
            raise RunError(f"none of {len(damaged)} checkpoints in {damaged[0].parent} is whole: {way_out}.")
        if path is None:
            return
        state = self.checkpoints.load(path)
        require_same_settings(self.run, state["config"], self.trainee.config())
        self.trainee.load_state(state["trainee"])
        self.step, self.best = state["step"], Best(**state["best"])
        self.saved_step, self._seconds = self.step, state["seconds"]
        self._restore_random_state(path, state)
        _log.info("resumed %s after step %d", path, self.step)

    def go_on(self, journal: Journal | None, stop: StopRequest) -> Outcome:
        settings, pace = self.settings, self.trainee.items_per_step
        if self.saved_step is not None:
            # A process that was killed right after its checkpoint left this undone.
            self._publish_weights()
        reason = self._reason(interrupted=False)
        with show_progress(settings.steps, self.step, pace, hidden=rank() > 0) as progress:
            while reason is None:
                terms = self._train_step()
                self.step += 1
                if self.step % settings.log_every == 0:
                    values = _mean_over_ranks(terms)
                    progress.note(values)
                    self._record(journal, "train", values)
                if self.step % settings.validate_every == 0 or self.step == settings.steps:
                    progress.note(self._validate(journal))
                reason = self._reason(interrupted=bool(stop))
                if self._checkpoint_is_due() or reason is not None:
                    self._save(journal)
                progress.advance(self.step)
        # The first rank still publishes: where one process ends, schedulers end the others.
        _count_ranks(False)
        return Outcome(reason=reason, step=self.step, best=self.best.score, best_step=self.best.step)

    def _train_step(self) -> dict[str, Tensor]:
        try:
            terms = self.trainee.train_step(self.step)
        except NonFiniteError as error:
            raise DivergedError(self._diagnosis(str(error))) from error
        culprit = first_non_finite(terms)
        # Together, or the other ranks would wait for this one for ever.
        if _count_ranks(culprit is not None):
            raise DivergedError(self._diagnosis(culprit))
        return terms

    def _diagnosis(self, culprit: str | None) -> str:
        last = "none" if self.saved_step is None else f"of step {self.saved_step}"
        way_out = f"the last good checkpoint, {last}, stands; lower the learning rate"
        if culprit is None:
            return f"another rank's loss is not finite at step {self.step}: {way_out}."
        names = ", ".join(self.trainee.describe_batch())
        return f"{culprit} is not finite at step {self.step}: {way_out}, or look at the batch: {names}."

    def _validate(self, journal: Journal | None) -> dict[str, float]:
        values = self.trainee.validate(self.step)
        by, higher = self.trainee.score, self.trainee.higher_is_better
        is_best = self.best.take(values[by], self.step, higher_is_better=higher)
        self._record(journal, "validation", values, best=is_best, best_by=by)
        return values

    def _reason(self, *, interrupted: bool) -> Reason | None:
        settings = self.settings
        if self.step >= settings.steps:
            return "finished"
        if settings.patience is not None and self.best.validations_since >= settings.patience:
            return "no_improvement"
        # Clocks and signals differ between ranks, and all must stop after the same step.
        if _count_ranks(settings.minutes is not None and self.seconds >= 60 * settings.minutes):
            return "out_of_time"
        return "interrupted" if _count_ranks(interrupted) else None

    def _checkpoint_is_due(self) -> bool:
        return self.step % self.settings.checkpoint_every == 0 or self.step == self.best.step

    def _save(self, journal: Journal | None) -> None:
        if journal is not None:
            with disk_errors_named(self.run):
                journal.sync()
        state: dict[str, Any] = {"random": capture_random_state()}
        if rank() == 0:
            state |= {
                "step": self.step,
                "seconds": self.seconds,
                "best": dataclasses.asdict(self.best),
                "config": self.trainee.config(),
                "trainee": self.trainee.state(),
            }
        self.checkpoints.save(self.step, state)
        self.saved_step = self.step
        self._publish_weights()

    def _publish_weights(self) -> None:
        """Those of the checkpoint that was just saved or loaded. No others: a run that falls back to a
        checkpoint would not know of a best score that came after it."""
        names = [LAST, BEST] if self.step == self.best.step else [LAST]
        for name in names if rank() == 0 else ():
            with disk_errors_named(self.run), replace_directory(self.run / name) as directory:
                self.trainee.save_pretrained(directory)
                seal(directory, self.step)

    def _record(self, journal: Journal | None, split: str, values: dict[str, float], **notes: Any) -> None:
        if journal is not None:
            with disk_errors_named(self.run):
                journal.record(self.step, split, values, seconds=self.seconds, **notes)

    def _restore_random_state(self, path: Path, first_rank: dict[str, Any]) -> None:
        ranks = read_manifest(path).world_size
        if ranks != world_size():
            # The random states at hand are those of a start, which nobody has drawn from yet.
            _log.warning("%s is of %d ranks, here are %d: the run becomes another", path, ranks, world_size())
            return
        state = first_rank["random"] if rank() == 0 else self.checkpoints.load(path, rank())["random"]
        restore_random_state(state)


def _mean_over_ranks(terms: dict[str, Tensor]) -> dict[str, float]:
    values = torch.stack([term.detach().double().cpu() for term in terms.values()])
    means = sum_over_ranks(values) / world_size()
    return dict(zip(terms, means.tolist(), strict=True))


def _count_ranks(here: bool) -> int:
    return int(here) if world_size() == 1 else int(sum_over_ranks(torch.tensor(int(here))))
