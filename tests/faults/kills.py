"""Processes that are killed, stopped or doubled: alone, one of two, and those that only read images."""

import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from tiny_run import RESTARTING, TINY

from faults.children import PATIENCE, REFUSED, STOPPED, Order, ending, start, wait_for
from faults.disk import AtCall
from faults.injections import SignalAtStep, WorkerKilled
from faults.lab import (
    DEATHS,
    SURVIVED,
    Fault,
    Injections,
    Lab,
    contents,
    newest_step,
    require_documented,
    times,
)

STEPS = TINY.loop.steps
WITH_WORKER = replace(TINY, workers=1)
TWO = replace(RESTARTING, average_decay=0.9)
"""What two processes must agree on: revived codes, and a weight average."""
PAIRS = (
    (signal.SIGTERM, signal.SIGTERM),
    (signal.SIGINT, signal.SIGINT),
    (signal.SIGTERM, signal.SIGINT),
    (signal.SIGINT, signal.SIGTERM),
)


def kill(chance: random.Random) -> SignalAtStep:
    return SignalAtStep(chance.randint(1, STEPS), (signal.SIGKILL,))


def a_step(chance: random.Random) -> int:
    """Any but the last."""
    return chance.randint(1, STEPS - 1)


def stop(chance: random.Random, *signals: int) -> SignalAtStep:
    return SignalAtStep(a_step(chance), signals)


def alone(lab: Lab, killed: SignalAtStep) -> int:
    return lab.survives(TINY, killed).lost


def again_and_again(lab: Lab, steps: list[int]) -> int:
    lost = 0
    with lab.place() as out:
        for step in steps:
            before = newest_step(out)
            broken = lab.train(TINY, out, SignalAtStep(step, (signal.SIGKILL,)))
            require_documented(broken, (0, *DEATHS))
            lost += max(0, before - broken.resumed)
        lab.resume(TINY, out, saved=0)
    return lost


def two(lab: Lab, injections: Injections, codes: tuple[int, ...] = DEATHS) -> int:
    with lab.place() as out:
        broken = lab.train_two(TWO, out, injections)
        require_documented(broken, codes)
        return lab.resume(TWO, out, saved=max(broken.saved, default=0), ranks=2)


def one_of_two(injection: Any, number: int) -> Injections:
    """The first process for odd numbers, the second for even ones."""
    return (injection, None) if number % 2 else (None, injection)


def at_call(chance: random.Random, number: int) -> Injections:
    # The second process writes only its part of a checkpoint: a handful of calls each time.
    killed = AtCall("killed", chance.randrange(20 if number % 2 else 200))
    return one_of_two(killed, number + 1)


def worker(lab: Lab, killed: WorkerKilled) -> int:
    attempt = lab.survives(WITH_WORKER, killed, codes=(REFUSED,))
    assert "a process that reads images" in attempt.broken.error, attempt.broken.error
    return attempt.lost


def stopped(lab: Lab, stop: SignalAtStep) -> int:
    attempt = lab.survives(TINY, stop, codes=(STOPPED,))
    if stop.signals != (signal.SIGINT, signal.SIGINT):
        assert attempt.resumed.resumed == stop.step, "the step that was asked to be the last is not saved"
    return attempt.lost


@contextmanager
def standing_still(lab: Lab, step: int) -> Iterator[tuple[Path, Order, Any]]:
    """Give a run directory, the order and the process of a run that is stopped in the midst of a step."""
    with lab.place() as out:
        order = lab.order(TINY, out, SignalAtStep(step, (signal.SIGSTOP,)))
        process, deadline = start(order), time.monotonic() + PATIENCE
        while _process_state(process.pid) != "T":
            assert process.exitcode is None, "ended by itself"
            assert time.monotonic() < deadline, "never came to its step"
            time.sleep(0.02)
        yield out, order, process


def doubled(lab: Lab, step: int) -> int:
    """While one process stands still in its step, another one is started."""
    with standing_still(lab, step) as (out, order, first):
        before = contents(out)
        second = lab.train(TINY, out)
        require_documented(second, (REFUSED,))
        assert f"in use by process {first.pid} on " in second.error, second.error
        assert contents(out) == before, "the process that was refused changed something"
        os.kill(first.pid, signal.SIGCONT)
        wait_for(first)
        lab.require_undisturbed(TINY, out, ending(order, first))
    return 0


def lock_left_behind(lab: Lab, step: int) -> int:
    """A process is killed as it stands still: the next one finds its lock file, which no process holds."""
    with standing_still(lab, step) as (out, order, first):
        os.kill(first.pid, signal.SIGKILL)
        wait_for(first)
        assert str(first.pid) in (out / ".lock").read_text()
        return lab.resume(TINY, out, saved=max(ending(order, first).saved, default=0))


def _process_state(pid: int) -> str:
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0]


ASKED = f"The step is finished and saved, with exit code 75. {SURVIVED}"
ONE_SIGNAL = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)

FAULTS = (
    Fault("SIGKILL at a random step", SURVIVED, alone, times(10, kill)),
    Fault(
        "SIGKILL again and again, six times per run",
        SURVIVED,
        again_and_again,
        times(3, lambda chance: [chance.randint(1, 3) for _ in range(6)]),
    ),
    Fault(
        "SIGKILL of one of two ranks",
        SURVIVED,
        two,
        lambda _, c: [(one_of_two(kill(c), i),) for i in range(8)],
    ),
    Fault("SIGKILL of both of two ranks", SURVIVED, two, times(4, lambda chance: (kill(chance),) * 2)),
    Fault(
        "one of two ranks killed at a call", SURVIVED, two, lambda _, c: [(at_call(c, i),) for i in range(8)]
    ),
    Fault(
        "SIGKILL of a process that reads images",
        f"The run ends with one line that says so. {SURVIVED}",
        worker,
        times(6, lambda chance: WorkerKilled(a_step(chance))),
    ),
    Fault("SIGTERM, SIGINT or SIGUSR1", ASKED, stopped, lambda _, c: [(stop(c, s),) for s in ONE_SIGNAL * 4]),
    Fault(
        "two signals in a row",
        f"{ASKED} A second Ctrl-C does not wait for the step.",
        stopped,
        lambda _, c: [(stop(c, *pair),) for pair in PAIRS * 3],
    ),
    Fault(
        "SIGTERM of one of two ranks",
        f"Both save the same step. {ASKED}",
        two,
        lambda _, c: [(one_of_two(stop(c, signal.SIGTERM), i), (STOPPED,)) for i in range(4)],
    ),
    Fault(
        "a second process in the run directory",
        "It is refused in one line that names the first, and changes nothing.",
        doubled,
        times(4, a_step),
    ),
    Fault("a lock left by a killed process", "It does not count.", lock_left_behind, times(4, a_step)),
)
