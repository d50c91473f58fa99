"""The directory of a run: what is in it, on which machine it was made, and faults of the disk under it.

RUN/config.json        the resolved settings         RUN/environment.json   versions, hardware, seed
RUN/metrics.jsonl      see `journal.py`              RUN/checkpoints/       see `checkpoint.py`
RUN/best/, RUN/last/   what `save_pretrained` wrote at the best validation, and at the last checkpoint

One process a run directory: a lock that the operating system lets go when its holder dies.

May this run go on in that directory? It must be asked for, and its settings must be those of its start.

What a run left behind, for those who use it.
"""

import errno
import fcntl
import json
import logging
import os
import platform
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal, get_args

import torch

import lgq
from lgq.checks import require_one_of
from lgq.config import ConfigError
from lgq.distributed import world_size
from lgq.errors import LGQError
from lgq.files import replace_json
from lgq.hub import WEIGHTS, find_file
from lgq.maskgit import MaskGIT
from lgq.models.sampling import Sampling
from lgq.tokenizer import Tokenizer
from lgq.training.checkpoint import MANIFEST, CheckpointError, Checkpoints, verify

CONFIG, ENVIRONMENT = "config.json", "environment.json"
CHECKPOINTS, BEST, LAST = "checkpoints", "best", "last"


class RunError(LGQError):
    """A run that cannot start or go on; the message says why, and the way out."""


def describe_run(run: Path, config: dict[str, Any]) -> None:
    """Write config.json and environment.json; `config` has a `seed`."""
    with disk_errors_named(run):
        # In this order: a config.json alone is somebody else's.
        replace_json(run / ENVIRONMENT, describe_environment(config["seed"]))
        replace_json(run / CONFIG, config)


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


@contextmanager
def disk_errors_named(run: Path) -> Iterator[None]:
    """Within, a disk that is full or not writable is a `RunError` that says so."""
    try:
        yield
    except OSError as error:
        way_out = "free space or make it writable, then run the same command again"
        raise RunError(f"cannot write to {run}: {error.strerror or error}; {way_out}.") from error


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


LOCK_FILE = ".lock"
_NO_LOCKS_HERE = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)

_log = logging.getLogger(__name__)
_held: set[int] = set()


class LockError(LGQError):
    """A run directory that this process cannot have to itself; the message says how to get it."""


@contextmanager
def run_lock(directory: str | Path) -> Iterator[None]:
    """Hold a run directory, which is made if missing, for the length of a block.

    The file stays behind and means nothing by itself: only a living process makes it a lock.
    """
    descriptor = _open(Path(directory))
    _held.add(descriptor)
    try:
        _acquire(descriptor, Path(directory))
        _introduce(descriptor)
        yield
    finally:
        _release(descriptor)


