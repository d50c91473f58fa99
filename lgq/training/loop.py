"""The training loop: resume, train, validate, save checkpoints, and stop for a reason.

The same call continues a run from its newest whole checkpoint: a signal makes it write one, a kill loses the
steps since the last. Steps are optimizer steps, counted from 0: "after step n" means that n are done.
"""

import dataclasses
import logging
import math
import signal
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from types import FrameType
from typing import Any, Literal

import torch
from torch import Tensor

from lgq.distributed import rank, sum_over_ranks, world_size
from lgq.errors import LGQError, LGQWarning
from lgq.files import directory_lock, named_disk_errors, replace_directory
from lgq.hub import BEST, LAST, seal
from lgq.progress import training_progress
from lgq.training.checkpoint import Checkpoints, capture_random_state, read_manifest, restore_random_state
from lgq.training.history import History
from lgq.training.journal import HISTORY, Journal, WandbTracker, open_journal, read_records
from lgq.training.losses import first_non_finite
from lgq.training.run_directory import (
    CHECKPOINTS,
    Resume,
    describe_run,
    require_resumable,
    require_same_settings,
)
from lgq.training.trainer import NonFiniteError, Trainer
from lgq.training.watch import Finding

INTERRUPTED = 75
"""Exit code of a run that was asked to stop and has saved: run the same command again (EX_TEMPFAIL)."""

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
"""A scheduler ends the job, Ctrl-C, Slurm's warning: each asks to finish the step, save and stop."""

Reason = Literal["finished", "interrupted", "out_of_time", "no_improvement"]

_log = logging.getLogger(__name__)


class DivergedError(LGQError):
    """A term of the loss is NaN or infinite; the last good checkpoint is untouched."""

    exit_code = 1


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a run ended."""

    reason: Reason
    step: int
    """Optimizer steps done, over all restarts."""
    best: float | None
    """Best validation score, the lowest one; None before the first validation."""
    best_step: int | None
    best_by: str
    """Name of the metric that is the score."""

    @property
    def exit_code(self) -> int:
        """Return 75 if the same command should be run again, 0 if the run is over."""
        return INTERRUPTED if self.reason == "interrupted" else 0


@dataclass
class Best:
    """The best validation score so far, and the number of validations since."""

    score: float | None = None
    step: int | None = None
    validations_since: int = 0

    def update(self, score: float, step: int) -> bool:
        """Count a validation; returns whether its score is the best one."""
        if math.isfinite(score) and (self.score is None or score < self.score):
            self.score, self.step, self.validations_since = score, step, 0
            return True
        self.validations_since += 1
        return False


class StopRequest:
    """Whether a signal asked to stop."""

    def __init__(self) -> None:
        self._signals: set[int] = set()

    def __bool__(self) -> bool:
        return bool(self._signals)

    def _receive(self, number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGINT and number in self._signals:
            raise KeyboardInterrupt
        self._signals.add(number)


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Turn signals into a request that the block reads between two steps.

    A second Ctrl-C does not wait: it raises KeyboardInterrupt. Python handles signals in the main thread
    only, so in other threads no request ever comes.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    previous = {number: signal.signal(number, request._receive) for number in SIGNALS}
    try:
        yield request
    finally:
        for number, handler in previous.items():
            # None is a handler that was not installed from Python, and cannot be put back.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def run_loop(trainer: Trainer, resume: Resume = "auto", *, warning: str | None = None) -> Outcome:
    """Train until there is a reason to stop, in the trainer's run directory.

    warning: logged once it is clear that the run may start or go on.
    """
    run = trainer.out
    # Before the lock, which makes the directory: a refusal leaves nothing behind.
    require_resumable(run, resume)
    with (
        directory_lock(run) if rank() == 0 else nullcontext(),
        stop_on_signals() as stop,
        _lost_workers_named(),
    ):
        loop = _Loop(trainer)
        loop.resume()
        if warning is not None and rank() == 0:
            _log.warning("%s", warning)
        with _journal(trainer, loop.step) if rank() == 0 else nullcontext() as journal:
            loop.note_history(journal)
            return loop.train(journal, stop)


@contextmanager
def _lost_workers_named() -> Iterator[None]:
    """Turn the death of a data loader's process, whenever torch notices it, into a `LGQError`."""
    try:
        yield
    except (RuntimeError, ConnectionResetError, ConnectionRefusedError, EOFError) as error:
        if isinstance(error, RuntimeError) and not str(error).startswith("DataLoader worker"):
            raise
        way_out = "check whether memory ran out, then run the same command again, perhaps with fewer workers"
        raise LGQError(f"a process that reads images was killed or has crashed: {way_out}.") from error


