"""Processes that are killed, stopped or doubled: alone, one of two, and those that only read images."""

import os
import random
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from tiny_run import RESTARTING, TINY

from faults.children import PATIENCE, REFUSED, STOPPED, ending, start, wait_for
from faults.disk import SURVIVED
from faults.fault import Attempt, Fault
from faults.injections import SignalAtStep, WorkerKilled
from faults.lab import DEATHS, Injections, Lab, contents, newest_step, require_documented
from faults.system_calls import AtCall

STEPS = TINY.loop.steps
WITH_WORKER = replace(TINY, workers=1)
TWO = replace(RESTARTING, average_decay=0.9)
"""What two processes must agree on: codes that start anew, and an average."""
KILL = (signal.SIGKILL,)
PAIRS = (
    (signal.SIGTERM, signal.SIGTERM),
    (signal.SIGINT, signal.SIGINT),
    (signal.SIGTERM, signal.SIGINT),
    (signal.SIGINT, signal.SIGTERM),
)


def alone(lab: Lab, chance: random.Random) -> Iterator[Attempt]:
    for _ in range(10):
        yield partial(_alone, lab, SignalAtStep(chance.randint(1, STEPS), KILL))


def _alone(lab: Lab, killed: SignalAtStep) -> int:
    return lab.survives(TINY, killed).lost


def again_and_again(lab: Lab, chance: random.Random) -> Iterator[Attempt]:
    for _ in range(3):
        yield partial(_again_and_again, lab, [chance.randint(1, 3) for _ in range(6)])


def _again_and_again(lab: Lab, steps: list[int]) -> int:
    lost = 0
    with lab.place() as out:
        for step in steps:
            before = newest_step(out)
            found = lab.train(TINY, out, SignalAtStep(step, KILL))
            require_documented(found, (0, *DEATHS))
            lost += max(0, before - found.resumed)
        lab.require_undisturbed(TINY, out, lab.train(TINY, out))
    return lost


def one_of_two(lab: Lab, chance: random.Random) -> Iterator[Attempt]:
    for number in range(8):
        killed = SignalAtStep(chance.randint(1, STEPS), KILL)
        yield partial(_two, lab, (killed, None) if number % 2 else (None, killed), DEATHS)


def both_of_two(lab: Lab, chance: random.Random) -> Iterator[Attempt]:
    for _ in range(4):
        killed = SignalAtStep(chance.randint(1, STEPS), KILL)
        yield partial(_two, lab, (killed, killed), DEATHS)


def two_at_calls(lab: Lab, chance: random.Random) -> Iterator[Attempt]:
    # The second process writes its part of a checkpoint alone: no more than a handful of calls each time.
    for number in range(8):
        killed = AtCall("killed", chance.randrange(20 if number % 2 else 200))
        yield partial(_two, lab, (None, killed) if number % 2 else (killed, None), DEATHS)


def two_stopped(lab: Lab, chance: random.Random) -> Iterator[Attempt]:
    for number in range(4):
        stop = SignalAtStep(chance.randint(1, STEPS - 1), (signal.SIGTERM,))
        yield partial(_two, lab, (stop, None) if number % 2 else (None, stop), (STOPPED,))


def _two(lab: Lab, injections: Injections, codes: tuple[int, ...]) -> int:
    with lab.place() as out:
        broken = lab.train_two(TWO, out, injections)
        require_documented(broken, codes)
        resumed = lab.train_two(TWO, out)
        lab.require_undisturbed(TWO, out, resumed, ranks=2)
    return max(0, max(broken.saved, default=0) - resumed.resumed)


def worker(lab: Lab, chance: random.Random) -> Iterator[Attempt]:
    for _ in range(6):
        yield partial(_worker, lab, WorkerKilled(chance.randint(1, STEPS - 1)))


def _worker(lab: Lab, killed: WorkerKilled) -> int:
    found = lab.survives(WITH_WORKER, killed, codes=(REFUSED,))
    assert "a process that reads images" in found.broken.error, found.broken.error
    return found.lost


