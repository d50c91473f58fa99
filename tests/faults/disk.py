"""Faults of the disk, and of the process while it writes: at every system call of a step that saves."""

import errno
import io
import os
import random
import resource
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from faulty_disk import CALLS, REAL, FaultyDisk

from faults.children import KILLED, REFUSED, Notes
from faults.injections import SignalAtStep
from faults.lab import SHORT, SURVIVED, Fault, Impossible, Lab, times

_REAL_OPEN = io.open
FIRST_STEP = SignalAtStep(1, (signal.SIGTERM,))
CHANGES = ("create", "write", "rename", "replace", "mkdir", "unlink", "rmdir")
"""A kill before any other call leaves what a kill before the next of these leaves."""
EVERY_CALL = (*CHANGES, "open", "fsync", "close")
ONE_LINE = f"The run ends with one line that says so, or no longer needs the disk. {SURVIVED}"


@dataclass(frozen=True)
class AtCall:
    """An injection: the fault comes with the `number`-th call from 0; without a fault, calls are noted."""

    fault: str | None = None
    number: int = -1
    error: int = 0

    def arm(self, out: Path, notes: Notes) -> None:
        DiskUnder(out, self, notes).install()


class DiskUnder(FaultyDisk):
    """Fails where a path in `folder` is concerned, and nowhere else."""

    def __init__(self, folder: Path, injection: AtCall, notes: Notes):
        super().__init__(injection.fault, injection.number, injection.error)
        self.folder, self._notes = folder, notes

    def install(self) -> None:
        for name in CALLS:
            setattr(os, name, self._wrapped(name))
        io.open = self._open_file  # type: ignore[assignment]

    def _open_file(self, file: Any, mode: str = "r", buffering: int = -1, *args: Any, **kwargs: Any) -> Any:
        """As `io.open`, through which pathlib opens files."""
        if isinstance(file, int) or not Path(file).is_relative_to(self.folder):
            return _REAL_OPEN(file, mode, buffering, *args, **kwargs)
        raw = _File(os.open(file, _flags(mode), 0o666), mode.strip("bt"))
        if buffering == 0:
            return raw
        binary = io.BufferedReader(raw) if "r" in mode else io.BufferedWriter(raw)
        return binary if "b" in mode else io.TextIOWrapper(binary, *args, **kwargs)

    def _concerns(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        concerned = self._path(args[0], kwargs.get("dir_fd")).is_relative_to(self.folder)
        if concerned and self.fault is None:
            self._notes.add("call", "create" if name == "open" and args[1] & os.O_CREAT else name)
        return concerned

    def _path(self, place: Any, folder: int | None) -> Path:
        if isinstance(place, int):
            try:
                return Path(os.readlink(f"/proc/self/fd/{place}"))
            except OSError:  # closed already, as shutil does
                return Path("/")
        return Path(place) if folder is None else self._path(folder, None) / os.fspath(place)

    def _die(self) -> None:
        for name in CALLS:
            setattr(os, name, REAL[name])
        io.open = _REAL_OPEN
        if self.fault == "power cut":
            self._unsynced.lose()
        os._exit(KILLED)


class _File(io.FileIO):
    """A file whose writing is a system call that can be caught."""

    def __init__(self, descriptor: int, mode: str):
        super().__init__(descriptor, mode)

    def write(self, data: Any) -> int:
        return os.write(self.fileno(), bytes(data))


def _flags(mode: str) -> int:
    kinds = {"r": os.O_RDONLY, "w": os.O_WRONLY | os.O_CREAT | os.O_TRUNC}
    return kinds.get(mode[0], os.O_WRONLY | os.O_CREAT | os.O_APPEND)


def calls_of_a_step(lab: Lab) -> list[str]:
    """Return the calls on the run directory, from resuming to the end of a step that writes everything."""

    def count() -> list[str]:
        with lab.place(stopped(lab)) as out:
            done = lab.train(SHORT, out, AtCall())
        assert done.code == 0, done.error
        return done.calls

    return lab.kept("calls of a step", count)


def meet(lab: Lab, injection: AtCall, codes: tuple[int, ...]) -> int:
    return lab.survives(SHORT, injection, template=stopped(lab), codes=codes).lost


def at_calls(
    fault: str, calls: tuple[str, ...], *, codes: tuple[int, ...] = (KILLED,), error: int = 0, every: int = 1
) -> Callable[[Lab, random.Random], list[tuple[AtCall, tuple[int, ...]]]]:
    """Cases of `meet`: the fault at each call of some kinds in turn, or at every few of them."""

    def cases(lab: Lab, chance: random.Random) -> list[tuple[AtCall, tuple[int, ...]]]:
        numbers = [number for number, call in enumerate(calls_of_a_step(lab)) if call in calls]
        chosen = numbers[chance.randrange(every) :: every]
        return [(AtCall(fault, number, error), codes) for number in chosen]

    return cases


@dataclass(frozen=True)
class LimitedFiles:
    """No file may grow beyond this many bytes: the system itself refuses."""

    size: int

    def arm(self, out: Path, notes: Notes) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (self.size, resource.RLIM_INFINITY))


