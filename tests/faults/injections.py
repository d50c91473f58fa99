"""Faults within a process: signals, dead workers, NaN, clocks that jump."""

import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from faults.children import Notes
from lgq.training.losses import Objective
from lgq.training.tokenizer_trainer import TokenizerTrainer
from lgq.training.trainer import ClippedAdamW

DAY = 86_400.0


@dataclass(frozen=True)
class SignalAtStep:
    """The process gets signals, one after the other, in the midst of its `step`-th step from 1."""

    step: int
    signals: tuple[int, ...]

    def arm(self, out: Path, notes: Notes) -> None:
        _at(torch.optim.AdamW, "step", self.step, self._strike)

    def _strike(self) -> None:
        for number in self.signals:
            os.kill(os.getpid(), number)


@dataclass(frozen=True)
class WorkerKilled:
    """A process that decodes images is killed, as the system does when memory runs out."""

    step: int

    def arm(self, out: Path, notes: Notes) -> None:
        _at(torch.optim.AdamW, "step", self.step, self._strike)

    def _strike(self) -> None:
        for worker in multiprocessing.active_children():
            assert worker.pid is not None
            os.kill(worker.pid, signal.SIGKILL)


@dataclass(frozen=True)
class NotANumber:
    """A gradient, the loss or an image becomes NaN at a step from 1."""

    step: int
    where: Literal["gradient", "loss", "image"]

    def arm(self, out: Path, notes: Notes) -> None:
        if self.where == "gradient":
            _change(ClippedAdamW, "backward", self.step, lambda adamw, _: _spoil(adamw.parameters[0].grad))
        elif self.where == "loss":
            _change(Objective, "tokenizer_loss", self.step, lambda _, loss: _spoil(loss.total.data))
        else:
            _change(TokenizerTrainer, "_next_images", self.step, lambda _, images: _spoil(images))


@dataclass(frozen=True)
class JumpingClock:
    """Clocks leap by days, now and then: the one on the wall both ways, the other one as asked."""

    seed: int
    monotonic: Literal["steady", "back", "forth"] = "steady"

    def arm(self, out: Path, notes: Notes) -> None:
        chance = random.Random(self.seed)
        time.time = _jumping(time.time, chance, -30 * DAY, 30 * DAY)
        if self.monotonic != "steady":
            least, most = (-3 * DAY, 0.0) if self.monotonic == "back" else (0.0, 3 * DAY)
            time.monotonic = _jumping(time.monotonic, chance, least, most)


@dataclass(frozen=True)
class FileCut:
    """A file of the data loses its end while the run reads it."""

    step: int
    file: Path
    size: int

    def arm(self, out: Path, notes: Notes) -> None:
        _at(torch.optim.AdamW, "step", self.step, lambda: os.truncate(self.file, self.size))


def _jumping(clock: Callable[[], float], chance: random.Random, least: float, most: float) -> Any:
    offset = 0.0

    def read() -> float:
        nonlocal offset
        if chance.random() < 0.5:
            offset += chance.uniform(least, most)
        return clock() + offset

    return read


def _at(owner: Any, name: str, number: int, strike: Callable[[], None]) -> None:
    """Strike right before the `number`-th call from 1."""
    plain, calls = getattr(owner, name), 0

    def armed(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == number:
            strike()
        return plain(*args, **kwargs)

    setattr(owner, name, armed)


def _change(owner: Any, name: str, number: int, change: Callable[[Any, Any], None]) -> None:
    """Change the object or the result right after the `number`-th call from 1."""
    plain, calls = getattr(owner, name), 0

    def armed(self: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        result = plain(self, *args, **kwargs)
        calls += 1
        if calls == number:
            change(self, result)
        return result

    setattr(owner, name, armed)


def _spoil(tensor: torch.Tensor) -> None:
    tensor.view(-1)[0] = float("nan")
