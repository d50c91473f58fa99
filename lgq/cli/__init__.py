"""The command line: each command parses, calls one library function and prints.

Exit codes: 0, done; 1, the loss is no number any more; 2, a user's mistake, in one line; 75, stopped
on request, with all work saved: the same command goes on; 130, stopped, and nothing to go on with.
"""

import contextlib
import io
import os
import sys
import traceback
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Protocol, Union, runtime_checkable

import tyro

from lgq.cli.bench import Bench
from lgq.cli.console import command_line, complain, log_to_the_console, say
from lgq.cli.demo import Demo
from lgq.cli.evaluate import Evaluate
from lgq.cli.experiment import Experiment
from lgq.cli.generate import Inpaint, Sample
from lgq.cli.images import Decode, Encode, Reconstruct
from lgq.cli.options import MARKERS, REGISTRY
from lgq.cli.report import Report
from lgq.cli.shard import Shard
from lgq.cli.train import FAMILIES, Train, TrainGenerator
from lgq.cli.weights import Weights
from lgq.distributed import leave_processes
from lgq.errors import LGQError
from lgq.training.loop import DivergedError
from lgq.training.signals import INTERRUPTED

DIVERGED, MISTAKE, STOPPED = 1, 2, 130


@runtime_checkable
class Command(Protocol):
    def run(self) -> int:
        """Do it; returns the exit code."""


COMMANDS: dict[str, type[Command]] = {
    "demo": Demo,
    "shard": Shard,
    "train": Train,
    "train-generator": TrainGenerator,
    "evaluate": Evaluate,
    "reconstruct": Reconstruct,
    "encode": Encode,
    "decode": Decode,
    "sample": Sample,
    "inpaint": Inpaint,
    "experiment": Experiment,
    "report": Report,
    "weights": Weights,
    "bench": Bench,
}


CONTINUED = (Demo, Shard, Train, TrainGenerator, Encode, Decode, Sample, Experiment)
"""Commands that go on where they were stopped."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Return when all is done; exit with one of the other codes."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    with log_to_the_console():
        try:
            code = _run(given)
        except BrokenPipeError:
            # Whoever read the output has seen enough, as `head` does; nothing more can be printed.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            code = 0
    if code:
        sys.exit(code)


def _run(arguments: list[str]) -> int:
    command_line.set(tuple(arguments))
    try:
        command = _parse(arguments)
    except ValueError as mistake:
        return _refuse(mistake)
    try:
        code = command.run()
        leave_processes()
        return code
    except DivergedError as error:
        complain(error)
        return DIVERGED
    except BrokenPipeError:
        raise
    except (ValueError, OSError) as mistake:
        return _refuse(mistake)
    except KeyboardInterrupt:
        return _stopped(command)


def _refuse(mistake: Exception) -> int:
    complain(mistake)
    return MISTAKE


def _stopped(command: Command) -> int:
    if isinstance(command, CONTINUED):
        say("stopped; what was finished is kept, and the same command goes on.")
        return INTERRUPTED
    say("stopped.")
    return STOPPED


def _parse(arguments: list[str]) -> Command:
    guesses = {name: family.named_in(arguments) for name, family in FAMILIES.items()}
    command = _parse_with(guesses, arguments)
    for name, family in FAMILIES.items():
        if isinstance(command, family.command) and command.name != guesses[name]:
            # The guess was another argument's value.
            command = _parse_with(guesses | {name: command.name}, arguments)
    return command


def _parse_with(runs: dict[str, str], arguments: list[str]) -> Command:
    """With the settings of a named run as the defaults of each command that trains."""
    configured = {name: FAMILIES[name].with_defaults_of(run) for name, run in runs.items()}
    kinds = [Annotated[kind, tyro.conf.subcommand(name)] for name, kind in (COMMANDS | configured).items()]
    any_of_them: Any = Union[tuple(kinds)]  # noqa: UP007
    parse = partial(
        tyro.cli,
        any_of_them,
        prog="lgq",
        description="Discrete image tokenizers and generators: LGQ and its baselines.",
        args=arguments,
        config=MARKERS,
        registry=REGISTRY,
    )
    try:
        with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
            command: Command = parse()
    except SystemExit as end:
        # What settings refuse is a line of ours; a box around it names parts that users never see.
        if refusal := _refusal_behind(end):
            raise refusal from None
        command = parse()  # prints help, or what is wrong with the options
    except RecursionError as error:
        raise LGQError("a word of the command line is too long to be an option or a value.") from error
    return command


def _refusal_behind(end: BaseException) -> ValueError | None:
    """The mistake that settings found, if any; words that make no value are the parser's to explain."""
    error = end.__context__
    while error is not None and not (isinstance(error, ValueError) and _is_of_settings(error)):
        error = error.__context__
    return error


def _is_of_settings(error: ValueError) -> bool:
    frames = [frame.f_globals["__name__"] for frame, _ in traceback.walk_tb(error.__traceback__)]
    return frames[-1].startswith("lgq.") and not frames[-1].startswith("lgq.cli.")
