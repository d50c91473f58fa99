"""Files that survive a crash: complete or absent, synced to the disk, and verified by hash.

A directory can have a manifest, which detects damage, and a lock, which keeps out a second process.
"""

import errno
import fcntl
import hashlib
import json
import logging
import os
import shutil
import socket
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

from lgq.config import ConfigError, from_json
from lgq.errors import LGQError

LOCK_FILE, MANIFEST = ".lock", "manifest.json"
MANIFEST_FORMAT = 1
WeightsChoice = Literal["best", "last"]
"""Weights of a run: those of the best validation, or those of the last checkpoint."""
_WAYS_OUT = {
    errno.ENOSPC: "free space, then run the same command again",
    errno.EDQUOT: "free space, then run the same command again",
    errno.EACCES: "change its permissions, or choose another path",
    errno.EROFS: "choose a path on a writable disk",
    errno.ENOENT: "check the path",
}
_NO_SUCH_SYNC = (errno.EINVAL, errno.ENOTSUP)
_NO_SUCH_LOCK = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)

_log = logging.getLogger(__name__)
_held_locks: set[int] = set()


class DiskError(LGQError, OSError):
    """A path that the operating system refuses: missing, forbidden, or on a full disk; the message names it.

    Also an `OSError` with the `errno` of its cause, for callers that handle some of them.
    """

    def __str__(self) -> str:
        return str(self.args[0])


@contextmanager
def named_disk_errors(path: str | Path) -> Iterator[None]:
    """Turn an `OSError` inside the block into a `DiskError` that names the path, the reason and a way out.

    path: what the block reads or writes; the file that the system names, if any, is shown instead.
    """
    try:
        yield
    except (DiskError, BrokenPipeError):
        raise
    except OSError as error:
        way_out = _WAYS_OUT.get(error.errno or 0, "check the path, or choose another")
        named = DiskError(f"cannot use {error.filename or path}: {error.strerror or error}; {way_out}.")
        named.errno, named.strerror = error.errno, error.strerror
        raise named from error


class DamagedFileError(LGQError):
    """A file that is not what was written; the message continues the name of the file."""


class DamagedDirectoryError(LGQError):
    """A directory whose files are not those of its manifest; the message is a whole sentence."""


class LockError(LGQError):
    """A directory that another process holds, or that cannot be locked."""


@dataclass(frozen=True)
class Fingerprint:
    """Size and hash of a file."""

    size: int
    sha256: str

    @classmethod
    def of(cls, data: bytes) -> "Fingerprint":
        return cls(len(data), hashlib.sha256(data).hexdigest())

    @classmethod
    def of_file(cls, path: Path) -> "Fingerprint":
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            return cls(os.fstat(file.fileno()).st_size, digest)

    def require(self, actual: "Fingerprint") -> None:
        if actual.size != self.size:
            raise DamagedFileError(f"has {actual.size:,} bytes instead of {self.size:,}")
        if actual != self:
            raise DamagedFileError("has other bytes than were written")


@dataclass(frozen=True)
class Manifest:
    """Files of a checkpoint or of published weights, with the step and the processes that they come from."""

    format_version: int
    step: int
    world_size: int
    files: dict[str, Fingerprint]

    @classmethod
    def read(cls, directory: Path) -> "Manifest":
        """Read manifest.json; a single wrong bit in it is an error."""
        with damage_named(directory, MANIFEST):
            content = unsealed_json((directory / MANIFEST).read_bytes())
        version = content.get("format_version")
        if version != MANIFEST_FORMAT:
            rule = f"this lgq reads format {MANIFEST_FORMAT}"
            raise LGQError(f"{directory} has format {version!r:.40}, {rule}: use the lgq that wrote it.")
        try:
            files = content.get("files")
            if isinstance(files, dict):
                files = {name: from_json(Fingerprint, fields) for name, fields in files.items()}
            manifest = from_json(cls, content | {"files": files})
        except ConfigError as error:
            raise DamagedDirectoryError(f"{directory} is damaged: {MANIFEST} is none ({error}).") from error
        numbers = (manifest.step, manifest.world_size, *(file.size for file in manifest.files.values()))
        if min(numbers) < 0 or max(numbers) >= 2**63:
            raise DamagedDirectoryError(f"{directory} is damaged: {MANIFEST} has a number that cannot be.")
        for name in manifest.files:
            if Path(name).is_absolute() or ".." in Path(name).parts or "\0" in name:
                raise DamagedDirectoryError(f"{directory} is damaged: {name!r:.100} is no file within it.")
        return manifest

    def write(self, directory: Path) -> None:
        """Write manifest.json and read it back."""
        write_new_file(directory / MANIFEST, sealed_json(asdict(self)))
        Manifest.read(directory)

    def verify(self, directory: Path) -> None:
        """Read every byte of every file; a `DamagedDirectoryError` names the first that differs."""
        for name, fingerprint in self.files.items():
            with damage_named(directory, name):
                fingerprint.require(Fingerprint.of_file(directory / name))


