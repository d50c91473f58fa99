"""Where runs meet faults: a folder with pictures, runs that nothing disturbs, a verdict on the others."""

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

from identity import assert_identical
from leftovers import last_state
from tiny_run import TINY, left_by, paint_photos

from faults.children import KILLED, Ending, Injection, Order, address, ending, nursery, start, wait_for
from faults.notes import Notes
from lgq.files import LOCK_FILE
from lgq.training.checkpoint import Checkpoints
from lgq.training.settings import LoopSettings, TokenizerRun

DEATHS = (KILLED, -signal.SIGKILL)
SHORT = replace(TINY, loop=LoopSettings(steps=2, log_every=1, validate_every=2, checkpoint_every=1, keep=1))
"""Its second step writes all that a run ever writes, and removes the checkpoint of the first."""


Injections = tuple[Injection | None, Injection | None]
"""Of the first and the second process."""


@dataclass(frozen=True)
class Try:
    """A run that met a fault and was resumed."""

    broken: Ending
    resumed: Ending
    lost: int
    """Steps that were saved, and had to be done again."""


class Lab:
    """A folder for many runs, each of which is removed when its verdict is there."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.photos = folder / "photos"
        self.photos.mkdir()
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
        """What `make` gave when this key came first."""
        key = repr(key)  # settings hold dicts
        if key not in self._kept:
            self._kept[key] = make()
        return self._kept[key]

    def order(self, run: TokenizerRun, out: Path, injection: Injection | None = None, **rest: Any) -> Order:
        notes = Notes(self.folder / f"notes-{next(self._numbers):05d}")
        rest = {"data": str(self.photos)} | rest
        return Order(run=run, out=out, notes=notes, injection=injection, **rest)

    def train(self, run: TokenizerRun, out: Path, injection: Injection | None = None, **rest: Any) -> Ending:
        """In one process, to its end."""
        order = self.order(run, out, injection, **rest)
        process = start(order)
        wait_for(process)
        return self._ended(order, process)

    def train_two(self, run: TokenizerRun, out: Path, injections: Injections = (None, None)) -> Ending:
        """In two processes; how the first one ended, with the first exit code that is not 0."""
        with address() as group:
            ranks = [group | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(2)]
            orders = [
                self.order(run, out, injection, group=rank)
                for injection, rank in zip(injections, ranks, strict=True)
            ]
            processes = [start(order) for order in orders]
            wait_for(*processes)
        endings = [self._ended(*pair) for pair in zip(orders, processes, strict=True)]
        codes = {each.code for each in endings}
        deaths = codes.intersection(DEATHS)
        return replace(endings[0], code=min(deaths) if deaths else max(codes))

    def _ended(self, order: Order, process: Any) -> Ending:
        found = ending(order, process)
        order.notes.file.unlink(missing_ok=True)
        return found

    def undisturbed(self, run: TokenizerRun, *, ranks: int = 1, **rest: Any) -> Any:
        """What a run leaves that no fault met."""

        def make() -> Any:
            with self.place() as out:
                done = self.train_two(run, out) if ranks == 2 else self.train(run, out, **rest)
                assert done.code == 0, done.error
                return left(out, ranks)

        return self.kept((run, ranks, *sorted(rest.items())), make)

    def stopped_after(self, run: TokenizerRun, injection: Injection) -> Path:
        """The directory of a run that was stopped, to be copied."""

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
        """Meet the fault, end with one of the exit codes, resume, and end as if nothing had been."""
        with self.place(template) as out:
            before = newest_step(out)
            broken = self.train(run, out, injection, **rest)
            require_documented(broken, codes)
            lost = max([before, *broken.saved])
            resumed = self.train(run, out, **rest)
            self.require_undisturbed(run, out, resumed, **rest)
        return Try(broken, resumed, max(0, lost - resumed.resumed))

    def require_undisturbed(self, run: TokenizerRun, out: Path, resumed: Ending, **rest: Any) -> None:
        assert resumed.code == 0, f"did not go on: {resumed.code} {resumed.error}"
        self.require_left(run, out, **rest)

    def require_left(self, run: TokenizerRun, out: Path, *, ranks: int = 1, **rest: Any) -> None:
        """Refuse a run that left anything else than one that no fault met."""
        assert_identical(left(out, ranks), self.undisturbed(run, ranks=ranks, **rest))


def require_documented(found: Ending, codes: tuple[int, ...]) -> None:
    assert found.code in codes, f"ended with {found.code}, not with one of {codes}: {found.error}"
    if found.code == 2:
        assert found.error, "ended without a word"
        assert "\\n" not in found.error, f"more than one line: {found.error}"


def newest_step(run: Path) -> int:
    latest = Checkpoints(run / "checkpoints").latest()
    return 0 if latest is None else int(latest.name.split("-")[1].split(".")[0])


@contextmanager
def open_lab() -> Iterator[Lab]:
    """In memory where possible: no fault here is one of a real disk, and a disk takes milliseconds a sync."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with nursery(), tempfile.TemporaryDirectory(dir=memory) as folder:
        yield Lab(Path(folder))


def left(out: Path, ranks: int) -> Any:
    """What a run left, with the states of all its processes."""
    return [left_by(out), *(last_state(out, rank) for rank in range(1, ranks))]


def contents(folder: Path) -> dict[str, bytes]:
    """Of every file in it, but the one in which the last holder of the lock has left its name."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != LOCK_FILE)
    return {str(path): path.read_bytes() for path in files}
