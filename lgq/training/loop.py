"""The loop around any training: run directory, resuming, signals, validation, stopping.

    RUN/config.json        the resolved settings         RUN/environment.json   versions, hardware, seed
    RUN/metrics.jsonl      see `journal.py`              RUN/checkpoints/       see `checkpoint.py`
    RUN/best/, RUN/last/   what `save_pretrained` wrote at the best validation, and at the last checkpoint

What learns is a `Trainee`. Steps are optimizer steps, counted from 0; "after step n" is after n of them.
"""

import dataclasses
import logging
import math
import platform
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal, Protocol, get_args, runtime_checkable

import torch
from torch import Tensor

import lgq
from lgq.checks import require_above_zero, require_at_least, require_one_of
from lgq.distributed import rank, sum_over_ranks, world_size
from lgq.files import replace_directory, replace_json
from lgq.training.checkpoint import Checkpoints, read_manifest
from lgq.training.journal import Journal, open_journal, show_progress
from lgq.training.lock import run_lock
from lgq.training.losses import first_non_finite
from lgq.training.signals import INTERRUPTED, StopRequest, stop_on_signals
from lgq.training.state import capture_random_state, restore_random_state

Resume = Literal["auto", "never", "must"]
Reason = Literal["finished", "interrupted", "out_of_time", "no_improvement"]

CONFIG, ENVIRONMENT = "config.json", "environment.json"
CHECKPOINTS, BEST, LAST = "checkpoints", "best", "last"
FREE_FIELDS = frozenset(
    {"workers", "data.source", "validation_data.source"}
    | {f"loop.{name}" for name in ("log_every", "checkpoint_every", "keep", "patience", "minutes")}
)
"""Settings that may change when a run is resumed: the weights it reaches do not depend on them."""

_log = logging.getLogger(__name__)


class RunError(ValueError):
    """A run that cannot start or go on; the message says why, and the way out."""


class DivergedError(RunError):
    """A term of the loss is no number any more; the last good checkpoint stands."""


@dataclass(frozen=True, kw_only=True)
class LoopSettings:
    """How long a run goes on, and what it leaves behind on the way."""

    steps: int = 20_000
    """Optimizer steps of the whole run."""
    log_every: int = 50
    """Steps from one training record to the next."""
    validate_every: int = 1_000
    """Steps from one validation to the next; the last step has one in any case."""
    checkpoint_every: int = 1_000
    """Steps that a killed run may have to do again."""
    keep: int = 3
    """Checkpoints to keep, the newest ones."""
    patience: int | None = None
    """Stop after this many validations in a row without a better score; None never does."""
    minutes: float | None = None
    """Stop after this time, which counts over restarts; None has no limit."""

    def __post_init__(self) -> None:
        require_at_least(1, steps=self.steps, log_every=self.log_every, validate_every=self.validate_every)
        require_at_least(1, checkpoint_every=self.checkpoint_every, keep=self.keep)
        if self.patience is not None:
            require_at_least(1, patience=self.patience)
        if self.minutes is not None:
            require_above_zero(minutes=self.minutes)


@runtime_checkable
class Trainee(Protocol):
    """What learns. With several processes every method is called on every rank, in the same order."""

    score: str
    """The value of `validate` that decides which weights are the best."""
    higher_is_better: bool
    items_per_step: int
    """Over all ranks; for the rate that is shown."""

    def config(self) -> dict[str, Any]:
        """All that the result depends on, resolved, as JSON; with a `seed`."""

    def train_step(self, step: int) -> dict[str, Tensor]:
        """One optimizer step, the `step`-th from 0; detached scalars, in the order in which one spoils
        the next. May raise `NonFiniteError` where it cannot go on."""

    def validate(self, step: int) -> dict[str, float]:
        """After `step` steps, the same on every rank; draws no random numbers."""

    def state(self) -> dict[str, Any]:
        """All that `load_state` needs to go on to the last bit, but the random states."""

    def load_state(self, state: dict[str, Any]) -> None: ...

    def save_pretrained(self, directory: Path) -> None:
        """Write what users load; on the first rank alone."""

    def describe_batch(self) -> list[str]:
        """Names of the files in the present batch of this rank."""


