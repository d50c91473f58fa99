"""The options of a command, read from the fields of its dataclass: names, help, and errors about them.

Parsing is tyro's work. What a newcomer reads is made here: help with the basic options first, the option of
each setting that an error names, and the way from a wrong option to the right one.
"""

import ast
import difflib
import inspect
import json
import shlex
import shutil
import sys
import textwrap
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

import tyro
from rich.text import Text

from lgq.config import keeps_prefix
from lgq.errors import LGQError, rename_settings

_BASIC = (
    "data", "tokens", "out", "val_data", "val_tokens", "tokenizer", "images", "samples",
    "loop.steps", "batch_size", "learning_rate", "quantizer", "codebook_size", "image_size", "seed",
    "resume", "device", "workers", "weights", "plugin", "dry_run", "as_json",
)  # fmt: skip
"""Settings that a newcomer meets first, in the order of the help."""
_FEW = 14
"""Number of options up to which a help has one list."""
_METAVARS = {int: "INT", float: "FLOAT", str: "TEXT", Path: "PATH"}
_OTHER_WORDS = {
    "--data": "--tokens",
    "--tokens": "--data",
    "--val-data": "--val-tokens",
    "--lr": "--learning-rate",
    "--bs": "--batch-size",
    "--batch": "--batch-size",
    "--iterations": "--steps",
    "--wd": "--weight-decay",
}
"""Options of other commands, and common short names, that a user takes for one of this."""
_NUMBERS = {int: ("a whole number", "whole numbers"), float: ("a number", "numbers")}
_WIDEST, _INDENT = 120, 24
_HARD_SPACE = "\N{NO-BREAK SPACE}"


class Option(NamedTuple):
    """An option, or a word without one (RUN, IMAGE), of a command."""

    flag: str
    """`--codebook-size`; of a positional word, its name in the usage."""
    keyword: str
    """Name in the API: `codebook_size`, or `loop.steps` within a run."""
    kind: Any
    """Type of the value, without None."""
    metavar: str
    default: Any
    """Value if it is not given; `MISSING` if it must be."""
    section: str
    """Heading of the settings that it belongs to; empty for those of the command itself."""
    owner: type
    """Dataclass with the field."""
    field: str
    """Name of the field."""
    positional: bool = False

    @property
    def flags(self) -> tuple[str, ...]:
        """Words that set it: two for yes and no."""
        if self.kind is not bool:
            return (self.flag,)
        *section, name = self.flag.removeprefix("--").split(".")
        return self.flag, "--" + ".".join([*section, f"no-{name}"])

    @property
    def takes_several(self) -> bool:
        return get_origin(self.kind) in (tuple, dict)

    @property
    def help(self) -> str:
        return " ".join(_field_docstrings(self.owner).get(self.field, "").split())


@dataclass(frozen=True, kw_only=True)
class Computes:
    """Base of a command that computes."""

    device: Annotated[str, tyro.conf.arg(metavar="{auto,cpu,cuda,cuda:N,mps}")] = "auto"
    """Where to compute: CUDA, else MPS, else the CPU (auto), or the device of this name; cuda:N is a GPU by
    its number."""


@dataclass(frozen=True, kw_only=True)
class Plugins:
    """Options of every command that may need a quantizer of the user's own."""

    plugin: Annotated[str | None, tyro.conf.arg(metavar="MODULE")] = None
    """Python module, by its name or its path, that registers quantizers of your own; by default none. May be
    given several times."""


def options_of(command: Any, settings: Any = None) -> list[Option]:
    """Return the options of a command; `settings` are the defaults of its field of that name."""
    return list(_walk(command, {"settings": settings}, "", "", ""))


