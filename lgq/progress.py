"""Progress of long work: a callback for library functions, and the bar of a training."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Progress = Callable[[int, int], None]
"""Called with the work done and the work in all, in images or bytes."""

_SHOWN = {"loss": "loss {:.4f}", "nll": "NLL {:.3f}", "psnr": "{:.2f} dB", "utilization": "{:.1%} used"}
"""Values that a training's bar shows, and their formats."""


def unwatched(done: int, total: int) -> None:
    """Show nothing."""


class TrainingBar:
    """Shows the step, the latest values and the rate of a training."""

    def __init__(self, update: Callable[..., Any], step: int, images_per_step: int):
        self._update, self._images_per_step = update, images_per_step
        self._first_step, self._began = step, time.monotonic()
        self._values: dict[str, float] = {}

    def note(self, values: dict[str, float]) -> None:
        """Take over the values that are shown."""
        self._values |= {name: value for name, value in values.items() if name in _SHOWN}

    def advance(self, step: int) -> None:
        seconds = max(time.monotonic() - self._began, 1e-9)
        shown = [form.format(self._values[name]) for name, form in _SHOWN.items() if name in self._values]
        shown.append(f"{(step - self._first_step) * self._images_per_step / seconds:.0f} images/s")
        self._update(completed=step, values="  ".join(shown))


@contextmanager
def training_bar(steps: int, step: int, images_per_step: int, *, hidden: bool) -> Iterator[TrainingBar]:
    """Show a bar on the error output if it is a terminal; the run is at `step` of `steps`."""
    # Only trainings need them.
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as RichProgress

    console = Console(stderr=True)
    columns = (TextColumn("training"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[values]}"))
    hidden = hidden or not console.is_terminal
    with RichProgress(*columns, TimeRemainingColumn(), console=console, disable=hidden) as progress:
        task = progress.add_task("training", total=steps, completed=step, values="")
        yield TrainingBar(lambda **fields: progress.update(task, **fields), step, images_per_step)
