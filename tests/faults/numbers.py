"""Clocks that jump, and numbers that are none."""

import random
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from tiny_run import TINY

from faults.children import DIVERGED
from faults.disk import SURVIVED
from faults.fault import Attempt, Fault
from faults.injections import JumpingClock, NotANumber
from faults.lab import Lab
from lgq.training.journal import read_records

TIMED = replace(TINY, loop=replace(TINY.loop, minutes=60.0))


def wall_clock(lab: Lab, chance: random.Random) -> Iterator[Attempt]:
    for _ in range(8):
        yield partial(_in_time, lab, JumpingClock(chance.getrandbits(32)))


def clock_back(lab: Lab, chance: random.Random) -> Iterator[Attempt]:
    for _ in range(4):
        yield partial(_in_time, lab, JumpingClock(chance.getrandbits(32), "back"))


def _in_time(lab: Lab, clock: JumpingClock) -> int:
    """The limit of an hour does not come; times in the records neither fall nor leap."""
    with lab.place() as out:
        done = lab.train(TIMED, out, clock)
        lab.require_undisturbed(TIMED, out, done)
        seconds = [record["seconds"] for record in read_records(out)]
        assert seconds == sorted(seconds), seconds
        assert 0 <= seconds[0] <= seconds[-1] < 3600, seconds
    return 0


def clock_forth(lab: Lab, chance: random.Random) -> Iterator[Attempt]:
    for _ in range(4):
        yield partial(_out_of_time, lab, JumpingClock(chance.getrandbits(32), "forth"))


def _out_of_time(lab: Lab, clock: JumpingClock) -> int:
    """The time is up, as far as anybody can tell: all is saved, and without a limit the run goes on."""
    with lab.place() as out:
        done = lab.train(TIMED, out, clock)
        assert done.code == 0, done.error
        resumed = lab.train(TINY, out)
        lab.require_undisturbed(TINY, out, resumed)
    return max(0, max(done.saved, default=0) - resumed.resumed)


def not_a_number(lab: Lab, chance: random.Random) -> Iterator[Attempt]:
    for where in ("gradient", "loss", "image"):
        for _ in range(4):
            yield partial(_diverged, lab, NotANumber(chance.randint(1, TINY.loop.steps), where))


def _diverged(lab: Lab, fault: NotANumber) -> int:
    """What was saved before is untouched, so the run can go on from there."""
    found = lab.survives(TINY, fault, codes=(DIVERGED,))
    assert f"is not finite at step {fault.step - 1}" in found.broken.error, found.broken.error
    assert max(found.broken.saved, default=0) < fault.step, "saved what the NaN had spoiled"
    return found.lost


FAULTS = (
    Fault(
        "the clock on the wall leaps by days",
        "Time limits, records and the bits of the run do not depend on it.",
        wall_clock,
    ),
    Fault("the monotonic clock falls back by days", "The time of a run never decreases.", clock_back),
    Fault(
        "the monotonic clock leaps ahead by days",
        f"A time limit may come early, with everything saved. {SURVIVED}",
        clock_forth,
    ),
    Fault(
        "NaN in a gradient, a loss or an image",
        f"One line names the term, the step and the images; the last checkpoint is untouched. {SURVIVED}",
        not_a_number,
    ),
)