def _walk(kind: Any, values: dict[str, Any], prefix: str, path: str, section: str) -> Iterator[Option]:
    hints = get_type_hints(kind, include_extras=True)
    for field in fields(kind):
        hint: Any = hints[field.name]
        extras: list[Any] = []
        if get_origin(hint) is Annotated:
            hint, *extras = get_args(hint)
        if isinstance(hint, TypeVar):
            (hint,) = get_args(kind.__orig_bases__[0])
        names = [extra.name for extra in extras if getattr(extra, "name", None) is not None]
        name = names[0] if names else field.name.replace("_", "-")
        value = values.get(field.name)
        if value is None:
            value = field.default if field.default_factory is MISSING else field.default_factory()
        if is_dataclass(hint):
            title = _field_docstrings(kind).get(field.name, "").rstrip(".")
            inner = {} if value is MISSING else vars(value)
            nested = f"{path}{field.name}." if name else path
            yield from _walk(hint, inner, f"{prefix}{name}." if name else prefix, nested, title or section)
            continue
        hint = _without_none(hint)
        metavars = [extra.metavar for extra in extras if getattr(extra, "metavar", None)]
        metavar = metavars[0] if metavars else _metavar(hint, field.name)
        positional = tyro.conf.Positional in extras
        flag = f"--{prefix if keeps_prefix(kind, field.name) else ''}{name}"
        yield Option(
            metavar if positional else flag,
            f"{path}{field.name}",
            hint,
            metavar,
            values.get(field.name, value),
            section,
            kind,
            field.name,
            positional,
        )


def _without_none(hint: Any) -> Any:
    if get_origin(hint) in (Union, types.UnionType):
        options = [option for option in get_args(hint) if option is not types.NoneType]
        return options[0] if len(options) == 1 else str
    return hint


def _metavar(hint: Any, name: str) -> str:
    if name in ("data", "val_data", "show"):
        return "DATA"
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return "{" + ",".join(map(str, arguments)) + "}"
    if origin is tuple:
        first = _METAVARS[arguments[0]]
        return f"{first} ..." if arguments[-1] is Ellipsis else " ".join([first] * len(arguments))
    return "NAME=VALUE ..." if origin is dict else _METAVARS.get(hint, "TEXT")


@cache
def _field_docstrings(kind: type) -> dict[str, str]:
    """Return the docstrings of the fields of a dataclass and of those that it derives from."""
    docstrings: dict[str, str] = {}
    for owner in reversed(kind.__mro__):
        if is_dataclass(owner):
            docstrings |= _docstrings_of_module(owner.__module__).get(owner.__name__, {})
    return docstrings


@cache
def _docstrings_of_module(name: str) -> dict[str, dict[str, str]]:
    classes = [
        node
        for node in ast.parse(inspect.getsource(sys.modules[name])).body
        if isinstance(node, ast.ClassDef)
    ]
    return {
        node.name: {
            field.target.id: str(text.value.value)
            for field, text in pairwise(node.body)
            if isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(text, ast.Expr)
            and isinstance(text.value, ast.Constant)
        }
        for node in classes
    }


def in_options(text: str, options: Iterable[Option]) -> str:
    """Replace the settings that a text names in backticks by the options that set them."""
    flags = {}
    for option in options:
        flags[f"{option.owner.__name__}.{option.field}"] = option.flag
        flags[option.flag.removeprefix("--").replace("-", "_")] = option.flag
    flags |= {option.keyword: option.flag for option in options}

    with_entries = {option.keyword for option in options if get_origin(option.kind) is dict}

    def rename(name: str) -> str | None:
        owner, _, entry = name.partition(".")
        return f"{flags[owner]} {entry}" if entry and owner in with_entries else flags.get(name)

    return rename_settings(text, rename)


def qualified(text: str, kind: type) -> str:
    """Say whose fields a text of a dataclass names, for `in_options`: others may have fields of that name."""
    names = {field.name for field in fields(kind)}
    return rename_settings(text, lambda name: f"`{kind.__name__}.{name}`" if name in names else None)


