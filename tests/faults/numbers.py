"""Clocks that jump, and NaN."""

from dataclasses import replace

from tiny_run import TINY

from faults.children import DIVERGED
from faults.injections import JumpingClock, NotANumber
from faults.lab import SURVIVED, Fault, Lab, times
from lgq.training.journal import read_records

TIMED = replace(TINY, loop=replace(TINY.loop, minutes=60.0))


def in_time(lab: Lab, clock: JumpingClock) -> int:
    """The limit of an hour does not come; times in the records neither decrease nor leap."""
    with lab.place() as out:
        done = lab.train(TIMED, out, clock)
        lab.require_undisturbed(TIMED, out, done)
        seconds = [record["seconds"] for record in read_records(out)]
        assert seconds == sorted(seconds), seconds
        assert 0 <= seconds[0] <= seconds[-1] < 3600, seconds
    return 0


def out_of_time(lab: Lab, clock: JumpingClock) -> int:
    """The time is up as far as the run can tell: all is saved, and without a limit it continues."""
    with lab.place() as out:
        done = lab.train(TIMED, out, clock)
        assert done.code == 0, done.error
        return lab.resume(TINY, out, saved=max(done.saved, default=0))


def diverged(lab: Lab, fault: NotANumber) -> int:
    """What was saved before is untouched, so the run can continue from there."""
    attempt = lab.survives(TINY, fault, codes=(DIVERGED,))
    assert f"is not finite at step {fault.step - 1}" in attempt.broken.error, attempt.broken.error
    assert max(attempt.broken.saved, default=0) < fault.step, "saved what the NaN had spoiled"
    return attempt.lost


FAULTS = (
    Fault(
        "the wall clock leaps by days",
        "Time limits, records and the bits of the run do not depend on it.",
        in_time,
        times(8, lambda c: JumpingClock(c.getrandbits(32))),
    ),
    Fault(
        "the monotonic clock falls back by days",
        "The time of a run never decreases.",
        in_time,
        times(4, lambda c: JumpingClock(c.getrandbits(32), "back")),
    ),
    Fault(
        "the monotonic clock leaps ahead by days",
        f"A time limit may come early, with everything saved. {SURVIVED}",
        out_of_time,
        times(4, lambda c: JumpingClock(c.getrandbits(32), "forth")),
    ),
    Fault(
        "NaN in a gradient, a loss or an image",
        f"One line names the term, the step and the images; the last checkpoint is untouched. {SURVIVED}",
        diverged,
        lambda _, c: [
            (NotANumber(c.randint(1, TINY.loop.steps), where),)
            for where in ("gradient", "loss", "image")
            for _ in range(4)
        ],
    ),
)