def stopped(lab: Lab) -> Path:
    return lab.stopped_after(SHORT, FIRST_STEP)


def sizes(lab: Lab) -> list[int]:
    return [path.stat().st_size for path in stopped(lab).rglob("*") if path.is_file()]


def limited_files(lab: Lab, size: int) -> int:
    return lab.survives(SHORT, LimitedFiles(size), template=stopped(lab), codes=(REFUSED,)).lost


def small_disk(lab: Lab, share: float) -> int:
    """A file system with room for the first step, and for some of the second."""
    used = sum(4096 + path.stat().st_size for path in stopped(lab).rglob("*"))
    with lab.place() as out, mounted(out, f"size={used + int(share * used)}"):
        _copy(stopped(lab), out)
        broken = lab.train(SHORT, out)
        assert broken.code in (0, REFUSED), broken.error
        _mount(out, "remount,size=100m")
        return lab.resume(SHORT, out, saved=max([1, *broken.saved]))


def read_only_disk(lab: Lab) -> int:
    with lab.place() as out, mounted(out, "size=100m"):
        _copy(stopped(lab), out)
        _mount(out, "remount,ro")
        broken = lab.train(SHORT, out)
        assert broken.code == REFUSED, (broken.code, broken.error)
        _mount(out, "remount,rw")
        return lab.resume(SHORT, out, saved=1)


@contextmanager
def mounted(place: Path, options: str) -> Iterator[None]:
    place.mkdir()
    _mount(place, options)
    try:
        yield
    finally:
        subprocess.run(["umount", place], check=True)


def _mount(place: Path, options: str) -> None:
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise Impossible("there is no mount command") from error
    if done.returncode != 0:
        raise Impossible(done.stderr.strip() or "may not mount a file system")


def _copy(template: Path, out: Path) -> None:
    subprocess.run(["cp", "-r", f"{template}/.", str(out)], check=True)


SYNCED_CHANGES = (*CHANGES, "fsync")
FULL = "full from then on"
EITHER = (0, REFUSED)

FAULTS = (
    Fault("killed before a call that changes the disk", SURVIVED, meet, at_calls("killed", CHANGES)),
    Fault("killed in a write", SURVIVED, meet, at_calls("killed in a write", ("write",))),
    Fault("power cut before a call", SURVIVED, meet, at_calls("power cut", SYNCED_CHANGES)),
    Fault("a call fails (EIO)", ONE_LINE, meet, at_calls("error", EVERY_CALL, codes=EITHER, error=errno.EIO)),
    Fault(
        "disk full from a call on (ENOSPC)",
        ONE_LINE,
        meet,
        at_calls(FULL, SYNCED_CHANGES, codes=EITHER, error=errno.ENOSPC),
    ),
    Fault(
        "disk read-only from a call on (EROFS)",
        ONE_LINE,
        meet,
        at_calls(FULL, CHANGES, codes=EITHER, error=errno.EROFS, every=5),
    ),
    Fault(
        "files limited in size (RLIMIT_FSIZE)",
        ONE_LINE,
        limited_files,
        lambda lab, c: [(c.randrange(100, max(sizes(lab))),) for _ in range(15)],
    ),
    Fault("a disk that fills up (a small tmpfs)", ONE_LINE, small_disk, times(10, random.Random.random)),
    Fault("a directory mounted read-only", ONE_LINE, read_only_disk, times(3)),
)