def require_known_options(
    words: Sequence[str],
    options: Iterable[Option],
    program: str,
    elsewhere: Callable[[], dict[str, Iterable[Option]]],
) -> None:
    """Refuse a word that looks like an option and is none; `elsewhere` gives the options of each command."""
    options = list(options)
    known = [flag for option in options if not option.positional for flag in option.flags]
    for i, word in enumerate(words):
        given = word.partition("=")[0].replace("_", "-")
        if not given.startswith("--") or given in known:
            continue
        start = f"{program} has no option {given}"
        positional = [option for option in options if option.positional and given in _option_names(option)]
        if positional:
            value = word.partition("=")[2]
            mended = shlex.join([*words[:i], *([value] if value else []), *words[i + 1 :]])
            raise LGQError(f"{start}: {positional[0].metavar} stands without it: {program} {mended}")
        if (meant := _OTHER_WORDS.get(given)) in known:
            raise LGQError(f"{start}: did you mean {meant}? See {program} --help.")
        nested = [flag for flag in known if flag.endswith(f".{given[2:]}")]
        if close := nested[:1] or difflib.get_close_matches(given, known, n=1):
            raise LGQError(f"{start}: did you mean {close[0]}? See {program} --help.")
        owners = [
            name for name, others in elsewhere().items() if any(given in other.flags for other in others)
        ]
        owned = f"; lgq {', lgq '.join(owners)} {'have' if len(owners) > 1 else 'has'} it" if owners else ""
        raise LGQError(f"{start}{owned}: see {program} --help.")


def _option_names(positional: Option) -> tuple[str, str]:
    """Return what a positional word would be called if it were an option."""
    return f"--{positional.metavar.lower()}", f"--{positional.field.replace('_', '-')}"


def require_given(words: Sequence[str], options: Iterable[Option], program: str) -> None:
    """Refuse a command line without an option that has no default."""
    given = {word.partition("=")[0].replace("_", "-") for word in words}
    required = [option for option in options if option.default is MISSING and not option.positional]
    missing = [f"{option.flag} {option.metavar}" for option in required if option.flag not in given]
    if missing:
        raise LGQError(f"{program} needs {' and '.join(missing)}: see {program} --help.")


def require_numbers(words: Sequence[str], options: Iterable[Option]) -> None:
    """Refuse values that are no numbers, or too few, where an option takes numbers."""
    by_flag = {option.flag: option for option in options if not option.positional}
    for i, word in enumerate(words):
        flag, equals, value = word.partition("=")
        option = by_flag.get(flag.replace("_", "-")) if flag.startswith("--") else None
        if option is None:
            continue
        following = takewhile(lambda word: not word.startswith("--"), words[i + 1 :])
        values = [value] if equals else list(following)
        many = get_origin(option.kind) is tuple
        kinds = get_args(option.kind) if many else (option.kind,)
        if kinds[0] not in _NUMBERS or not values or values[0].lower() == "none":
            continue
        singular, plural = _NUMBERS[kinds[0]]
        if kinds[-1] is Ellipsis:
            rule, values = plural, values[:1]
        else:
            rule, values = f"{len(kinds)} {plural}" if many else singular, values[: len(kinds)]
        for given in values:
            if not _is_number(given, kinds[0]):
                raise LGQError(f"{option.flag} takes {rule}, got {given!r}.")
        if Ellipsis not in kinds and len(values) < len(kinds):
            raise LGQError(f"{option.flag} takes {rule}, got {len(values)}: {' '.join(values)}.")


def with_none(words: Sequence[str], options: Iterable[Option]) -> list[str]:
    """Write `none` as help does, and `None`, alike where an option takes numbers."""
    numbers = {flag for option in options if option.kind in _NUMBERS for flag in option.flags}
    written, flag = [], ""
    for word in words:
        name, equals, value = word.partition("=")
        if name.startswith("--"):
            flag = name.replace("_", "-")
            is_none = flag in numbers and value.lower() == "none"
            written.append(f"{name}=None" if equals and is_none else word)
        else:
            written.append("None" if flag in numbers and word.lower() == "none" else word)
    return written


def _is_number(text: str, kind: Callable[[str], float]) -> bool:
    try:
        kind(text)
    except ValueError:
        return False
    return True


def take_name(
    words: Sequence[str], options: Iterable[Option], known: Iterable[str]
) -> tuple[str | None, list[str]]:
    """Take the name of a run out of the words: the first that is no option and no option's value."""
    by_flag, names = {flag: option for option in options for flag in option.flags}, set(known)
    last: Option | None = None
    values = 0
    for i, word in enumerate(words):
        if word.startswith("--"):
            flag, equals, _ = word.partition("=")
            last, values = by_flag.get(flag.replace("_", "-")), 1 if equals else 0
            continue
        needs_value = last is not None and last.kind is not bool and values == 0
        is_further_value = last is not None and last.takes_several and values > 0 and word not in names
        if not needs_value and not is_further_value:
            return word, [*words[:i], *words[i + 1 :]]
        values += 1
    return None, list(words)