class NonFiniteError(ArithmeticError):
    """Raised by a trainee that met NaN or infinity before it had a loss; names the term."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a run ended."""

    reason: Reason
    step: int
    """Optimizer steps done, over all restarts."""
    best: float | None
    """The best score of a validation, if there was one."""
    best_step: int | None

    @property
    def exit_code(self) -> int:
        """75 where the same command should be run again, 0 where the run is over."""
        return INTERRUPTED if self.reason == "interrupted" else 0


def run_loop(trainee: Trainee, settings: LoopSettings, out: str | Path, resume: Resume = "auto") -> Outcome:
    """Train until a reason to stop; whatever ends the process, the same call goes on from there.

    resume: `auto` continues what is in `out`, if anything; `never` refuses a directory with a run in
        it; `must` refuses one without.
    """
    require_one_of(get_args(Resume), resume=resume)
    run = Path(out)
    first = rank() == 0
    # Before the lock, which makes the directory: a refusal leaves nothing behind.
    _require_as_asked(run, resume)
    with run_lock(run) if first else nullcontext(), stop_on_signals() as stop:
        loop = _Loop(trainee, settings, run)
        loop.resume()
        with ExitStack() as stack:
            journal = stack.enter_context(_begun(run, trainee.config(), loop.step)) if first else None
            return loop.go_on(journal, stop)


@contextmanager
def _begun(run: Path, config: dict[str, Any], step: int) -> Iterator[Journal]:
    """The journal of a run whose files are in place."""
    with ExitStack() as stack:
        with _disk_errors_named(run):
            replace_json(run / CONFIG, config)
            replace_json(run / ENVIRONMENT, describe_environment(config["seed"]))
            journal = stack.enter_context(open_journal(run, step=step))
        yield journal


