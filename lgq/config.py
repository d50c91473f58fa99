"""Settings, which are nested dataclasses, to JSON and back.

Every field is checked: an error about a wrong name or type gives its path, such as `backbone.widths`.
"""

import dataclasses
import difflib
import reprlib
import types
from collections.abc import Sequence
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from lgq.errors import LGQError, rename_settings

T = TypeVar("T")
_SCALARS = {int: "a whole number", float: "a number", str: "a string", bool: "true or false"}
_BRIEF = reprlib.Repr()
_BRIEF.maxlevel, _BRIEF.maxstring, _BRIEF.maxother, _BRIEF.maxlong = 3, 100, 100, 100


class ConfigError(LGQError):
    """Settings that do not fit their fields; the message names the field."""


def to_json(settings: Any) -> dict[str, Any]:
    """Convert settings to plain dictionaries, lists, strings and numbers."""
    values = {field.name: getattr(settings, field.name) for field in dataclasses.fields(settings)}
    return {name: _plain(value) for name, value in values.items()}


def from_json(kind: type[T], values: Any, *, path: str = "") -> T:
    """Restore settings from the output of `to_json`; missing fields take their defaults."""
    if not isinstance(values, dict):
        name = f"`{path}`" if path else "settings"
        raise ConfigError(f"{name} must be an object with named fields, got {_BRIEF.repr(values)}.")
    hints = get_type_hints(kind)
    fields = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    for name in values:
        if name not in fields:
            close = difflib.get_close_matches(name, fields, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"known are {', '.join(fields)}."
            raise ConfigError(f"unknown field `{_join(path, name):.100}`: {hint}")
    restored = {name: _restore(hints[name], value, _join(path, name)) for name, value in values.items()}
    try:
        return kind(**restored)
    except TypeError as error:
        raise ConfigError(f"{path or kind.__name__}: {error!s:.300}") from error
    except LGQError as error:
        message = f"{error!s:.300}"
        named = rename_settings(message, lambda name: f"`{_join(path, name)}`" if name in fields else None)
        raise ConfigError(f"{path}: {message}" if path and named == message else named) from error


def keeps_prefix(kind: type, name: str) -> bool:
    """Tell whether the option of a setting has the name of its section: `--loss.l1`, but `--steps` of a loop.

    A class of settings with `prefixed` lists those that do; without it, all do.
    """
    prefixed: tuple[str, ...] | None = getattr(kind, "prefixed", None)
    return prefixed is None or name in prefixed


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return to_json(value)
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _restore(hint: Any, value: Any, path: str) -> Any:
    if dataclasses.is_dataclass(hint):
        return from_json(hint, value, path=path)  # type: ignore[arg-type]
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        options = [option for option in get_args(hint) if option is not type(None)]
        optional = len(options) < len(get_args(hint))
        if value is None and optional:
            return None
        # Of several classes of settings, the first that has all the fields.
        fitting = [option for option in options if _has_fields(option, value)]
        return _restore((fitting or options)[0], value, path)
    if origin is Literal:
        return _require(value in get_args(hint), value, path, " or ".join(map(repr, get_args(hint))))
    if origin in (tuple, Sequence):
        hints = [*get_args(hint), Ellipsis] if origin is Sequence else list(get_args(hint))
        _require(isinstance(value, list | tuple), value, path, "a list")
        expected = hints[:1] * len(value) if hints[-1] is Ellipsis else hints
        _require(len(expected) == len(value), value, path, f"a list of {len(expected)}")
        pairs = enumerate(zip(expected, value, strict=True))
        return tuple(_restore(kind, item, f"{path}[{i}]") for i, (kind, item) in pairs)
    if origin is dict or hint is dict:
        return _require(isinstance(value, dict), value, path, "an object with named fields")
    if hint not in _SCALARS:
        return value
    accepted = (int, float) if hint is float else hint
    fits = isinstance(value, accepted) and (hint is bool or not isinstance(value, bool))
    return _require(fits, value, path, _SCALARS[hint])


def _has_fields(kind: Any, values: Any) -> bool:
    if not dataclasses.is_dataclass(kind) or not isinstance(values, dict):
        return False
    return values.keys() <= {field.name for field in dataclasses.fields(kind)}


def _require(fits: bool, value: Any, path: str, rule: str) -> Any:
    if not fits:
        raise ConfigError(f"`{path}` must be {rule}, got {_BRIEF.repr(value)}.")
    return value