@contextmanager
def damage_named(directory: Path, name: str) -> Iterator[None]:
    """Name the directory and the file in errors of reading that file."""
    try:
        yield
    except OSError as error:
        reason = f"{name:.100} cannot be read ({error.strerror})"
        raise DamagedDirectoryError(f"{directory} is damaged: {reason}.") from error
    except DamagedFileError as error:
        raise DamagedDirectoryError(f"{directory} is damaged: {name:.100} {error}.") from error


def json_bytes(value: Any, *, indent: int | None = None) -> bytes:
    """Encode strict JSON (no NaN), which `json.loads` decodes to the same value for every Python string."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, indent=indent)
    # File names can be invalid Unicode, which must not make a checkpoint fail.
    return (text + "\n").encode("utf-8", "surrogatepass")


def sealed_json(content: dict[str, Any], *, indent: int | None = 2) -> bytes:
    """Encode JSON with its own checksum, for content that no manifest covers."""
    checksum = Fingerprint.of(json_bytes(content)).sha256
    return json_bytes({**content, "checksum": checksum}, indent=indent)


def unsealed_json(data: bytes, *, indent: int | None = 2) -> dict[str, Any]:
    """Decode the output of `sealed_json`; a single wrong bit is an error."""
    try:
        content = json.loads(data)
        content.pop("checksum")
        if data == sealed_json(content, indent=indent):
            return content
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass
    raise DamagedFileError("has other bytes than were written")


def write_new_file(path: Path, data: bytes) -> None:
    """Create a file and sync it to the disk; its name is durable after `sync_directory`."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_file(path: Path, data: bytes) -> None:
    """Write a file atomically: readers see the complete old or new content, also after a crash."""
    partial = beside(path, "partial")
    with named_disk_errors(path):
        try:
            partial.unlink(missing_ok=True)
            write_new_file(partial, data)
            os.replace(partial, path)
        except BaseException:
            with suppress(OSError):
                partial.unlink(missing_ok=True)
            raise
        sync_directory(path.parent)


def write_file(path: Path, data: bytes) -> None:
    """Write a file atomically, and create its directory where that is missing."""
    make_directory(path.parent)
    replace_file(path, data)


def require_writable(folder: Path) -> None:
    """Raise an error before long work if its results cannot be written; create nothing yet."""
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    if not (existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)):
        reason = "is not writable" if existing.is_dir() else "is a file"
        raise LGQError(f"cannot write to {folder}, as {existing} {reason}: choose another directory.")


def replace_json(path: Path, value: Any) -> None:
    replace_file(path, json_bytes(value, indent=2))


@contextmanager
def replace_directory(final: Path) -> Iterator[Path]:
    """Yield an empty directory to fill; it replaces `final` if the block succeeds, or is removed."""
    partial = beside(final, "partial")
    with removed_on_failure(partial):
        shutil.rmtree(partial, ignore_errors=True)
        make_directory(final.parent)
        os.mkdir(partial)
        yield partial
        publish_directory(partial, final)


@contextmanager
def removed_on_failure(directory: Path) -> Iterator[None]:
    try:
        yield
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise


def publish_directory(partial: Path, final: Path) -> None:
    """Rename a filled directory to its final name durably; a directory of that name is removed.

    No portable system call swaps two directories. A crash between the two renames leaves no `final`, but its
    complete old content as `<final>.replaced`.
    """
    for folder, _, files in os.walk(partial, topdown=False):
        for name in files:
            _sync(Path(folder, name))
        sync_directory(Path(folder))
    replaced = beside(final, "replaced")
    if final.exists():
        remove_directory(replaced)
        os.rename(final, replaced)
    try:
        os.rename(partial, final)
    except OSError:
        if replaced.exists():
            os.rename(replaced, final)
        raise
    sync_directory(final.parent)
    with suppress(OSError):  # the new directory is in place, whatever happens to the old one
        remove_directory(replaced)


def remove_directory(path: Path) -> None:
    """Remove a directory if it exists; a crash leaves it complete, or as `<path>.removed`."""
    if path.exists():
        removed = beside(path, "removed")
        shutil.rmtree(removed, ignore_errors=True)
        os.rename(path, removed)
        shutil.rmtree(removed)


def make_directory(path: Path) -> None:
    """Create a directory and its missing parents durably; another process may do so at the same time."""
    if not path.is_dir():
        make_directory(path.parent)
        with named_disk_errors(path):
            try:
                os.mkdir(path)
            except FileExistsError:
                if not path.is_dir():
                    raise
            sync_directory(path.parent)


def beside(path: Path, role: str) -> Path:
    """Return a path in the same directory for something that will be, or was, `path`."""
    return path.with_name(f"{path.name}.{role}")


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable, if the file system supports it."""
    try:
        _sync(path)
    except OSError as error:
        if error.errno not in _NO_SUCH_SYNC:
            raise


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def require_no_other_files(folder: Path, own: Collection[str], kind: str) -> None:
    """Refuse a directory that holds visible files besides those of its kind, so that nothing is mixed.

    own: patterns of the names that the directory may hold; unfinished copies of files may lie there too.
    """
    own = (*own, "*.partial", "*.replaced")
    if not folder.is_dir():
        return
    with named_disk_errors(folder):
        names = sorted(name for name in os.listdir(folder) if not name.startswith("."))
    others = [name for name in names if not any(fnmatchcase(name, pattern) for pattern in own)]
    if others:
        more = f" and {len(others) - 1:,} more" if len(others) > 1 else ""
        raise LGQError(
            f"{folder} is not {kind}, and it is not empty: it holds {others[0]}{more}; give a new directory "
            "as `out`."
        )


@contextmanager
def directory_lock(directory: str | Path) -> Iterator[None]:
    """Lock a directory, which is created if missing, for this process inside the block.

    The operating system releases the lock when the process ends. The file stays, but locks nothing by itself.
    """
    directory = Path(directory)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(directory / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        way_out = "make the directory writable, or choose another"
        raise LockError(f"cannot lock {directory}: {error.strerror}; {way_out}.") from error
    _held_locks.add(descriptor)
    try:
        _acquire_lock(descriptor, directory)
        # Only error messages use this, so a full disk must not stop the process here.
        with suppress(OSError):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps({"host": socket.gethostname(), "pid": os.getpid()}).encode(), 0)
        yield
    finally:
        _release_lock(descriptor)


def _acquire_lock(descriptor: int, directory: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        way_out = "wait for it, stop it, or choose another directory"
        raise LockError(f"{directory} is in use by {_lock_holder(descriptor)}: {way_out}.") from error
    except OSError as error:
        if error.errno not in _NO_SUCH_LOCK:
            raise LockError(f"cannot lock {directory}: {error.strerror}; choose another one.") from error
        _log.warning("the file system of %s has no locks: start no second process there", directory)


def _lock_holder(descriptor: int) -> str:
    try:
        holder = json.loads(os.pread(descriptor, 4096, 0))
        return f"process {holder['pid']} on {holder['host']}"
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return "another process"  # one that has not written its name yet


def _release_lock(descriptor: int) -> None:
    if descriptor in _held_locks:
        _held_locks.remove(descriptor)
        # The lock is released even if closing fails, and no error may hide the one that led here.
        with suppress(OSError):
            os.close(descriptor)


def _leave_locks_to_the_parent() -> None:
    # A data worker that outlives a killed trainer would keep its lock.
    for descriptor in list(_held_locks):
        _release_lock(descriptor)


os.register_at_fork(after_in_child=_leave_locks_to_the_parent)
