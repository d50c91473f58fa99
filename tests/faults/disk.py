"""Faults of the disk, and of the process while it writes: at every system call of a step that saves."""

import errno
import random
import resource
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from faults.children import KILLED, REFUSED, Notes
from faults.injections import SignalAtStep
from faults.lab import SHORT, SURVIVED, Fault, Impossible, Lab, times
from faults.system_calls import AtCall

FIRST_STEP = SignalAtStep(1, (signal.SIGTERM,))
CHANGES = ("create", "write", "rename", "replace", "mkdir", "unlink", "rmdir")
"""A kill before any other call leaves what a kill before the next of these leaves."""
EVERY_CALL = (*CHANGES, "open", "fsync", "close")
ONE_LINE = f"The run ends with one line that says so, or no longer needs the disk. {SURVIVED}"


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
        resumed = lab.train(SHORT, out)
        lab.require_undisturbed(SHORT, out, resumed)
    return max(0, max([1, *broken.saved]) - resumed.resumed)


def read_only_disk(lab: Lab) -> int:
    with lab.place() as out, mounted(out, "size=100m"):
        _copy(stopped(lab), out)
        _mount(out, "remount,ro")
        broken = lab.train(SHORT, out)
        assert broken.code == REFUSED, (broken.code, broken.error)
        _mount(out, "remount,rw")
        resumed = lab.train(SHORT, out)
        lab.require_undisturbed(SHORT, out, resumed)
    return 1 - resumed.resumed


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
