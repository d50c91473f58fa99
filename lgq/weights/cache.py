"""The converted weights on this machine: one safetensors file a set, which vouches for its own tensors."""

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import platformdirs
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from lgq.files import make_directory, sync_directory, write_new_file
from lgq.weights.errors import WeightsError
from lgq.weights.registry import SETS, WeightSet, find

CACHE_VARIABLE = "LGQ_CACHE"


@dataclass(frozen=True, kw_only=True)
class Status:
    """Whether a set is here, and what to do if not."""

    name: str
    purpose: str
    """What cannot be computed without it."""
    state: Literal["here", "absent", "damaged"]
    path: Path
    command: str
    """The way to have it."""


def cache_directory() -> Path:
    """`LGQ_CACHE`, else the platform's directory for caches."""
    return Path(os.environ.get(CACHE_VARIABLE) or platformdirs.user_cache_dir("lgq")).expanduser()


def status() -> list[Status]:
    return [_status(weights) for weights in SETS.values()]


def load(name: str) -> dict[str, Tensor]:
    """The tensors of a set, checked; never from the network."""
    weights = find(name)
    path = path_of(weights)
    if not path.is_file():
        raise WeightsError(f"{weights.purpose} needs weights that are not here: {weights.command}.")
    try:
        return _read(path, weights)
    except (SafetensorError, OSError) as error:
        raise WeightsError(f"{path} cannot be read ({error!s:.300}): {weights.command}.") from error


def is_here(weights: WeightSet) -> bool:
    return _status(weights).state == "here"


def path_of(weights: WeightSet) -> Path:
    return cache_directory() / "weights" / f"{weights.name}.safetensors"


@contextmanager
def workspace() -> Iterator[Path]:
    """A directory in the cache that vanishes, for what comes before a set is whole."""
    directory = cache_directory() / "weights"
    try:
        make_directory(directory)
        with TemporaryDirectory(dir=directory, prefix="partial-") as work:
            yield Path(work)
    except OSError as error:
        raise WeightsError(
            f"the cache {directory} cannot be written ({error}): set {CACHE_VARIABLE} to a directory "
            "with 400 MB to spare."
        ) from error


def store(weights: WeightSet, tensors: dict[str, Tensor], work: Path) -> None:
    """Put a set into the cache in one step; several processes may do so at once."""
    metadata = {"source_sha256": weights.fingerprint.sha256, "tensors_sha256": _digest(tensors)}
    path = path_of(weights)
    write_new_file(work / path.name, save(tensors, metadata))
    os.replace(work / path.name, path)
    sync_directory(path.parent)


def _status(weights: WeightSet) -> Status:
    state: Literal["here", "absent", "damaged"] = "absent"
    if path_of(weights).is_file():
        try:
            load(weights.name)
            state = "here"
        except WeightsError:
            state = "damaged"
    return Status(
        name=weights.name,
        purpose=weights.purpose,
        state=state,
        path=path_of(weights),
        command=weights.command,
    )


def _read(path: Path, weights: WeightSet) -> dict[str, Tensor]:
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata() or {}
        names = file.keys()
        tensors = {name: file.get_tensor(name) for name in names}
    if metadata.get("source_sha256") != weights.fingerprint.sha256:
        raise WeightsError(f"{path} was made from another file than {weights.filename}: {weights.command}.")
    if metadata.get("tensors_sha256") != _digest(tensors):
        raise WeightsError(f"{path} has other bytes than were written: {weights.command}.")
    return tensors


def _digest(tensors: dict[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
        digest.update(tensor.numpy().data)
    return digest.hexdigest()
