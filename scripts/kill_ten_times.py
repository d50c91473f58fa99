"""Kill a training run at ten moments, three of them amid a checkpoint's writing, and compare its end.

    python scripts/kill_ten_times.py                     # five to ten minutes on two cores
    python scripts/kill_ten_times.py --steps 20 --kills 2 --writes 1

One run is left alone. Another one of the same settings is killed (SIGKILL) again and again, and resumed
by the same command. Both must end with the same bits: weights, optimizer, random states, records.
"""

import argparse
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import safetensors.torch
import torch
from rich import box
from rich.console import Console
from rich.table import Table

from lgq.training.checkpoint import Checkpoints
from lgq.training.journal import read_records

_LONGEST_DELAY = 0.4
_LONGEST_DELAY_IN_A_WRITE = 0.03


@dataclass(frozen=True)
class Moment:
    """When to kill: once a step is done, or once the next checkpoint after it is being written."""

    step: int
    amid_write: bool
    delay: float
    """Seconds from there to the kill."""


class Kill(NamedTuple):
    moment: str
    step_reached: int
    resumes_from: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--name", default="pocket-lgq", help="the run")
    parser.add_argument("--data", default="sample", help="its images")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--checkpoint-every", type=int, default=10)
    parser.add_argument("--kills", type=int, default=10, help="how many")
    parser.add_argument("--writes", type=int, default=4, help="how many of them amid a checkpoint's writing")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        sys.exit(0 if experiment(options, Path(folder)) else 1)


def experiment(options: argparse.Namespace, folder: Path) -> bool:
    """Whether the killed run ended as the other one."""
    console, began = Console(width=100, highlight=False), time.monotonic()
    console.print(f"lgq {' '.join(command(options, Path('RUN'))[3:])}; {torch.get_num_threads()} threads")
    assert subprocess.run(command(options, folder / "unbroken"), check=False).returncode == 0
    console.print(f"the undisturbed run took {time.monotonic() - began:.0f} s")
    kills = [kill_at(moment, options, folder / "broken") for moment in moments(options)]
    assert subprocess.run(command(options, folder / "broken"), check=False).returncode == 0
    console.print(table(kills))
    same = compare(folder / "broken", folder / "unbroken", console)
    verdict = "identical" if same else "DIFFERENT"
    console.print(f"{len(kills)} kills, {time.monotonic() - began:.0f} s in all: {verdict}")
    return same


def command(options: argparse.Namespace, out: Path) -> list[str]:
    every = str(options.checkpoint_every)
    return [
        *(sys.executable, "-m", "lgq.cli", "train", options.name, "--data", options.data, "--out", str(out)),
        *("--steps", str(options.steps), "--checkpoint-every", every, "--log-every", "1"),
        *("--validate-every", str(5 * options.checkpoint_every), "--validation-images", "64"),
    ]


def moments(options: argparse.Namespace) -> list[Moment]:
    """At random steps, in their order; writes among them, but none so late that no other write follows."""
    chance = random.Random(options.seed)
    steps = sorted(chance.sample(range(1, options.steps - options.checkpoint_every), options.kills))
    writes = set(chance.sample(range(options.kills), options.writes))
    longest = (_LONGEST_DELAY, _LONGEST_DELAY_IN_A_WRITE)
    return [
        Moment(step, i in writes, chance.uniform(0, longest[i in writes])) for i, step in enumerate(steps)
    ]


def kill_at(moment: Moment, options: argparse.Namespace, run: Path) -> Kill:
    for attempt in count(1):
        launched = time.time_ns()
        process = subprocess.Popen(command(options, run), stderr=subprocess.DEVNULL)
        sign = wait_for(moment, run, process, launched)
        time.sleep(moment.delay / attempt)
        process.kill()
        process.wait()
        # Where the write was over first, the next one has its turn, and a quicker hand.
        if not moment.amid_write or half_written(run, launched):
            return Kill(sign, reached(run), resumes_from(run))
    raise AssertionError("unreachable")


def wait_for(moment: Moment, run: Path, process: subprocess.Popen[bytes], launched: int) -> str:
    """Watch the run until the moment comes; returns what was seen."""
    start = resumes_from(run)
    step = max(moment.step, start + 1)
    # A resumed run first drops the records of steps that it has to do again.
    watch(process, lambda: reached(run) <= start, every=0.005)
    watch(process, lambda: reached(run) >= step, every=0.02)
    if not moment.amid_write:
        return f"{moment.delay:.2f} s after step {step}"
    return f"amid the writing of {watch(process, lambda: half_written(run, launched), every=0.001)}"


def watch(process: subprocess.Popen[bytes], look: Callable[[], Any], every: float) -> Any:
    """What `look` finds first."""
    while process.poll() is None:
        if found := look():
            return found
        time.sleep(every)
    raise SystemExit(f"the run ended by itself, with code {process.returncode}, before its moment came.")


def half_written(run: Path, launched: int) -> str | None:
    """The checkpoint that a process is writing or has left so, not one that an earlier process left."""
    for partial in (run / "checkpoints").glob("step-*.partial"):
        with suppress(FileNotFoundError):
            if partial.stat().st_ctime_ns > launched:
                return partial.name.removesuffix(".partial")
    return None


def reached(run: Path) -> int:
    return max((record["step"] for record in read_records(run)), default=0)


def resumes_from(run: Path) -> int:
    checkpoint = Checkpoints(run / "checkpoints").latest()
    return 0 if checkpoint is None else int(checkpoint.name.removeprefix("step-").removesuffix(".replaced"))


def table(kills: list[Kill]) -> Table:
    drawn = Table(box=box.SIMPLE_HEAD)
    drawn.add_column("kill", justify="right")
    drawn.add_column("moment")
    for heading in ("step reached", "resumed from step"):
        drawn.add_column(heading, justify="right")
    for number, kill in enumerate(kills, 1):
        drawn.add_row(str(number), kill.moment, str(kill.step_reached), str(kill.resumes_from))
    return drawn


def compare(run: Path, other: Path, console: Console) -> bool:
    """Compare what two runs left, bit for bit, and say so part by part."""
    last = Checkpoints(run / "checkpoints").paths()[0].relative_to(run)
    same = []
    for file in (Path("last/model.safetensors"), Path("best/model.safetensors"), last / "state.safetensors"):
        tensors, expected = (safetensors.torch.load_file(folder / file) for folder in (run, other))
        equal = [name for name in expected if bits(tensors.get(name)) == bits(expected[name])]
        same.append(len(equal) == len(expected) == len(tensors))
        console.print(f"{file}: {len(equal)} of {len(expected)} tensors identical")
    records, expected_records = timeless(run), timeless(other)
    same.append(records == expected_records)
    console.print(
        f"metrics.jsonl: {len(expected_records)} records, {'identical' if same[-1] else 'DIFFERENT'}"
    )
    return all(same)


def bits(tensor: torch.Tensor | None) -> Any:
    return None if tensor is None else (tensor.dtype, tensor.shape, tensor.numpy().tobytes())


def timeless(run: Path) -> list[dict[str, Any]]:
    return [
        {name: value for name, value in record.items() if name != "seconds"} for record in read_records(run)
    ]


if __name__ == "__main__":
    main()
