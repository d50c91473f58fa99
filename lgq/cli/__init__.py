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
from dataclasses import is_dataclass, make_dataclass, replace
from importlib import import_module
from typing import Annotated, Any, NamedTuple, Protocol, cast, runtime_checkable

import tyro
from tyro.constructors import (
    ConstructorRegistry,
    PrimitiveConstructorSpec,
    PrimitiveTypeInfo,
    StructConstructorSpec,
    StructTypeInfo,
)

import lgq
from lgq.cli.console import command_line, complain, log_to_the_console, say, show
from lgq.cli.options import (
    Option,
    Plugins,
    help_text,
    in_options,
    options_of,
    qualified,
    require_given,
    require_known_options,
    require_numbers,
    take_name,
    with_none,
)
from lgq.config import keeps_prefix
from lgq.errors import LGQError

STOPPED_AND_SAVED, STOPPED = 75, 130
_OVERVIEW = """\
usage: lgq COMMAND [OPTIONS]

Discrete image tokenizers and generators: LGQ and its baselines.

{commands}

lgq COMMAND --help describes a command and its options; lgq --version prints the version."""


@runtime_checkable
class Command(Protocol):
    """A dataclass whose fields are the options.

    A command with a function `named` takes the name of a run, one of `names()`, a settings file as its option
    `--config`, or both; the settings of that run are the defaults of its field `settings`.
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
    plugins: bool = True
    """Whether it takes --plugin, as it may need a quantizer of the user's own."""

    def load(self) -> Any:
        return getattr(import_module(f"lgq.cli.{self.module}"), self.class_name)


