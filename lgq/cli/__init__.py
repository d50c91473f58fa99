"""The command line: a command parses its options, calls one function of the library and prints the result.

Only the command that is asked for is loaded. Exit codes: 0, done; 1, the loss is NaN or infinite; 2, a
mistake that the user can mend, in one line; 75, stopped on request with all work saved, so that the same
command continues; 130, stopped with nothing to continue. Any other error keeps its traceback; LGQ_DEBUG=1
shows the traceback of every error.
"""

import contextlib
import difflib
import io
import json
import os
import sys
import traceback
from collections.abc import Sequence
from dataclasses import make_dataclass, replace
from functools import partial
from importlib import import_module
from typing import Annotated, Any, NamedTuple, Protocol, runtime_checkable

import tyro
from tyro.constructors import (
    ConstructorRegistry,
    PrimitiveConstructorSpec,
    PrimitiveTypeInfo,
    StructConstructorSpec,
    StructTypeInfo,
)

from lgq.cli.console import command_line, complain, log_to_the_console, say
from lgq.errors import LGQError

STOPPED_AND_SAVED, STOPPED = 75, 130
_OVERVIEW = """\
usage: lgq COMMAND [OPTIONS]

Discrete image tokenizers and generators: LGQ and its baselines.

{commands}

lgq COMMAND --help describes a command and its options."""


@runtime_checkable
class Command(Protocol):
    """A dataclass whose fields are the options.

    A command with a function `named` takes the name of a run before its options; the run's settings are the
    defaults of its field `settings`.
    """

    def run(self) -> int:
        """Run the command and return its exit code."""


class Entry(NamedTuple):
    """Module and class of a command, and its line in `lgq --help`."""

    module: str
    class_name: str
    summary: str
    continues: bool = False
    """Whether the same command continues after Ctrl-C."""

    def load(self) -> Any:
        return getattr(import_module(f"lgq.cli.{self.module}"), self.class_name)


