"""A training step on one and on two processes of this machine, in turns, and the bytes that they exchange.

    alone       one process steps, the other one waits
    beside      both step, and exchange nothing: they share the machine's memory, and its other load
    together    both step as torchrun would have them: gradients are summed

Two processes start once and take all turns, each of one thread: so all meet the same noise. Times are those
of the first one's processor, over its threads: work, without what other programs take, and without waiting.
"""

import json
import multiprocessing
import os
import socket
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
import torch.distributed as dist
from accelerate import Accelerator  # type: ignore[import-untyped]
from torch import Tensor
from torch.multiprocessing.spawn import start_processes

from lgq.bench.train import OnOneBatch
from lgq.data import ImageDataset, open_dataset
from lgq.distributed import join_processes, leave_processes, rank, wait_for_all
from lgq.training.processes import prepare_accelerator
from lgq.training.recipe import TokenizerRun

Turn = Literal["alone", "beside", "together"]

PROCESSES = 2
_TRAFFIC = Path("/proc/self/io")


@dataclass(frozen=True, kw_only=True)
class Point:
    """A measured step."""

    turn: Turn
    batch_size: int
    seconds: float
    """By the processor's clock, the best of all rounds: what other programs take is not in it."""
    wall: float
    """By the clock on the wall, the best of all rounds."""


@dataclass(frozen=True, kw_only=True)
class Turns:
    points: list[Point]
    summing: float
    """Seconds, on the wall, of one sum of as many bytes as the gradients have, with nothing beside it."""
    summed_bytes: int
    """Of gradients that a process hands over in a step, as its buckets count them."""
    sent_bytes: int | None
    """That a process writes to its sockets in a step, as the system counts them; None where it does not."""


class _Trainee(OnOneBatch):
    """Sums its gradients with those of the others, or keeps them."""

    exchanges = True

    def _backward(self, step: int, *, last: bool) -> dict[str, Tensor]:
        return super()._backward(step, last=last and self.exchanges)


def measure_turns(run: TokenizerRun, batch_sizes: Sequence[int], *, steps: int, rounds: int) -> Turns:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        args = (port, run, tuple(batch_sizes), steps, rounds, folder)
        start_processes(_process, args, PROCESSES, start_method=_start_method())  # type: ignore[no-untyped-call]
        found: dict[str, Any] = json.loads(Path(folder, "turns.json").read_text())
    return Turns(**found | {"points": [Point(**point) for point in found["points"]]})


def _start_method() -> str:
    """Where there is a choice, that which imports everything once for both."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return "spawn"
    multiprocessing.set_forkserver_preload([__name__])
    return "forkserver"


def _process(
    number: int,
    port: int,
    run: TokenizerRun,
    batch_sizes: tuple[int, ...],
    steps: int,
    rounds: int,
    folder: str,
) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(PROCESSES)}
    os.environ |= {"RANK": str(number), "LOCAL_RANK": str(number)}
    torch.set_num_threads(1)
    join_processes()
    turns = take_turns(run, batch_sizes, steps=steps, rounds=rounds, folder=Path(folder))
    if rank() == 0:
        Path(folder, "turns.json").write_text(json.dumps(asdict(turns)))
    leave_processes()


def take_turns(
    run: TokenizerRun, batch_sizes: Sequence[int], *, steps: int, rounds: int, folder: Path
) -> Turns:
    """In a process that has met the other one; `folder` is for what trainees may leave."""
    field = _Field(run, folder, prepare_accelerator())
    points = [point for size in batch_sizes for point in field.points(size, steps, rounds)]
    return Turns(points=points, **field.exchange(batch_sizes[0], rounds))


class _Field:
    """The trainees of one run."""

    def __init__(self, run: TokenizerRun, folder: Path, accelerator: Accelerator):
        self.run, self.folder, self.accelerator = run, folder, accelerator
        self.data: ImageDataset = open_dataset("sample")

    def trainee(self, batch_size: int, *, exchanges: bool) -> _Trainee:
        run = replace(self.run, batch_size=batch_size)
        trainee = _Trainee(run, self.data, self.data, self.folder, self.accelerator)
        trainee.exchanges = exchanges
        # Both, even those that stay alone: the first forward pass hands the first one's buffers around.
        trainee.train_step(0)
        return trainee

    def points(self, batch_size: int, steps: int, rounds: int) -> list[Point]:
        silent, talking = (self.trainee(batch_size, exchanges=each) for each in (False, True))
        turns: dict[Turn, Callable[[], object]] = {
            "alone": partial(_steps, silent if rank() == 0 else None, steps),
            "beside": partial(_steps, silent, steps),
            "together": partial(_steps, talking, steps),
        }
        times = [{turn: _timed(run) for turn, run in turns.items()} for _ in range(rounds)]
        return [
            Point(
                turn=turn,
                batch_size=batch_size,
                seconds=min(each[turn].processor for each in times) / steps,
                wall=min(each[turn].wall for each in times) / steps,
            )
            for turn in turns
        ]

    def exchange(self, batch_size: int, rounds: int) -> dict[str, Any]:
        """What a step sends, and how long that takes by itself."""
        trainee, handed = self.trainee(batch_size, exchanges=True), list[int]()
        sent = written_by(lambda: trainee.train_step(1))
        parallel: Any = trainee._parallel
        parallel.register_comm_hook(handed, _count_and_sum)
        trainee.train_step(2)
        payload = torch.zeros(sum(handed) // 4)
        summing = min(_timed(lambda: dist.all_reduce(payload)).wall for _ in range(rounds))
        return {"summing": summing, "summed_bytes": sum(handed), "sent_bytes": sent}


def _steps(trainee: _Trainee | None, steps: int) -> None:
    if trainee is not None:
        for step in range(steps):
            trainee.train_step(step)


class _Spent(NamedTuple):
    wall: float
    processor: float


def _timed(run: Callable[[], object]) -> _Spent:
    """Until all processes are done; they begin together."""
    wait_for_all()
    began, processor = time.perf_counter(), time.process_time()
    run()
    wait_for_all()
    return _Spent(time.perf_counter() - began, time.process_time() - processor)


def written_by(run: Callable[[], object]) -> int | None:
    """Bytes that this process writes meanwhile, to whatever."""
    if not _TRAFFIC.exists():
        run()
        return None
    before = _written()
    run()
    return _written() - before


def _written() -> int:
    counts = dict(line.split(": ") for line in _TRAFFIC.read_text().splitlines())
    return int(counts["wchar"])


def _count_and_sum(handed: list[int], bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    gradients = bucket.buffer()
    handed.append(gradients.numel() * gradients.element_size())
    work = dist.all_reduce(gradients / PROCESSES, async_op=True)
    return work.get_future().then(lambda done: done.value()[0])