COMMANDS = {
    "demo": Entry(
        "train",
        "Demo",
        "train a small tokenizer and generator in minutes, and draw them",
        True,
        plugins=False,
    ),
    "view": Entry("view", "View", "look at a tokenizer and edit tokens, on a page in the browser"),
    "shard": Entry("images", "Shard", "write images into WebDataset shards", True, plugins=False),
    "import": Entry("interop", "Import", "make a tokenizer of a published checkpoint", plugins=False),
    "train": Entry("train", "Train", "train a tokenizer", True),
    "train-generator": Entry("train", "TrainGenerator", "train a MaskGIT on tokens", True),
    "runs": Entry("train", "Runs", "list the named runs"),
    "evaluate": Entry("evaluate", "Evaluate", "measure a tokenizer or a generator"),
    "reconstruct": Entry("images", "Reconstruct", "write images beside their reconstructions"),
    "encode": Entry("images", "Encode", "turn images into tokens", True),
    "decode": Entry("images", "Decode", "turn tokens into images", True),
    "sample": Entry("generate", "Sample", "draw images with a generator", True),
    "inpaint": Entry("generate", "Inpaint", "redraw a part of an image with a generator"),
    "experiment": Entry("experiment", "Experiment", "train and evaluate the rows of a table", True),
    "report": Entry("experiment", "Report", "write one page about the results of experiments"),
    "weights status": Entry(
        "weights", "WeightsStatus", "list the weights behind LPIPS and FID", plugins=False
    ),
    "weights fetch": Entry("weights", "WeightsFetch", "download them once", plugins=False),
    "weights import": Entry("weights", "WeightsImport", "take them from a file", plugins=False),
    "doctor": Entry("bench", "Doctor", "versions, devices, kernels and speed on one page", plugins=False),
    "bench quantizers": Entry("bench", "BenchQuantizers", "time and memory of a quantizer's training step"),
    "bench encode": Entry("bench", "BenchEncode", "nearest-code search beside faiss", plugins=False),
    "bench train": Entry("bench", "BenchTrain", "images per second of a training step"),
    "bench evaluate": Entry("bench", "BenchEvaluate", "the cost of an evaluation"),
    "bench sample": Entry("bench", "BenchSample", "the cost of drawing images"),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command line; return when it is done, exit with a code otherwise."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    command_line.set(tuple(words))
    with log_to_the_console(lambda text: in_options(text, _options(_command_name(words)))):
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
    name = _command_name(words)
    entry = COMMANDS[name]
    try:
        code: int = parse(words).run()
    except LGQError as error:
        error.args = (in_options(str(error), _options(name)),)
        raise
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
    entry, words, program = COMMANDS[name], words[len(name.split()) :], f"lgq {name}"
    words = _load_plugins(words) if entry.plugins else words
    asks_for_help = "--help" in words or "-h" in words
    command = entry.load()
    options = _options(name)
    names: tuple[str, ...] = ()
    if hasattr(command, "named"):
        run_name, words = take_name(words, options, command.names())
        file = _last_value("--config", words)
        if run_name is None and file is None and not asks_for_help:
            known = ", ".join(command.names())
            rule = f"needs the name of a run, one of {known}, or a --config FILE"
            raise LGQError(f"{program} {rule}: see {program} --help.")
        names = command.names() if run_name is None else ()
        settings = command.named(run_name, file, _changes(words, options))
        program, options = f"{program} {run_name or 'NAME'}", _options(name, settings)
        command = _with_defaults(command, settings)
    if asks_for_help:
        show(help_text(program, command, options, names))
        sys.exit(0)
    require_known_options(words, options, program, lambda: {name: _options(name) for name in COMMANDS})
    require_given(words, options, program)
    require_numbers(words, options)
    words = with_none(words, options)
    explanation = io.StringIO()
    try:
        with contextlib.redirect_stderr(explanation):
            parsed: Command = tyro.cli(command, prog=program, args=words, registry=_REGISTRY)
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


def _options(name: str, settings: Any = None) -> list[Option]:
    entry = COMMANDS[name]
    return options_of(entry.load(), settings) + (options_of(Plugins) if entry.plugins else [])


def _load_plugins(words: list[str]) -> list[str]:
    """Import the modules that --plugin names, before anything needs a quantizer; return the other words."""
    others: list[str] = []
    rest = iter(words)
    for word in rest:
        option, equals, module = word.partition("=")
        if option != "--plugin":
            others.append(word)
            continue
        module = module if equals else next(rest, "")
        if not module or module.startswith("-"):
            raise LGQError("--plugin needs a Python module that registers quantizers, or the path of one.")
        from lgq.quantizers import import_plugin  # imports torch, which other commands do without

        import_plugin(module)
    return others


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
    if asked == "--version":
        print(f"lgq {lgq.__version__}")
        sys.exit(0)
    given = " ".join(words[:2]) if asked in groups else asked
    close = difflib.get_close_matches(given, COMMANDS)
    hint = f"did you mean {close[0]}? See " if close else "see "
    raise LGQError(f"unknown command {given!r}: {hint}lgq --help.")


def _last_value(option: str, words: list[str]) -> str | None:
    """Return the value of an option before the words are parsed."""
    for word, following in zip(reversed(words), [None, *reversed(words)], strict=False):
        if word == option or word.startswith(f"{option}="):
            return word.partition("=")[2] or following
    return None


def _changes(words: list[str], options: Sequence[Option]) -> dict[str, Any]:
    """Return the settings that single words change, by their keywords, before the words are parsed."""
    words = [word.replace("_", "-") if word.startswith("--") else word for word in words]
    values = {
        option.keyword: _last_value(option.flag, words)
        for option in options
        if not option.takes_several and option.kind is not bool
    }
    return {
        keyword: int(value) if value.isdecimal() else value
        for keyword, value in values.items()
        if value is not None
    }


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
    """Return the message in the box that the parser draws around a mistake."""
    lines = [line.strip("╭╰│╮╯|+ ") for line in box.splitlines()[1:]]
    lines = [line if line.strip("─-") else "" for line in lines]
    sections = [" ".join(part.split("\n")) for part in "\n".join(lines).strip().split("\n\n")]
    message = sections[0].rstrip(".") or "these options cannot be read"
    return f"{message[0].lower()}{message[1:]}; see {program} --help."


_REGISTRY = ConstructorRegistry()
_in_work: list[StructTypeInfo] = []


@_REGISTRY.struct_rule
def _settings(info: StructTypeInfo) -> StructConstructorSpec | None:
    """Leave out prefixes that `keeps_prefix` does not ask for, and say whose fields an error names."""
    if any(info is outer for outer in _in_work):
        return None
    _in_work.append(info)
    spec = ConstructorRegistry.get_struct_spec(info)
    _in_work.pop()
    if not isinstance(spec, StructConstructorSpec):
        return None
    kind, build = info.type, spec.instantiate
    if not is_dataclass(kind):
        return spec

    def instantiate(**values: Any) -> Any:
        try:
            return build(**values)
        except LGQError as error:
            error.args = (qualified(str(error), kind),)
            raise

    return replace(
        spec,
        instantiate=instantiate,
        fields=tuple(
            field
            if keeps_prefix(kind, field.name)
            else replace(field, type=cast(Any, Annotated[field.type, tyro.conf.arg(prefix_name=False)]))
            for field in spec.fields
        ),
    )


@_REGISTRY.primitive_rule
def _keyword_arguments(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[dict[str, Any]] | None:
    """`--quantizer-options tau_end=0.05 score=dot`: names as in Python, values in JSON or text, or tuples."""
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
        raise LGQError(f"`quantizer_options` are of the form NAME=VALUE, got {word!r}.")
    is_tuple = value.startswith("(") and value.endswith(")")
    try:
        return name, json.loads(f"[{value[1:-1].rstrip(' ,')}]" if is_tuple else value)
    except (ValueError, RecursionError):
        return name, value