def stopped(lab: Lab, chance: random.Random) -> Iterator[Attempt]:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1) * 4:
        yield partial(_stopped, lab, SignalAtStep(chance.randint(1, STEPS - 1), (number,)))


def stopped_twice(lab: Lab, chance: random.Random) -> Iterator[Attempt]:
    for pair in PAIRS * 3:
        yield partial(_stopped, lab, SignalAtStep(chance.randint(1, STEPS - 1), pair))


def _stopped(lab: Lab, stop: SignalAtStep) -> int:
    found = lab.survives(TINY, stop, codes=(STOPPED,))
    if stop.signals != (signal.SIGINT, signal.SIGINT):
        assert found.resumed.resumed == stop.step, "the step that was asked to be the last is not saved"
    return found.lost


def doubled(lab: Lab, chance: random.Random) -> Iterator[Attempt]:
    for _ in range(4):
        yield partial(_doubled, lab, chance.randint(1, STEPS - 1))


def _doubled(lab: Lab, step: int) -> int:
    """While one process stands still in its step, another one is started."""
    with lab.place() as out:
        order = lab.order(TINY, out, SignalAtStep(step, (signal.SIGSTOP,)))
        first = start(order)
        _wait_until_stopped(first)
        before = contents(out)
        second = lab.train(TINY, out)
        require_documented(second, (REFUSED,))
        assert f"in use by process {first.pid} on " in second.error, second.error
        assert contents(out) == before, "the process that was refused changed something"
        os.kill(first.pid, signal.SIGCONT)
        wait_for(first)
        lab.require_undisturbed(TINY, out, ending(order, first))
    return 0


def lock_left_behind(lab: Lab, chance: random.Random) -> Iterator[Attempt]:
    for _ in range(4):
        yield partial(_lock_left_behind, lab, chance.randint(1, STEPS - 1))


def _lock_left_behind(lab: Lab, step: int) -> int:
    """Killed as it stands still: whoever comes next finds its lock file, and nobody behind it."""
    with lab.place() as out:
        order = lab.order(TINY, out, SignalAtStep(step, (signal.SIGSTOP,)))
        first = start(order)
        _wait_until_stopped(first)
        os.kill(first.pid, signal.SIGKILL)
        wait_for(first)
        assert str(first.pid) in (out / ".lock").read_text()
        resumed = lab.train(TINY, out)
        lab.require_undisturbed(TINY, out, resumed)
    return max(0, max(ending(order, first).saved, default=0) - resumed.resumed)


def _wait_until_stopped(process: Any) -> None:
    deadline = time.monotonic() + PATIENCE
    while _state_of(process.pid) != "T":
        assert process.exitcode is None, "ended by itself"
        assert time.monotonic() < deadline, "never came to its step"
        time.sleep(0.02)


def _state_of(pid: int) -> str:
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0]


ASKED = f"The step is finished and saved, with exit code 75. {SURVIVED}"

FAULTS = (
    Fault("SIGKILL at a random step", SURVIVED, alone),
    Fault("SIGKILL again and again, six times a run", SURVIVED, again_and_again),
    Fault("SIGKILL of one of two ranks", SURVIVED, one_of_two),
    Fault("SIGKILL of both of two ranks", SURVIVED, both_of_two),
    Fault("one of two ranks killed at a call", SURVIVED, two_at_calls),
    Fault(
        "SIGKILL of a process that reads images",
        f"The run ends with one line that says so. {SURVIVED}",
        worker,
    ),
    Fault("SIGTERM, SIGINT or SIGUSR1", ASKED, stopped),
    Fault("two signals in a row", f"{ASKED} A second Ctrl-C does not wait for the step.", stopped_twice),
    Fault("SIGTERM of one of two ranks", f"Both save the same step. {ASKED}", two_stopped),
    Fault(
        "a second process in the run directory",
        "It is refused in one line that names the first, and changes nothing.",
        doubled,
    ),
    Fault("a lock left by a killed process", "It does not count.", lock_left_behind),
)