COMMANDS = {
    "demo": Entry("train", "Demo", "train a small tokenizer and generator in minutes, and draw them", True),
    "shard": Entry("images", "Shard", "write images into WebDataset shards", True),
    "train": Entry("train", "Train", "train a tokenizer", True),
    "train-generator": Entry("train", "TrainGenerator", "train a MaskGIT on tokens", True),
    "evaluate": Entry("evaluate", "Evaluate", "measure a tokenizer or a generator"),
    "reconstruct": Entry("images", "Reconstruct", "write images beside their reconstructions"),
    "encode": Entry("images", "Encode", "turn images into tokens", True),
    "decode": Entry("images", "Decode", "turn tokens into images", True),
    "sample": Entry("generate", "Sample", "draw images with a generator", True),
    "inpaint": Entry("generate", "Inpaint", "redraw a part of an image with a generator"),
    "experiment": Entry("experiment", "Experiment", "train and evaluate the rows of a table", True),
    "report": Entry("experiment", "Report", "write one page about the results of experiments"),
    "weights status": Entry("weights", "WeightsStatus", "list the weights behind LPIPS and FID"),
    "weights fetch": Entry("weights", "WeightsFetch", "download them once"),
    "weights import": Entry("weights", "WeightsImport", "take them from a file"),
    "doctor": Entry("doctor", "Doctor", "versions, devices, kernels and speed on one page"),
    "bench quantizers": Entry("bench", "BenchQuantizers", "time and memory of a quantizer's training step"),
    "bench encode": Entry("bench", "BenchEncode", "nearest-code search beside faiss"),
    "bench train": Entry("bench", "BenchTrain", "images per second of a training step"),
    "bench evaluate": Entry("bench", "BenchEvaluate", "the cost of an evaluation"),
    "bench sample": Entry("bench", "BenchSample", "the cost of drawing images"),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command line; return when it is done, exit with a code otherwise."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    command_line.set(tuple(words))
    with log_to_the_console():
        try:
            code = _run(words)
        except LGQError as error:
            if os.environ.get("LGQ_DEBUG", "0") not in ("", "0"):
                traceback.print_exc()
            complain(error)
            code = error.exit_code
        except BrokenPipeError:
            # The reader of the output, such as `head`, has closed it: nothing more can be printed.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            code = 0
    if code:
        sys.exit(code)


def _run(words: list[str]) -> int:
    entry = COMMANDS[_command_name(words)]
    try:
        code: int = parse(words).run()
    except KeyboardInterrupt:
        if not entry.continues:
            say("stopped.")
            return STOPPED
        say("stopped; finished work is kept, and the same command continues.")
        return STOPPED_AND_SAVED
    from lgq.distributed import leave_processes  # imports torch, which `lgq --help` does without

    leave_processes()
    return code


def parse(words: list[str]) -> Command:
    """Build the command of a command line; print its help and exit if that is asked for."""
    name = _command_name(words)
    command, words, program = COMMANDS[name].load(), words[len(name.split()) :], f"lgq {name}"
    if hasattr(command, "named"):
        run_name = ""
        if words and not words[0].startswith("-"):
            run_name, *words = words
        elif "--help" not in words and "-h" not in words:
            raise LGQError(f"{program} needs the name of a run before its options: see {program} --help.")
        command = _with_defaults(command, command.named(run_name or command.example))
        program = f"{program} {run_name or 'NAME'}"
    explanation = io.StringIO()
    try:
        with contextlib.redirect_stderr(explanation):
            config = (tyro.conf.FlagCreatePairsOff,)
            parsed: Command = tyro.cli(command, prog=program, args=words, config=config, registry=_REGISTRY)
            return parsed
    except SystemExit as end:
        if not end.code:
            raise
        error = end.__context__
        while error is not None and not isinstance(error, LGQError):
            error = error.__context__
        raise error or LGQError(_in_one_line(explanation.getvalue(), program)) from None
    except RecursionError as error:
        raise LGQError("a word of the command line is too long to be an option or a value.") from error


def _command_name(words: list[str]) -> str:
    """Return the command at the start of a command line; print the list of commands if that is asked for."""
    for name in (" ".join(words[:2]), *words[:1]):
        if name in COMMANDS:
            return name
    asked, groups = words[0] if words else "--help", {name.split()[0] for name in COMMANDS if " " in name}
    if asked in ("-h", "--help") or (asked in groups and words[1:2] in ([], ["-h"], ["--help"])):
        shown = [name for name in COMMANDS if asked not in groups or name.startswith(asked)]
        lines = (f"  {name:16}  {COMMANDS[name].summary}" for name in shown)
        print(_OVERVIEW.format(commands="\n".join(lines)))
        sys.exit(0)
    given = " ".join(words[:2]) if asked in groups else asked
    hint = _hint(difflib.get_close_matches(given, COMMANDS))
    raise LGQError(f"unknown command {given!r}: {hint}lgq --help.")


def _with_defaults(command: Any, settings: Any) -> type[Any]:
    """Return the command with its settings as defaults of the options."""
    return make_dataclass(
        command.__name__,
        [("settings", Annotated[type(settings), tyro.conf.arg(name="")], settings)],
        bases=(command,),
        namespace={"__doc__": command.__doc__},
        frozen=True,
        kw_only=True,
    )


def _in_one_line(box: str, program: str) -> str:
    """Return the message in the box that the parser draws around a mistake, with its suggestion."""
    lines = [line.strip("╭╰│╮╯|+ ") for line in box.splitlines()[1:]]
    lines = [line if line.strip("─-") else "" for line in lines]
    sections = [" ".join(part.split("\n")) for part in "\n".join(lines).strip().split("\n\n")]
    message = sections[0].rstrip(".") or "these options cannot be read"
    similar = [words.split()[3] for words in sections if words.startswith("Perhaps you meant: ")]
    return f"{message[0].lower()}{message[1:]}; {_hint(similar)}{program} --help."


def _hint(similar: list[str]) -> str:
    return f"did you mean {similar[0]}? See " if similar else "see "


_REGISTRY = ConstructorRegistry()
_in_work: list[StructTypeInfo] = []


@_REGISTRY.struct_rule
def _whole_lines(info: StructTypeInfo) -> StructConstructorSpec | None:
    """Join the lines of each help text: tyro would keep a break before every indented line of a docstring."""
    if any(info is outer for outer in _in_work):
        return None
    _in_work.append(info)
    spec = ConstructorRegistry.get_struct_spec(info)
    _in_work.pop()
    if not isinstance(spec, StructConstructorSpec):
        return None
    fields = (replace(field, helptext=partial(_joined, field.helptext)) for field in spec.fields)
    return replace(spec, fields=tuple(fields))


def _joined(helptext: Any) -> str:
    return " ".join(((helptext() if callable(helptext) else helptext) or "").split())


@_REGISTRY.primitive_rule
def _keyword_arguments(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[dict[str, Any]] | None:
    """`--quantizer-options tau_end=0.05 score=dot`: names as in Python, values in JSON or plain text."""
    if info.type != dict[str, Any]:
        return None
    return PrimitiveConstructorSpec(
        nargs="*",
        metavar="[NAME=VALUE ...]",
        instance_from_str=lambda words: dict(map(_pair, words)),
        is_instance=lambda value: isinstance(value, dict),
        str_from_instance=lambda options: [f"{name}={json.dumps(value)}" for name, value in options.items()],
    )


def _pair(word: str) -> tuple[str, Any]:
    name, equals, value = word.partition("=")
    if not name or not equals:
        raise LGQError(f"quantizer options are of the form NAME=VALUE, got {word!r}.")
    try:
        return name, json.loads(value)
    except (ValueError, RecursionError):
        return name, value
