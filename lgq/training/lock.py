"""One process a run directory: a lock that the operating system lets go when its holder dies."""

import errno
import fcntl
import json
import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

LOCK_FILE = ".lock"
_NO_LOCKS_HERE = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)

_log = logging.getLogger(__name__)
_held: set[int] = set()


class LockError(ValueError):
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
