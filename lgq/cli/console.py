"""What commands print: results on the output, progress and messages on the error output."""

import logging
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from rich import box
from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from lgq.errors import LGQWarning
from lgq.progress import ProgressLines, unwatched

ERRORS = Console(stderr=True)
command_line: ContextVar[tuple[str, ...]] = ContextVar("command_line", default=())
"""Arguments of the command that runs, for records."""

_COLUMNS = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())


def say(line: str) -> None:
    """Print one line about what happened; of several processes, the first one prints it."""
    if _is_first():
        _print(line)


def complain(line: object) -> None:
    """Print one line about a mistake, in every process that meets it."""
    _print(line, style="red")


def show(result: RenderableType, *, on_errors: bool = False) -> None:
    """Print a result; of several processes, the first one prints it."""
    if _is_first():
        console = ERRORS if on_errors else _Output()
        plain = isinstance(result, str | Text)
        console.print(result, highlight=not plain, markup=not plain, soft_wrap=plain)


def key_values(rows: Mapping[str, str]) -> Table:
    """Return a table with a name and a value per row."""
    table = Table(box=box.SIMPLE_HEAD, show_header=False)
    for name, value in rows.items():
        table.add_row(name, value)
    return table


def printable(text: object) -> str:
    """Escape line breaks and control characters: a file name may hold some, and steer a terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(text))


@contextmanager
def log_to_the_console(worded: Callable[[str], str]) -> Iterator[None]:
    """Print what the library logs and warns of inside the block, one line each.

    worded: puts a text into the words of the command line.

    Processes other than the first print only what is logged as a warning. An `LGQWarning` is about the run,
    so the first process alone prints it, and once however often it comes.
    """
    logger = logging.getLogger("lgq")
    handler, level = _Handler(worded), logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO if _is_first() else logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always", LGQWarning)
            warnings.showwarning = _one_line_of(LGQWarning, worded, otherwise=warnings.showwarning)
            yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def _one_line_of(
    ours: type[Warning], worded: Callable[[str], str], otherwise: Callable[..., None]
) -> Callable[..., None]:
    """Return a `warnings.showwarning` that prints one kind of warning as a line, each text once."""
    shown: set[str] = set()

    def show_warning(message: Warning | str, category: type[Warning], *place: Any) -> None:
        if not issubclass(category, ours):
            otherwise(message, category, *place)
        elif str(message) not in shown:
            shown.add(str(message))
            say(f"warning: {worded(str(message))}")

    return show_warning


@contextmanager
def progress_of(doing: str) -> Iterator[Callable[[int, int], None]]:
    """Show a bar, or lines if there is no terminal; yields a function of what is done and the total."""
    if not ERRORS.is_terminal:
        yield ProgressLines(doing) if _is_first() else unwatched
        return
    with Progress(*_COLUMNS, console=ERRORS, transient=True) as progress:
        task = progress.add_task(doing, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


class _Output(Console):
    def on_broken_pipe(self) -> None:
        raise BrokenPipeError  # which `main` handles; rich would exit with code 1


class _Handler(logging.Handler):
    def __init__(self, worded: Callable[[str], str]):
        super().__init__()
        self._worded = worded

    def emit(self, record: logging.LogRecord) -> None:
        _print(self._worded(record.getMessage()))


def _print(line: object, **style: Any) -> None:
    ERRORS.print(f"lgq: {printable(line)}", **style, highlight=False, markup=False, soft_wrap=True)


def _is_first() -> bool:
    """Whether this is the first of the processes that torchrun started, or the only one."""
    return os.environ.get("RANK", "0") == "0"
