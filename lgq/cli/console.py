"""What commands show: results on the output, progress and mistakes on the error output."""

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from lgq.distributed import rank

ERRORS = Console(stderr=True)
command_line: ContextVar[tuple[str, ...]] = ContextVar("command_line", default=())
"""The arguments of the command that runs, for records."""

_COLUMNS = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())


def say(line: str) -> None:
    """One line about what happened, whatever brackets a file name has."""
    ERRORS.print(f"lgq: {shown(line)}", highlight=False, markup=False, soft_wrap=True)


def complain(line: object) -> None:
    ERRORS.print(f"lgq: {shown(line)}", style="red", highlight=False, markup=False, soft_wrap=True)


def shown(text: object) -> str:
    """In one line, with control characters written out: a file's name may hold some, and steer a terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(text))


@contextmanager
def log_to_the_console() -> Iterator[None]:
    """Within, what the library logs is shown; of several processes, the others only warn."""
    logger = logging.getLogger("lgq")
    handler = _Say()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.WARNING if rank() else logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


@contextmanager
def progress_of(doing: str) -> Iterator[Callable[[int, int], None]]:
    """A bar that is told how much is done, and of how much."""
    with Progress(*_COLUMNS, console=ERRORS, transient=True, disable=not ERRORS.is_terminal) as progress:
        task = progress.add_task(doing, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


class _Say(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        say(record.getMessage())


def tracked(rows: Iterable[Any], total: int, doing: str) -> list[Any]:
    """All rows, with a bar; those that are done, if the user cannot wait for the others."""
    done: list[Any] = []
    try:
        with progress_of(doing) as report:
            report(0, total)
            for row in rows:
                done.append(row)
                report(len(done), total)
    except KeyboardInterrupt:
        say(f"stopped after {len(done)} of {total} rows.")
    return done
