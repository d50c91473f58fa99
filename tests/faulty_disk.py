"""Simulated faults at a chosen system call: a failing disk, a killed process, a power cut."""

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

CALLS = ("open", "write", "fsync", "close", "rename", "replace", "mkdir", "unlink", "rmdir")
REAL = {name: getattr(os, name) for name in CALLS}
FAULTS = ("error", "full from then on", "killed", "killed in a write", "power cut")


class Killed(BaseException):
    """End of the simulated process; nothing reaches the disk after it."""


class FaultyDisk:
    """Counts system calls, and lets one of them fail."""

    def __init__(self, fault: str | None = None, at: int = -1, error: int = errno.ENOSPC):
        self.fault, self.at, self.error = fault, at, error
        self.calls: list[str] = []
        self._unsynced = Unsynced()

    @contextmanager
    def in_use(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            for name in CALLS:
                patch.setattr(os, name, self._wrapped(name))
            with suppress(Killed):
                yield
        if self.fault == "power cut":
            self._unsynced.lose()

    def _wrapped(self, name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if not self._concerns(name, args, kwargs):
                return REAL[name](*args, **kwargs)
            self.calls.append(name)
            if name == "close":  # always, or the test would run out of descriptors; shutil closes twice
                with suppress(OSError):
                    REAL["close"](*args)
            if self.fault and len(self.calls) > self.at:
                self._fail(name, args)
            overwritten = _content(Path(args[name == "replace"])) if name in ("open", "replace") else None
            # A real sync is slow, and has no visible effect.
            result = None if name in ("close", "fsync") else REAL[name](*args, **kwargs)
            self._unsynced.record(name, args, result, overwritten)
            return result

        return call

    def _fail(self, name: str, args: tuple[Any, ...]) -> None:
        first = len(self.calls) == self.at + 1
        if self.fault == "full from then on" or (self.fault == "error" and first):
            raise OSError(self.error, os.strerror(self.error))
        if self.fault == "killed in a write" and first and name == "write":
            REAL["write"](args[0], args[1][: len(args[1]) // 2])
        if self.fault != "error":
            self._die()

    def _concerns(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        return True

    def _die(self) -> None:
        raise Killed


class Unsynced:
    """Changes that a power cut may undo: contents, new names and renames since the last fsync of each.

    Removals are never undone, so this is the worst order in which a disk could write.
    """

    def __init__(self) -> None:
        self._paths: dict[int, Path] = {}
        self._contents: dict[Path, int] = {}
        self._names: set[Path] = set()
        self._renames: list[tuple[Path, Path, bytes | None]] = []

    def record(self, name: str, args: tuple[Any, ...], result: Any, overwritten: bytes | None) -> None:
        if name == "open":
            self._paths[result] = Path(args[0])
        if name == "mkdir" or (name == "open" and args[1] & os.O_CREAT and overwritten is None):
            self._names.add(Path(args[0]))
        if name == "write":
            path = self._paths[args[0]]
            self._contents.setdefault(path, path.stat().st_size - result)
        if name == "fsync":
            self._synced(self._paths[args[0]])
        if name in ("rename", "replace"):
            self._renamed(Path(args[0]), Path(args[1]), overwritten)

    def _synced(self, path: Path) -> None:
        self._contents.pop(path, None)
        self._names = {name for name in self._names if name.parent != path}
        self._renames = [rename for rename in self._renames if rename[1].parent != path]

    def _renamed(self, old: Path, new: Path, overwritten: bytes | None) -> None:
        def moved(path: Path) -> Path:
            return new / path.relative_to(old) if path.is_relative_to(old) else path

        self._contents = {moved(path): size for path, size in self._contents.items()}
        self._names = set(map(moved, self._names))
        self._renames.append((old, new, overwritten))

    def lose(self) -> None:
        for path, size in self._contents.items():
            if path.exists():
                os.truncate(path, size)
        for path in filter(Path.exists, self._names):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        for old, new, overwritten in reversed(self._renames):
            if new.exists() and not old.exists():
                os.rename(new, old)
            if overwritten is not None:
                new.write_bytes(overwritten)


def disks_with(fault: str, calls: list[str]) -> list[FaultyDisk]:
    """Return one disk per system call that a task makes on a healthy disk, with the fault at that call.

    The last disk fails right after the task, when everything must be durable.
    """
    torn = fault == "killed in a write"
    return [FaultyDisk(fault, at) for at, name in enumerate([*calls, "end"]) if name == "write" or not torn]


def _content(path: Path) -> bytes | None:
    if not path.is_file():
        return None
    descriptor = REAL["open"](path, os.O_RDONLY)
    try:
        return os.read(descriptor, os.fstat(descriptor).st_size)
    finally:
        REAL["close"](descriptor)
