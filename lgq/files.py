"""Files that survive a crash: whole or absent, on the disk before anything relies on them, known by hash."""

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lgq.errors import LGQError

_WAYS_OUT = {
    errno.ENOSPC: "free space, then run the same command again",
    errno.EDQUOT: "free space, then run the same command again",
    errno.EACCES: "change its permissions, or choose another path",
    errno.EROFS: "choose a path on a writable disk",
    errno.ENOENT: "check the path",
}
_NO_SUCH_SYNC = (errno.EINVAL, errno.ENOTSUP)


class DiskError(LGQError, OSError):
    """A path that the operating system refuses: missing, forbidden, or on a full disk; the message names it.

    Also an `OSError` with the `errno` of its cause, for callers that handle some of them.
    """

    def __str__(self) -> str:
        return str(self.args[0])


@contextmanager
def named_disk_errors(path: str | Path, way_out: str = "") -> Iterator[None]:
    """Turn an `OSError` inside the block into a `DiskError` that names the path, the reason and a way out.

    path: what the block reads or writes; the file that the system names, if any, is shown instead.
    """
    try:
        yield
    except (DiskError, BrokenPipeError):
        raise
    except OSError as error:
        advice = way_out or _WAYS_OUT.get(error.errno or 0, "check the path, or choose another")
        named = DiskError(f"cannot use {error.filename or path}: {error.strerror or error}; {advice}.")
        named.errno, named.strerror = error.errno, error.strerror
        raise named from error


class DamagedFileError(LGQError):
    """A file that is not what was written; the message goes on after the file's name."""


@dataclass(frozen=True)
class Fingerprint:
    """What tells a file from every other one."""

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

    def require(self, found: "Fingerprint") -> None:
        if found.size != self.size:
            raise DamagedFileError(f"has {found.size:,} bytes instead of {self.size:,}")
        if found != self:
            raise DamagedFileError("has other bytes than were written")


def json_bytes(value: Any, *, indent: int | None = None) -> bytes:
    """Strict JSON (no NaN) that `json.loads` turns into the same value, for every string of Python."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, indent=indent)
    # A name that is no valid Unicode, as file names can be, is no reason to lose a checkpoint.
    return (text + "\n").encode("utf-8", "surrogatepass")


def sealed_json(content: dict[str, Any], *, indent: int | None = 2) -> bytes:
    """JSON with its own checksum, for what no other file vouches for."""
    checksum = Fingerprint.of(json_bytes(content)).sha256
    return json_bytes({**content, "checksum": checksum}, indent=indent)


def unsealed_json(data: bytes, *, indent: int | None = 2) -> dict[str, Any]:
    """The content of `sealed_json`, of which not a single bit may differ."""
    try:
        content = json.loads(data)
        content.pop("checksum")
        if data == sealed_json(content, indent=indent):
            return content
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass
    raise DamagedFileError("has other bytes than were written")


def write_new_file(path: Path, data: bytes) -> None:
    """Create a file and wait until the disk has it; its name is durable after `sync_directory`."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_file(path: Path, data: bytes) -> None:
    """Write a file in one step: a reader, or a crash, meets the old content or the new, each whole."""
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


def replace_json(path: Path, value: Any) -> None:
    replace_file(path, json_bytes(value, indent=2))


@contextmanager
def replace_directory(final: Path) -> Iterator[Path]:
    """An empty directory to fill: it takes the place of `final` if the block ends well, or vanishes."""
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
    """Make a filled directory durable under its final name; what had that name before goes.

    No system call swaps two directories everywhere. So a crash in the one moment between the two
    renames leaves no `final`, but its old content whole, as `<final>.replaced`.
    """
    sync_tree(partial)
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
    with suppress(OSError):  # the new one stands, whatever happens to the old
        remove_directory(replaced)


def remove_directory(path: Path) -> None:
    """Remove a directory, if there is one; a crash leaves it whole, or as `<path>.removed`."""
    if path.exists():
        removed = beside(path, "removed")
        shutil.rmtree(removed, ignore_errors=True)
        os.rename(path, removed)
        shutil.rmtree(removed)


def make_directory(path: Path) -> None:
    """Create a directory and its missing parents, each durable; another process may do so meanwhile."""
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
    """The name, in the same directory, of something that is not `path` yet or no longer."""
    return path.with_name(f"{path.name}.{role}")


def sync_tree(directory: Path) -> None:
    for folder, _, files in os.walk(directory, topdown=False):
        for name in files:
            _sync(Path(folder, name))
        sync_directory(Path(folder))


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable, where the file system can do so."""
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
