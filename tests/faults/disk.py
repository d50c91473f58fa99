"""Faults of the disk, and of the process while it writes: at every system call of a step that saves."""

import errno
import random
import resource
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from faults.children import KILLED, REFUSED
from faults.fault import Attempt, Fault, Impossible
from faults.injections import SignalAtStep
from faults.lab import SHORT, Lab
from faults.notes import Notes
from faults.system_calls import AtCall

FIRST_STEP = SignalAtStep(1, (signal.SIGTERM,))
CHANGES = ("create", "write", "rename", "replace", "mkdir", "unlink", "rmdir")
"""A kill before any other call leaves what a kill before the next of these leaves."""
EVERY_CALL = (*CHANGES, "open", "fsync", "close")
SURVIVED = "What was saved stays; resumed, the run ends with the bits of one that was left alone."
REFUSED_IN_ONE_LINE = f"The run ends with one line that says so, or needs the disk no more. {SURVIVED}"


def calls_of_a_step(lab: Lab) -> list[str]:
    """Those on the run directory, from the resuming to the end of a step that writes everything."""

    def count() -> list[str]:
        with lab.place(lab.stopped_after(SHORT, FIRST_STEP)) as out:
            done = lab.train(SHORT, out, AtCall())
        assert done.code == 0, done.error
        return done.calls

    return lab.kept("calls of a step", count)


def meet(lab: Lab, injection: AtCall, codes: tuple[int, ...]) -> int:
    return lab.survives(SHORT, injection, template=lab.stopped_after(SHORT, FIRST_STEP), codes=codes).lost


@dataclass(frozen=True, kw_only=True)
class AtCalls:
    """The attempts of one kind, each at another call."""

    fault: str
    calls: tuple[str, ...]
    codes: tuple[int, ...] = (KILLED,)
    error: int = 0
    every: int = 1

    def __call__(self, lab: Lab, chance: random.Random) -> Iterator[Attempt]:
        places = [number for number, call in enumerate(calls_of_a_step(lab)) if call in self.calls]
        for number in places[chance.randrange(self.every) :: self.every]:
            yield partial(meet, lab, AtCall(self.fault, number, self.error), self.codes)


@dataclass(frozen=True)
class LimitedFiles:
    """No file may grow beyond this many bytes: the system itself refuses."""

    size: int

    def arm(self, out: Path, notes: Notes) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (self.size, resource.RLIM_INFINITY))


def limited_files(lab: Lab, chance: random.Random) -> Iterator[Attempt]:
    template = lab.stopped_after(SHORT, FIRST_STEP)
    largest = max(path.stat().st_size for path in template.rglob("*") if path.is_file())
    for _ in range(15):
        size = chance.randrange(100, largest)
        yield (
            lambda size=size: (
                lab.survives(SHORT, LimitedFiles(size), template=template, codes=(REFUSED,)).lost
            )
        )


def small_disk(lab: Lab, chance: random.Random) -> Iterator[Attempt]:
    """A file system with room for the first step, and for some of the second."""
    template = lab.stopped_after(SHORT, FIRST_STEP)
    used = sum(4096 + path.stat().st_size for path in template.rglob("*"))
    for _ in range(10):
        yield partial(_on_a_small_disk, lab, used + chance.randrange(used))


def _on_a_small_disk(lab: Lab, size: int) -> int:
    template = lab.stopped_after(SHORT, FIRST_STEP)
    with lab.place() as out, mounted(out, f"size={size}"):
        _copy(template, out)
        broken = lab.train(SHORT, out)
        assert broken.code in (0, REFUSED), broken.error
        _mount(out, "remount,size=100m")
        resumed = lab.train(SHORT, out)
        lab.require_undisturbed(SHORT, out, resumed)
    return max(0, max([1, *broken.saved]) - resumed.resumed)


def read_only_disk(lab: Lab, chance: random.Random) -> Iterator[Attempt]:
    for _ in range(3):
        yield partial(_on_a_read_only_disk, lab)


def _on_a_read_only_disk(lab: Lab) -> int:
    with lab.place() as out, mounted(out, "size=100m"):
        _copy(lab.stopped_after(SHORT, FIRST_STEP), out)
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


FAULTS = (
    Fault("killed before a call that changes the disk", SURVIVED, AtCalls(fault="killed", calls=CHANGES)),
    Fault("killed in a write", SURVIVED, AtCalls(fault="killed in a write", calls=("write",))),
    Fault("power cut before a call", SURVIVED, AtCalls(fault="power cut", calls=(*CHANGES, "fsync"))),
    Fault(
        "a call fails (EIO)",
        REFUSED_IN_ONE_LINE,
        AtCalls(fault="error", calls=EVERY_CALL, codes=(0, REFUSED), error=errno.EIO),
    ),
    Fault(
        "disk full from a call on (ENOSPC)",
        REFUSED_IN_ONE_LINE,
        AtCalls(
            fault="full from then on",
            calls=(*CHANGES, "fsync"),
            codes=(0, REFUSED),
            error=errno.ENOSPC,
        ),
    ),
    Fault(
        "disk read-only from a call on (EROFS)",
        REFUSED_IN_ONE_LINE,
        AtCalls(fault="full from then on", calls=CHANGES, codes=(0, REFUSED), error=errno.EROFS, every=5),
    ),
    Fault("files limited in size (RLIMIT_FSIZE)", REFUSED_IN_ONE_LINE, limited_files),
    Fault("a disk that fills up (a small tmpfs)", REFUSED_IN_ONE_LINE, small_disk),
    Fault("a directory mounted read-only", REFUSED_IN_ONE_LINE, read_only_disk),
)