def _open(directory: Path) -> int:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        return os.open(directory / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        way_out = "make the directory writable, or choose another"
        raise LockError(f"cannot lock {directory}: {error.strerror}; {way_out}.") from error


def _acquire(descriptor: int, directory: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        way_out = "wait for it, stop it, or choose another directory"
        raise LockError(f"{directory} is in use by {_holder(descriptor)}: {way_out}.") from error
    except OSError as error:
        if error.errno not in _NO_LOCKS_HERE:
            raise LockError(f"cannot lock {directory}: {error.strerror}; choose another one.") from error
        _log.warning("the file system of %s has no locks: start no second process there", directory)


def _introduce(descriptor: int) -> None:
    # Only the message of the next one to come reads this, so a full disk is no reason to stop here.
    with suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps({"host": socket.gethostname(), "pid": os.getpid()}).encode(), 0)


def _holder(descriptor: int) -> str:
    try:
        holder = json.loads(os.pread(descriptor, 4096, 0))
        return f"process {holder['pid']} on {holder['host']}"
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        # It has just come, and not said its name yet.
        return "another process"


def _release(descriptor: int) -> None:
    if descriptor in _held:
        _held.remove(descriptor)
        # The lock is gone even where closing fails, and nothing may hide the error that led here.
        with suppress(OSError):
            os.close(descriptor)


def _leave_locks_to_the_parent() -> None:
    # A data worker that outlives a killed trainer would keep the lock for it.
    for descriptor in list(_held):
        _release(descriptor)


os.register_at_fork(after_in_child=_leave_locks_to_the_parent)


Resume = Literal["auto", "never", "must"]
"""`auto` continues the run in a directory, if any; `never` refuses one with a run, `must` one without."""

FREE_FIELDS = frozenset(
    {"workers", "data.source", "validation_data.source", "tokens.source", "validation_tokens.source"}
    | {"sample_images", *(f"sampling.{field.name}" for field in fields(Sampling))}
    | {f"loop.{name}" for name in ("epochs", "log_every", "checkpoint_every", "keep", "patience", "minutes")}
    | {"loop.wandb"}
)
"""Settings that may change when a run is resumed: the weights of a step do not depend on them. Of
`loop.epochs` they depend through `loop.steps` alone, which it is resolved to."""

_MISSING = "nothing"


def require_as_asked(run: Path, resume: Resume) -> None:
    """Refuse a directory that holds a run, or none, where `resume` says otherwise."""
    require_one_of(get_args(Resume), resume=resume)
    checkpoints = bool(Checkpoints(run / CHECKPOINTS).paths())
    described = (run / CONFIG).exists()
    if described and not checkpoints and not (run / ENVIRONMENT).exists():
        # A tokenizer's own, for one.
        raise RunError(f"{run} holds a {CONFIG} that is of no run: choose another directory.")
    exists = described or checkpoints
    if resume == "never" and exists:
        raise RunError(f"{run} holds a run already: choose another directory, or resume it with resume=auto.")
    if resume == "must" and not exists:
        raise RunError(f"{run} holds no run to resume: check the path, or start one with resume=auto.")


def require_same_settings(run: Path, saved: dict[str, Any], now: dict[str, Any]) -> None:
    """Refuse settings under which the run would become another, by the names of those that differ."""
    before, after = _by_path(saved), _by_path(now)
    differing = [
        f"{path} (was {before.get(path, _MISSING)!r}, now {after.get(path, _MISSING)!r})"
        for path in sorted((before.keys() | after.keys()) - FREE_FIELDS)
        if before.get(path, _MISSING) != after.get(path, _MISSING)
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


Which = Literal["best", "last"]
Kind = Literal["tokenizer", "generator"]


def trained_tokenizer(run: str | Path, which: Which = "best") -> Tokenizer:
    """The tokenizer of a run directory; or of one that `save_pretrained` wrote, or of the Hub.

    which: the weights of the best validation, or those of the last checkpoint. A run that was not
        validated yet has the last ones alone.
    """
    _require_kind(run, "tokenizer")
    return Tokenizer.from_pretrained(trained_weights(run, which))


def trained_generator(run: str | Path, which: Which = "best") -> MaskGIT:
    """The generator of a run directory, likewise."""
    _require_kind(run, "generator")
    return MaskGIT.from_pretrained(trained_weights(run, which))


def kind_of(source: str | Path) -> Kind:
    """What a run directory trains, or what `save_pretrained` wrote into a directory, or is on the Hub."""
    file = find_file(source, CONFIG, {})
    return "generator" if "transformer" in _read(file) else "tokenizer"


def trained_weights(run: str | Path, which: Which = "best") -> str | Path:
    """The directory, or the name on the Hub, that `trained_tokenizer` and `trained_generator` load."""
    folder = Path(run)
    if not _is_run(folder):
        return run
    order = (BEST, LAST) if which == "best" else (LAST,)
    published = [folder / name for name in order if (folder / name / WEIGHTS).is_file()]
    if not published:
        raise RunError(f"{folder} holds no {which} weights yet: let it train to its first checkpoint.")
    if published[0].name != which:
        _log.warning("%s has no %s weights yet: taking the %s ones", folder, which, published[0].name)
    _require_whole(published[0])
    return published[0]


def trained_settings(run: str | Path) -> dict[str, Any] | None:
    """The resolved settings of a run; None of what is no run directory."""
    folder = Path(run)
    return _settings(folder) if _is_run(folder) else None


def chosen_image_size(run: str | Path, given: int | None) -> int:
    """The side of images that a user gives, else that of the images that a tokenizer's run was trained on."""
    _require_kind(run, "tokenizer")
    if given is not None:
        return given
    settings = trained_settings(run)
    if settings is None:
        raise RunError(f"{run} is no run that says its image size: give --image-size.")
    return int(settings["image_size"])


def run_of(source: str | Path) -> Path:
    """The run directory to which published weights belong, which the next checkpoint replaces; else the
    directory itself."""
    folder = Path(source)
    return folder.parent if folder.name in (BEST, LAST) and _is_run(folder.parent) else folder


def _require_whole(weights: Path) -> None:
    # A second time, for a run that is at work may have replaced them meanwhile.
    for last in (False, True):
        if not (weights / MANIFEST).is_file():  # earlier versions wrote none
            return
        try:
            verify(weights)
            return
        except CheckpointError as error:
            way_out = "restore it from a copy, or resume the run, which writes its last weights anew"
            if last:
                raise RunError(f"{str(error).removesuffix('.')}: {way_out}.") from error


def _is_run(folder: Path) -> bool:
    described = (folder / CONFIG).is_file() and (folder / ENVIRONMENT).is_file()
    return described and not (folder / WEIGHTS).is_file()


def _settings(folder: Path) -> dict[str, Any]:
    settings = _read(folder / CONFIG)
    try:
        int(settings["image_size"])
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise _damaged(folder / CONFIG) from error
    return settings


def _read(file: Path) -> dict[str, Any]:
    try:
        settings = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise _damaged(file) from error
    if not isinstance(settings, dict):
        raise _damaged(file)
    return settings


def _damaged(file: Path) -> ConfigError:
    return ConfigError(f"{file} is damaged, or of no run: copy it again.")


def _require_kind(source: str | Path, expected: Kind) -> None:
    # What is on the Hub says so when it is loaded, and a directory without settings likewise.
    if (Path(source) / CONFIG).is_file() and kind_of(source) != expected:
        found = kind_of(source)
        way_out = {
            "tokenizer": "give the one that made its tokens, such as the tokenizer/ beside its weights",
            "generator": "give what `lgq train-generator` made of its tokens",
        }
        raise RunError(f"{source} is a {found}, and this needs a {expected}: {way_out[expected]}.")
