"""Processes that train a tiny run, with a fault in them or without; alone, or two as torchrun starts them."""

import logging
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import forkserver
from pathlib import Path
from typing import Any, Protocol

import torch
from leftovers import NO_TENSORBOARD

from lgq.errors import LGQError
from lgq.training.checkpoint import Checkpoints
from lgq.training.loop import DivergedError
from lgq.training.settings import TokenizerRun
from lgq.training.tokenizer_trainer import train

DIVERGED, REFUSED, STOPPED, UNDOCUMENTED = 1, 2, 75, 99
"""Exit codes: those of the command line, and one for what it does not know."""
KILLED = 137
"""Exit code of a killed process: nothing that it holds in memory reaches the disk."""
PATIENCE = 300.0
"""Seconds after which a process counts as hanging, even on a busy machine."""

_write = os.write  # a fault may replace os.write


class Notes:
    """What a child process does, written down at once: lines of a file, each a kind and a text."""

    def __init__(self, file: Path):
        self.file = file
        self._descriptor: int | None = None

    def __getstate__(self) -> dict[str, object]:
        return {"file": self.file, "_descriptor": None}

    def add(self, kind: str, text: object) -> None:
        if self._descriptor is None:
            self._descriptor = os.open(self.file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        line = str(text).replace("\\", "\\\\").replace("\n", "\\n")
        _write(self._descriptor, f"{kind} {line}\n".encode(errors="backslashreplace"))

    def all(self, kind: str) -> list[str]:
        lines = self.file.read_text().splitlines() if self.file.exists() else []
        return [line.partition(" ")[2] for line in lines if line.partition(" ")[0] == kind]


class Injection(Protocol):
    """A fault that waits for its moment; crosses to the child as a pickle."""

    def arm(self, out: Path, notes: Notes) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Order:
    """What a child process does."""

    run: TokenizerRun
    data: str
    out: Path
    notes: Notes
    injection: Injection | None = None
    group: dict[str, str] = field(default_factory=dict)
    """The environment by which torchrun tells a process which one it is."""


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How a child ended, and what it reported."""

    code: int
    """Negative for a signal."""
    resumed: int
    """Step of the checkpoint that it resumed from; 0 without."""
    saved: list[int]
    """Steps of the checkpoints that it saved."""
    error: str
    warnings: list[str]
    calls: list[str]


@contextmanager
def nursery() -> Iterator[None]:
    """Fork the children inside the block from a process that has trained before.

    The first training of a process takes seconds of imports.
    """
    context, server = multiprocessing.get_context("forkserver"), forkserver._forkserver
    before, path = server._preload_modules, os.environ.get("PYTHONPATH")
    server._stop()  # of other tests, which do not need it any more
    context.set_forkserver_preload(["faults.nursery"])
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)
    try:
        server.ensure_running()
    finally:
        os.environ.pop("PYTHONPATH") if path is None else os.environ.update(PYTHONPATH=path)
    try:
        yield
    finally:
        server._stop()
        context.set_forkserver_preload(before)


def start(order: Order) -> Any:
    process = multiprocessing.get_context("forkserver").Process(target=child, args=(order,))
    process.start()
    return process


def ending(order: Order, process: Any) -> Ending:
    return Ending(
        code=process.exitcode,
        resumed=max(map(int, order.notes.all("resumed")), default=0),
        saved=list(map(int, order.notes.all("saved"))),
        error="".join(order.notes.all("error")),
        warnings=order.notes.all("warning"),
        calls=order.notes.all("call"),
    )


def wait_for(*processes: Any) -> None:
    """Wait until all have ended; if one fails, the others are killed, as torchrun does."""
    waiting, deadline = {process.sentinel: process for process in processes}, time.monotonic() + PATIENCE
    while waiting:
        done = multiprocessing.connection.wait(waiting, timeout=max(0.0, deadline - time.monotonic()))
        failed = [process for process in map(waiting.pop, done) if process.exitcode not in (0, STOPPED)]
        if failed or not done:
            for process in waiting.values():
                process.kill()
        assert done, f"hangs after {PATIENCE:.0f} seconds"
    for process in processes:
        process.join()


def child(order: Order) -> None:
    """Train, end with the exit code of the command line, and leave notes."""
    torch.set_num_threads(1)
    multiprocessing.set_start_method("fork", force=True)  # its own workers start as everybody's
    os.environ.update(order.group)
    sys.modules["torch.utils.tensorboard"] = NO_TENSORBOARD  # type: ignore[assignment]
    _take_notes(order.notes)
    if order.injection is not None:
        order.injection.arm(order.out, order.notes)
    code = _exit_code(order)
    # Workers would live on for seconds, with the pipe by which others see our end.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for worker in multiprocessing.active_children():
        worker.kill()
    os._exit(code)


def _exit_code(order: Order) -> int:
    try:
        return train(order.run, order.data, order.out).exit_code
    except KeyboardInterrupt:
        return STOPPED
    except LGQError as error:
        order.notes.add("error", error)
        return DIVERGED if isinstance(error, DivergedError) else REFUSED
    except BaseException:
        order.notes.add("error", traceback.format_exc())
        return UNDOCUMENTED


def _take_notes(notes: Notes) -> None:
    logging.basicConfig(level=logging.WARNING, handlers=[_Handler(notes)], force=True)
    save, load = Checkpoints.save, Checkpoints.load

    def noted_save(self: Checkpoints, step: int, state: Any) -> Path:
        path = save(self, step, state)
        notes.add("saved", step)
        return path

    def noted_load(self: Checkpoints, path: Path, rank: int = 0) -> Any:
        state = load(self, path, rank)
        notes.add("resumed", state.get("step", 0))
        return state

    Checkpoints.save, Checkpoints.load = noted_save, noted_load  # type: ignore[assignment, method-assign]


class _Handler(logging.Handler):
    def __init__(self, notes: Notes):
        super().__init__()
        self._notes = notes

    def emit(self, record: logging.LogRecord) -> None:
        self._notes.add("warning", record.getMessage())
