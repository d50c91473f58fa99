"""Faults within a process: signals, dead workers, NaN, clocks that jump."""

import multiprocessing
import os
import random
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
class AtStep:
    """Something happens in the midst of the `step`-th step from 1."""

    step: int

    def arm(self, out: Path, notes: Notes) -> None:
        _at_call(torch.optim.AdamW, "step", self.step, before=self.strike)

    def strike(self) -> None:
        raise NotImplementedError


@dataclass(frozen=True)
class SignalAtStep(AtStep):
    """The process gets signals, one after the other."""

    signals: tuple[int, ...]

    def strike(self) -> None:
        for number in self.signals:
            os.kill(os.getpid(), number)


class WorkerKilled(AtStep):
    """A process that decodes images is killed, as the system does when memory runs out."""

    def strike(self) -> None:
        for worker in multiprocessing.active_children():
            worker.kill()


@dataclass(frozen=True)
class FileCut(AtStep):
    """A file of the data loses its end while the run reads it."""

    file: Path
    size: int

    def strike(self) -> None:
        os.truncate(self.file, self.size)


@dataclass(frozen=True)
class NotANumber:
    """A gradient, the loss or an image becomes NaN at a step from 1."""

    step: int
    where: Literal["gradient", "loss", "image"]

    def arm(self, out: Path, notes: Notes) -> None:
        owner, name, tensor = {
            "gradient": (ClippedAdamW, "backward", lambda adamw, _: adamw.parameters[0].grad),
            "loss": (Objective, "tokenizer_loss", lambda _, loss: loss.total.data),
            "image": (TokenizerTrainer, "_next_images", lambda _, images: images),
        }[self.where]
        _at_call(owner, name, self.step, after=lambda *call: tensor(*call).view(-1)[0].fill_(float("nan")))


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


def _jumping(clock: Callable[[], float], chance: random.Random, least: float, most: float) -> Any:
    offset = 0.0

    def read() -> float:
        nonlocal offset
        if chance.random() < 0.5:
            offset += chance.uniform(least, most)
        return clock() + offset

    return read


def _at_call(
    owner: Any,
    name: str,
    number: int,
    *,
    before: Callable[[], object] = lambda: None,
    after: Callable[[Any, Any], object] = lambda owner, result: None,
) -> None:
    """Do something right before or after the `number`-th call from 1 of a method."""
    plain, calls = getattr(owner, name), 0

    def armed(self: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        strikes = calls == number
        if strikes:
            before()
        result = plain(self, *args, **kwargs)
        if strikes:
            after(self, result)
        return result

    setattr(owner, name, armed)