def help_text(program: str, command: Any, options: Sequence[Option], names: Sequence[str] = ()) -> Text:
    """Return the help of a command for the width of the terminal, with the basic options first.

    names: of runs, one of which the reader is to choose.
    """
    width = min(shutil.get_terminal_size().columns, _WIDEST)
    positional = [option for option in options if option.positional]
    required = [option for option in options if option.default is MISSING and not option.positional]
    words = [*(f"{option.flag} ..." if option.takes_several else option.flag for option in positional)]
    words += [f"{option.flag} {option.metavar}" for option in required] + ["[OPTIONS]"]
    help_of_command = inspect.getdoc(command) or ""
    text = Text(_wrapped(f"usage: {program} {' '.join(words)}", width, indent=7) + "\n")
    for paragraph in help_of_command.split("\n\n"):
        text.append("\n" + _wrapped(in_options(" ".join(paragraph.split()), options), width) + "\n")
    if names:
        text.append("\n" + _wrapped(f"Names: {', '.join(names)}.", width) + "\n")
    for title, members in _sections(options).items():
        text.append("\n")
        text.append(_wrapped(in_options(title, options), width), style="bold")
        for option in members:
            text.append("\n" + _entry(option, options, width))
        text.append("\n")
    text.append("\n" + _wrapped("-h or --help prints this text.", width))
    return text


def _sections(options: Sequence[Option]) -> dict[str, list[Option]]:
    given = [option for option in options if not option.positional]
    basic = [option for option in given if option.keyword in _BASIC or option.default is MISSING]
    title = "Basic options"
    if sum(not option.section for option in given) <= _FEW:
        title, basic = "Options", [option for option in given if not option.section]
        basic.sort(key=lambda option: option.default is not MISSING)  # what must be given comes first
    else:
        places = {name: place for place, name in enumerate(_BASIC)}
        basic.sort(key=lambda option: places.get(option.keyword, -1))
    others = [option for option in given if option not in basic]
    sections = {"Arguments": [option for option in options if option.positional], title: basic}
    sections["More options"] = []
    for option in others:
        sections.setdefault(option.section or "More options", []).append(option)
    return {title: members for title, members in sections.items() if members}


def _entry(option: Option, options: Iterable[Option], width: int) -> str:
    invocation = option.flag if option.positional else ", ".join(option.flags)
    if not option.positional and option.kind is not bool:
        invocation += f" {option.metavar}"
    help_here = in_options(qualified(option.help, option.owner), options)
    text = _wrapped(f"{help_here} {_default_text(option)}".strip(), width - _INDENT - 2)
    lines = textwrap.indent(text, " " * (_INDENT + 2)).splitlines()
    if len(invocation) <= _INDENT - 2:
        lines[0] = f"  {invocation:{_INDENT}}{lines[0].lstrip()}"
    else:
        lines = [f"  {invocation}", *lines]
    return "\n".join(lines)


def _default_text(option: Option) -> str:
    value = option.default
    if value is MISSING:
        return "" if option.positional else "(required)"
    if value is None or value in ((), {}):
        return "" if "default" in option.help else f"(default:{_HARD_SPACE}none)"
    if isinstance(value, bool):
        shown = "yes" if value else "no"
    elif isinstance(value, float):
        shown = f"{value:g}"
    elif isinstance(value, dict):
        shown = " ".join(f"{name}={json.dumps(item)}" for name, item in value.items())
    else:
        shown = " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return f"(default:{_HARD_SPACE}{shown})"


def _wrapped(text: str, width: int, *, indent: int = 0) -> str:
    wrapped = textwrap.fill(
        text, width, subsequent_indent=" " * indent, break_on_hyphens=False, break_long_words=False
    )
    return wrapped.replace(_HARD_SPACE, " ")
