"""The directory of a run: what is in it, on which machine it was made, and faults of the disk under it.

RUN/config.json        the resolved settings         RUN/environment.json   versions, hardware, seed
RUN/metrics.jsonl      see `journal.py`              RUN/checkpoints/       see `checkpoint.py`
RUN/best/, RUN/last/   what `save_pretrained` wrote at the best validation, and at the last checkpoint

May this run go on in that directory? It must be asked for, and its settings must be those of its start.
"""

import platform
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal, get_args

import torch

import lgq
from lgq.checks import require_one_of
from lgq.distributed import world_size
from lgq.errors import LGQError
from lgq.files import replace_json
from lgq.hub import CONFIG, ENVIRONMENT
from lgq.models.sampling import Sampling
from lgq.training.checkpoint import Checkpoints

CHECKPOINTS, IMAGES = "checkpoints", "images"


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
