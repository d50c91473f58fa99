"""The directory of a run: what is in it, on which machine it was made, and faults of the disk under it.

RUN/config.json        the resolved settings         RUN/environment.json   versions, hardware, seed
RUN/metrics.jsonl      see `journal.py`              RUN/checkpoints/       see `checkpoint.py`
RUN/best/, RUN/last/   what `save_pretrained` wrote at the best validation, and at the last checkpoint
"""

import platform
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import lgq
from lgq.distributed import world_size
from lgq.files import replace_json

CONFIG, ENVIRONMENT = "config.json", "environment.json"
CHECKPOINTS, BEST, LAST = "checkpoints", "best", "last"


class RunError(ValueError):
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