def describe_environment(seed: int | None) -> dict[str, Any]:
    """What environment.json holds: enough to run the same again."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "lgq": _version(),
        "platform": platform.platform(),
        "git_commit": _git_commit(),
        "seed": seed,
        "world_size": world_size(),
        "devices": _devices(),
    }


def _version() -> str | None:
    try:
        return version("lgq")
    except PackageNotFoundError:  # used from its sources, without an installation
        return None


def _git_commit() -> str | None:
    command = ["git", "-C", str(Path(lgq.__file__).parent), "rev-parse", "HEAD"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found.stdout.strip() or None


def _devices() -> list[str]:
    if torch.cuda.is_available():
        return [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return [f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads"]


@dataclass
class _Best:
    """The best score so far, and how long ago it was."""

    score: float | None = None
    step: int | None = None
    validations_since: int = 0

    def take(self, score: float, step: int, *, higher_is_better: bool) -> bool:
        """Whether this score is the best one."""
        better = self.score is None or (score > self.score if higher_is_better else score < self.score)
        if better and math.isfinite(score):
            self.score, self.step, self.validations_since = score, step, 0
            return True
        self.validations_since += 1
        return False


class _Loop:
    def __init__(self, trainee: Trainee, settings: LoopSettings, run: Path):
        self.trainee, self.settings, self.run = trainee, settings, run
        self.checkpoints = Checkpoints(run / CHECKPOINTS, settings.keep)
        self.step, self.best = 0, _Best()
        self.saved_step: int | None = None
        self._began, self._seconds_before = time.monotonic(), 0.0

    @property
    def seconds(self) -> float:
        return self._seconds_before + time.monotonic() - self._began

    def resume(self) -> None:
        path = self.checkpoints.latest()
        if path is None and (damaged := self.checkpoints.paths()):
            way_out = "restore one from a copy, or choose another directory to start over"
            raise RunError(f"none of {len(damaged)} checkpoints in {damaged[0].parent} is whole: {way_out}.")
        if path is None:
            return
        state = self.checkpoints.load(path)
        _require_same_settings(self.run, state["config"], self.trainee.config())
        self.trainee.load_state(state["trainee"])
        self.step, self.best = state["step"], _Best(**state["best"])
        self.saved_step, self._seconds_before = self.step, state["seconds"]
        self._restore_random_state(path, state)
        _log.info("resumed %s after step %d", path, self.step)

    def go_on(self, journal: Journal | None, stop: StopRequest) -> Outcome:
        steps, pace = self.settings.steps, self.trainee.items_per_step
        reason = self._reason(interrupted=False)
        if reason is not None and self.saved_step is not None:
            # There is nothing to do, but a process killed right after its last checkpoint left this undone.
            self._publish(LAST)
        with show_progress(steps, self.step, pace, hidden=rank() > 0) as progress:
            while reason is None:
                terms = self._train_step()
                self.step += 1
                if self.step % self.settings.log_every == 0:
                    values = _mean_over_ranks(terms)
                    progress.note(values)
                    self._record(journal, "train", values)
                if self.step % self.settings.validate_every == 0 or self.step == steps:
                    progress.note(self._validate(journal))
                reason = self._reason(interrupted=bool(stop))
                if self.step % self.settings.checkpoint_every == 0 or reason is not None:
                    self._save()
                progress.advance(self.step)
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
        if is_best:
            self._publish(BEST)
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

    def _save(self) -> None:
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
        self._publish(LAST)

    def _publish(self, name: str) -> None:
        if rank() == 0:
            with _disk_errors_named(self.run), replace_directory(self.run / name) as directory:
                self.trainee.save_pretrained(directory)

    def _record(self, journal: Journal | None, split: str, values: dict[str, float], **notes: Any) -> None:
        if journal is not None:
            with _disk_errors_named(self.run):
                journal.record(self.step, split, values, seconds=self.seconds, **notes)

    def _restore_random_state(self, path: Path, first_rank: dict[str, Any]) -> None:
        ranks = read_manifest(path).world_size
        if ranks != world_size():
            # The random states at hand are those of a start, which nobody has drawn from yet.
            _log.warning("%s is of %d ranks, here are %d: the run becomes another", path, ranks, world_size())
            return
        state = first_rank["random"] if rank() == 0 else self.checkpoints.load(path, rank())["random"]
        restore_random_state(state)


def _require_as_asked(run: Path, resume: Resume) -> None:
    exists = (run / CONFIG).exists() or bool(Checkpoints(run / CHECKPOINTS).paths())
    if resume == "never" and exists:
        raise RunError(f"{run} holds a run already: choose another directory, or resume it with resume=auto.")
    if resume == "must" and not exists:
        raise RunError(f"{run} holds no run to resume: check the path, or start one with resume=auto.")


def _require_same_settings(run: Path, saved: dict[str, Any], now: dict[str, Any]) -> None:
    before, after = _by_path(saved), _by_path(now)
    paths = sorted((before.keys() | after.keys()) - FREE_FIELDS)
    missing = "nothing"
    differing = [
        f"{path} (was {before.get(path, missing)!r}, now {after.get(path, missing)!r})"
        for path in paths
        if before.get(path, missing) != after.get(path, missing)
    ]
    if differing:
        way_out = "resume with the old settings, or choose another directory"
        raise RunError(f"{run} was begun with other settings: {', '.join(differing)}; {way_out}.")


def _by_path(settings: Any, path: str = "") -> dict[str, Any]:
    """Nested settings as one level, such as {"loss.l1": 1.0}."""
    if not isinstance(settings, dict) or not settings:
        return {path: settings}
    inner = ((f"{path}.{name}" if path else name, value) for name, value in settings.items())
    return {name: value for place, part in inner for name, value in _by_path(part, place).items()}


def _mean_over_ranks(terms: dict[str, Tensor]) -> dict[str, float]:
    values = torch.stack([term.detach().double().cpu() for term in terms.values()])
    means = sum_over_ranks(values) / world_size()
    return dict(zip(terms, means.tolist(), strict=True))


def _count_ranks(here: bool) -> int:
    return int(here) if world_size() == 1 else int(sum_over_ranks(torch.tensor(int(here))))


@contextmanager
def _disk_errors_named(run: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        way_out = "free space or make it writable, then run the same command again"
        raise RunError(f"cannot write to {run}: {error.strerror or error}; {way_out}.") from error
