"""Progress of long work: a callback for library functions, and the bar or the lines of a training."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Progress = Callable[[int, int], None]
"""Called with the work done and the work in all, in images or bytes."""

_SHOWN = {"loss": "loss {:.4f}", "nll": "NLL {:.3f}", "psnr": "{:.2f} dB", "utilization": "{:.1%} used"}
"""Values that a training shows, and their formats."""
_LINE_SECONDS = 30.0


def unwatched(done: int, total: int) -> None:
    """Show nothing."""


def duration(seconds: float) -> str:
    """Return a time in words, such as 40 s, 12 min or 2 h 5 min."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


def print_line(line: str) -> None:
    """Print a line on the error output at once, for those who follow a log file."""
    print(line, file=sys.stderr, flush=True)


class ProgressLines:
    """Prints how far some work is, at most every 30 seconds: for an error output that is no terminal."""

    def __init__(self, doing: str, clock: Callable[[], float] = time.monotonic):
        self._doing, self._clock = doing, clock
        self._began = self._last = clock()
        self._first = self._done = -1

    def __call__(self, done: int, total: int) -> None:
        now = self._clock()
        if done < self._done or self._first < 0:  # a part of the work begins, perhaps where it was stopped
            self._began, self._first = now, done
        self._done = done
        if now - self._last >= _LINE_SECONDS:
            self._last = now
            seconds = (now - self._began) / max(done - self._first, 1) * (total - done)
            left = f"  {duration(seconds)} left" if done > self._first else ""
            print_line(f"{self._doing}  {done:,}/{total:,}{left}")


class TrainingProgress:
    """Shows the step, the latest values and the rate of a training.

    update: called with each step and its values in words.
    """

    def __init__(self, update: Callable[[int, str, float], Any], step: int, steps: int, images_per_step: int):
        self._update, self._images_per_step = update, images_per_step
        self._first_step, self._steps, self._began = step, steps, time.monotonic()
        self._values: dict[str, float] = {}

    def note(self, values: dict[str, float]) -> None:
        """Take over the values that are shown."""
        self._values |= {name: value for name, value in values.items() if name in _SHOWN}

    def advance(self, step: int) -> None:
        rate = (step - self._first_step) / max(time.monotonic() - self._began, 1e-9)
        shown = [form.format(self._values[name]) for name, form in _SHOWN.items() if name in self._values]
        images = rate * self._images_per_step
        shown.append(f"{images:,.{0 if images >= 10 else 1}f} images/s")
        self._update(step, "  ".join(shown), (self._steps - step) / max(rate, 1e-9))


@contextmanager
def training_progress(
    steps: int, step: int, images_per_step: int, *, is_due: Callable[[int], bool], hidden: bool
) -> Iterator[TrainingProgress]:
    """Show a bar on the error output, or a line after each step that `is_due` if it is no terminal.

    The run is at `step` of `steps`.
    """
    # Only trainings need them.
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as RichProgress

    console = Console(stderr=True)

    def print_due_line(step: int, values: str, seconds_left: float) -> None:
        if not hidden and is_due(step):
            print_line(f"step {step:,}/{steps:,}  {values}  {duration(seconds_left)} left")

    if hidden or not console.is_terminal:
        yield TrainingProgress(print_due_line, step, steps, images_per_step)
        return
    columns = (TextColumn("training"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[values]}"))
    with RichProgress(*columns, TimeRemainingColumn(), console=console) as bar:
        task = bar.add_task("training", total=steps, completed=step, values="")

        def move(step: int, values: str, _seconds_left: float) -> None:
            bar.update(task, completed=step, values=values)

        yield TrainingProgress(move, step, steps, images_per_step)