@contextmanager
def _journal(trainer: Trainer, step: int) -> Iterator[Journal]:
    """Write what describes the run, and open its records."""
    run, config, project = trainer.out, trainer.described(), trainer.run.loop.wandb
    describe_run(run, config, trainer.device)
    with ExitStack() as stack:
        with named_disk_errors(run):
            tracker = None
            if project is not None:
                tracker = stack.enter_context(WandbTracker(run, project, config, resumed=step > 0))
            journal = stack.enter_context(open_journal(run, step=step, tracker=tracker))
        yield journal


class _Loop:
    def __init__(self, trainer: Trainer):
        self.trainer, self.settings, self.run = trainer, trainer.run.loop, trainer.out
        self.checkpoints = Checkpoints(self.run / CHECKPOINTS, self.settings.keep)
        self.step, self.best, self.watch = 0, Best(), trainer.watch()
        self.saved_step: int | None = None
        self._seconds, self._last_look = 0.0, time.monotonic()

    @property
    def seconds(self) -> float:
        """Seconds of training over all restarts; never decreases, whatever the clock does."""
        before, self._last_look = self._last_look, time.monotonic()
        self._seconds += max(0.0, self._last_look - before)
        return self._seconds

    def resume(self) -> None:
        """Continue from the newest whole checkpoint, if there is any checkpoint."""
        path = self.checkpoints.latest()
        if path is None and (damaged := self.checkpoints.paths()):
            way_out = "restore one from a copy, or choose another directory to start over"
            raise LGQError(f"all {len(damaged)} checkpoints in {damaged[0].parent} are damaged: {way_out}.")
        if path is None:
            return
        state = self.checkpoints.load(path)
        saved, scored = state["config"], state["best"]["score"] is not None
        config, defaults = self.trainer.config(), self.trainer.default_config()
        require_same_settings(self.run, saved, config, defaults, validated=scored)
        history, planned = History.of(saved), saved["loop"]["steps"]
        history.require_start(self.run, self.trainer.history.start_from)
        self.trainer.history = history.continued(
            self.run, step=state["step"], planned=planned, steps=self.settings.steps
        )
        self.trainer.load_state(state["trainer"])
        self.step, self.best = state["step"], Best(**state["best"])
        self.saved_step, self._seconds = self.step, state["seconds"]
        ranks = read_manifest(path).world_size
        if ranks == world_size():
            own_state = state if rank() == 0 else self.checkpoints.load(path, rank())
            restore_random_state(own_state["random"])
        else:
            # The trainer has just seeded the random numbers of this process.
            warning = "%s was saved by %d processes and continues with %d: its random numbers change"
            _log.warning(warning, path, ranks, world_size())
        _log.info("resumed %s after step %d", path, self.step)
        for extension in self.trainer.history.extensions_at(self.step):
            _log.info("%s", extension)

    def note_history(self, journal: Journal | None) -> None:
        """Record the weights that the run begins with, or that its length has changed here."""
        for note in self.trainer.history.notes_at(self.step):
            self._record(journal, HISTORY, {}, **note)

    def train(self, journal: Journal | None, stop: StopRequest) -> Outcome:
        settings, pace = self.settings, self.trainer.run.images_per_step(world_size())
        if self.saved_step is not None:
            # A process that was killed right after its checkpoint did not get here.
            self._publish_weights()
        if journal is not None:
            self.watch.replay(read_records(self.run))
            self._warn(journal, self.watch.at_start())
        reason = self._reason_to_stop(interrupted=False)
        with training_progress(
            settings.steps, self.step, pace, is_due=settings.logs, hidden=rank() > 0
        ) as bar:
            while reason is None:
                terms = self._train_step()
                self.step += 1
                if settings.logs(self.step):
                    values = _mean_over_ranks(terms)
                    bar.note(values)
                    self._record(journal, "train", values)
                if self.step % settings.validate_every == 0 or self.step == settings.steps:
                    bar.note(self._validate(journal))
                reason = self._reason_to_stop(interrupted=bool(stop))
                due = self.step % settings.checkpoint_every == 0 or self.step == self.best.step
                if due or reason is not None:
                    self._save(journal)
                bar.advance(self.step)
        # The first rank still publishes: where one process ends, schedulers end the others.
        _count_ranks(False)
        best, best_by = self.best, self.trainer.best_by
        return Outcome(reason=reason, step=self.step, best=best.score, best_step=best.step, best_by=best_by)

    def _train_step(self) -> dict[str, Tensor]:
        try:
            terms = self.trainer.train_step(self.step)
        except NonFiniteError as error:
            raise DivergedError(self._diagnosis(str(error))) from error
        culprit = first_non_finite(terms)
        # Together, or the other ranks would wait for this one for ever.
        if _count_ranks(culprit is not None):
            raise DivergedError(self._diagnosis(culprit))
        return terms

    def _diagnosis(self, culprit: str | None) -> str:
        last = "none yet" if self.saved_step is None else f"of step {self.saved_step}"
        way_out = f"the last good checkpoint ({last}) is untouched; lower the learning rate"
        if culprit is None:
            return f"another rank's loss is not finite at step {self.step}: {way_out}."
        names = ", ".join(self.trainer.batch_names)
        return f"{culprit} is not finite at step {self.step}: {way_out}, or look at the batch: {names}."

    def _validate(self, journal: Journal | None) -> dict[str, float]:
        values, best_by = self.trainer.validate(self.step), self.trainer.best_by
        is_best = self.best.update(values[best_by], self.step)
        self._record(journal, "validation", values, best=is_best, best_by=best_by)
        if journal is not None:
            with named_disk_errors(self.run):
                journal.show(self.step, "validation", self.trainer.pictures)
        return values

    def _reason_to_stop(self, *, interrupted: bool) -> Reason | None:
        settings = self.settings
        if self.step >= settings.steps:
            return "finished"
        if settings.patience is not None and self.best.validations_since >= settings.patience:
            return "no_improvement"
        # Clocks and signals differ between ranks, and all must stop after the same step.
        if _count_ranks(settings.minutes is not None and self.seconds >= 60 * settings.minutes):
            return "out_of_time"
        return "interrupted" if _count_ranks(interrupted) else None

    def _save(self, journal: Journal | None) -> None:
        if journal is not None:
            with named_disk_errors(self.run):
                journal.sync()
        state: dict[str, Any] = {"random": capture_random_state()}
        if rank() == 0:
            state |= {
                "step": self.step,
                "seconds": self.seconds,
                "best": dataclasses.asdict(self.best),
                "config": self.trainer.described(),
                "trainer": self.trainer.state(),
            }
        self.checkpoints.save(self.step, state)
        self.saved_step = self.step
        self._publish_weights()

    def _publish_weights(self) -> None:
        """Write last/, and best/ if it is due, after the checkpoint that they belong to.

        Never before it: a run that falls back to an older checkpoint would not know of a best score that
        came after.
        """
        names = [LAST, BEST] if self.step == self.best.step else [LAST]
        for name in names if rank() == 0 else ():
            with named_disk_errors(self.run), replace_directory(self.run / name) as directory:
                self.trainer.save_pretrained(directory)
                seal(directory, self.step)

    def _record(self, journal: Journal | None, split: str, values: dict[str, float], **notes: Any) -> None:
        if journal is not None:
            with named_disk_errors(self.run):
                journal.record(self.step, split, values, seconds=self.seconds, **notes)
            self._warn(journal, self.watch.look(self.step, split, values))

    def _warn(self, journal: Journal, findings: Sequence[Finding]) -> None:
        for finding in findings:
            with named_disk_errors(self.run):
                journal.warn(self.step, finding, seconds=self.seconds)
            warnings.warn(finding.message, LGQWarning, stacklevel=2)


def _mean_over_ranks(terms: dict[str, Tensor]) -> dict[str, float]:
    values = torch.stack([term.detach().cpu().double() for term in terms.values()])
    means = sum_over_ranks(values) / world_size()
    return dict(zip(terms, means.tolist(), strict=True))


def _count_ranks(condition: bool) -> int:
    """Return the number of ranks on which a condition holds."""
    return int(condition) if world_size() == 1 else int(sum_over_ranks(torch.tensor(int(condition))))
