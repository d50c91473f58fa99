"""Where runs meet faults: a folder with pictures, runs that met no fault, and comparisons with those."""

import os
import random
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from identity import assert_identical
from leftovers import last_state
from process_groups import environments
from tiny_run import TINY, left_by, paint_photos

from faults.children import (
    KILLED,
    Ending,
    Injection,
    Notes,
    Order,
    ending,
    nursery,
    start,
    wait_for,
)
from lgq.files import LOCK_FILE
from lgq.training.checkpoint import Checkpoints
from lgq.training.settings import LoopSettings, TokenizerRun

SURVIVED = "Saved work stays; the resumed run ends bit for bit as one that met no fault."
DEATHS = (KILLED, -signal.SIGKILL)
SHORT = replace(TINY, loop=LoopSettings(steps=2, log_every=1, validate_every=2, checkpoint_every=1, keep=1))
"""Its second step writes everything that a run ever writes, and removes the checkpoint of the first."""

Injections = tuple[Injection | None, Injection | None]
"""Faults of the first and the second process."""


@dataclass(frozen=True)
class Try:
    """A run that met a fault and was resumed."""

    broken: Ending
    resumed: Ending
    lost: int
    """Steps that were saved, and had to be done again."""


class Lab:
    """A folder for many runs, each of which is removed when it was compared."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.photos = folder / "photos"
        paint_photos(self.photos)
        self._numbers = count()
        self._kept: dict[str, Any] = {}

    @contextmanager
    def place(self, template: Path | None = None) -> Iterator[Path]:
        """A run directory, absent or a copy, for the length of a block."""
        out = self.new_path()
        if template is not None:
            shutil.copytree(template, out)
        try:
            yield out
        finally:
            shutil.rmtree(out, ignore_errors=True)

    def new_path(self) -> Path:
        return self.folder / f"{next(self._numbers):05d}"

    def kept(self, key: Any, make: Any) -> Any:
        """Return what `make` gave when this key came first."""
        key = repr(key)  # settings hold dicts
        if key not in self._kept:
            self._kept[key] = make()
        return self._kept[key]

    def order(self, run: TokenizerRun, out: Path, injection: Injection | None = None, **rest: Any) -> Order:
        notes = Notes(self.folder / f"notes-{next(self._numbers):05d}")
        rest = {"data": str(self.photos)} | rest
        return Order(run=run, out=out, notes=notes, injection=injection, **rest)

    def train(self, run: TokenizerRun, out: Path, injection: Injection | None = None, **rest: Any) -> Ending:
        """Train in one process, to its end."""
        order = self.order(run, out, injection, **rest)
        process = start(order)
        wait_for(process)
        return ending(order, process)

    def train_two(self, run: TokenizerRun, out: Path, injections: Injections = (None, None)) -> Ending:
        """Train in two processes; returns how the first one ended, with the worst exit code of both."""
        pairs = zip(injections, environments(2), strict=True)
        orders = [self.order(run, out, injection, group=variables) for injection, variables in pairs]
        processes = [start(order) for order in orders]
        wait_for(*processes)
        endings = [ending(*pair) for pair in zip(orders, processes, strict=True)]
        codes = {end.code for end in endings}
        deaths = codes.intersection(DEATHS)
        return replace(endings[0], code=min(deaths) if deaths else max(codes))

    def undisturbed(self, run: TokenizerRun, *, ranks: int = 1, **rest: Any) -> Any:
        """Return what a run leaves that met no fault."""

        def make() -> Any:
            with self.place() as out:
                done = self.train_two(run, out) if ranks == 2 else self.train(run, out, **rest)
                assert done.code == 0, done.error
                return left(out, ranks)

        return self.kept((run, ranks, *sorted(rest.items())), make)

    def stopped_after(self, run: TokenizerRun, injection: Injection) -> Path:
        """Return the directory of a run that was stopped, to be copied."""

        def make() -> Path:
            out = self.new_path()
            assert self.train(run, out, injection).code == 75
            return out

        return self.kept((run, injection), make)

    def survives(
        self,
        run: TokenizerRun,
        injection: Injection | None,
        *,
        template: Path | None = None,
        codes: tuple[int, ...] = DEATHS,
        **rest: Any,
    ) -> Try:
        """Meet the fault, end with one of the exit codes, resume, and end as one that met no fault."""
        with self.place(template) as out:
            before = newest_step(out)
            broken = self.train(run, out, injection, **rest)
            require_documented(broken, codes)
            lost = max([before, *broken.saved])
            resumed = self.train(run, out, **rest)
            self.require_undisturbed(run, out, resumed, **rest)
        return Try(broken, resumed, max(0, lost - resumed.resumed))

    def resume(self, run: TokenizerRun, out: Path, saved: int, *, ranks: int = 1, **rest: Any) -> int:
        """Resume, end as a run that met no fault, and return how many of the saved steps were lost."""
        resumed = self.train_two(run, out) if ranks == 2 else self.train(run, out, **rest)
        self.require_undisturbed(run, out, resumed, ranks=ranks, **rest)
        return max(0, saved - resumed.resumed)

    def require_undisturbed(
        self, run: TokenizerRun, out: Path, resumed: Ending, *, ranks: int = 1, **rest: Any
    ) -> None:
        """Refuse a run that did not end, or left anything else than one that met no fault."""
        assert resumed.code == 0, f"did not continue: {resumed.code} {resumed.error}"
        assert_identical(left(out, ranks), self.undisturbed(run, ranks=ranks, **rest))


def require_documented(end: Ending, codes: tuple[int, ...]) -> None:
    assert end.code in codes, f"ended with {end.code}, not with one of {codes}: {end.error}"
    if end.code == 2:
        assert end.error, "ended without a message"
        assert "\\n" not in end.error, f"more than one line: {end.error}"


def newest_step(run: Path) -> int:
    latest = Checkpoints(run / "checkpoints").latest()
    return 0 if latest is None else int(latest.name.split("-")[1].split(".")[0])


@contextmanager
def open_lab() -> Iterator[Lab]:
    """Open a lab, in memory where possible: no fault here needs a real disk, which takes long to sync."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with nursery(), tempfile.TemporaryDirectory(dir=memory) as folder:
        yield Lab(Path(folder))


def left(out: Path, ranks: int) -> Any:
    """Return what a run left, with the states of all its processes."""
    return [left_by(out), *(last_state(out, rank) for rank in range(1, ranks))]


def contents(folder: Path) -> dict[str, bytes]:
    """Return the content of every file, except the lock's, which names its last holder."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != LOCK_FILE)
    return {str(path): path.read_bytes() for path in files}


class Impossible(Exception):  # noqa: N818 - not an error: the machine cannot do this
    """This machine cannot make the fault, for the reason given."""


Cases = Callable[[Lab, random.Random], Iterable[tuple[Any, ...]]]
"""Ways to meet a fault, the same for the same random numbers."""


def times(count: int, *draws: Callable[[random.Random], Any]) -> Cases:
    """Draw so many random cases, each of one value per draw."""
    return lambda _, chance: [tuple(draw(chance) for draw in draws) for _ in range(count)]


@dataclass(frozen=True)
class Fault:
    """A fault, what is promised, and how it is met."""

    name: str
    promise: str
    meet: Callable[..., int]
    """Called with the lab and a case; returns the steps lost beyond the last checkpoint, or raises if a
    promise is broken."""
    cases: Cases

    def attempts(self, lab: Lab, chance: random.Random) -> list[Callable[[], int]]:
        return [partial(self.meet, lab, *case) for case in self.cases(lab, chance)]
