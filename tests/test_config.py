"""Settings survive JSON, and errors name the field."""

import json
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lgq.config import ConfigError, from_json, to_json
from lgq.errors import LGQError


@dataclass(frozen=True, kw_only=True)
class Inner:
    widths: tuple[int, ...] = (1, 2)
    pair: tuple[float, float] = (0.9, 0.99)
    kind: Literal["a", "b"] = "a"

    def __post_init__(self) -> None:
        if not self.widths:
            raise LGQError("widths must not be empty.")


@dataclass(frozen=True, kw_only=True)
class Outer:
    inner: Inner = field(default_factory=Inner)
    steps: int = 10
    rate: float = 0.1
    limit: float | None = None
    name: str = "x"
    fast: bool = False
    options: dict[str, Any] = field(default_factory=dict)


SETTINGS = st.builds(
    Outer,
    inner=st.builds(
        Inner,
        widths=st.lists(st.integers(), min_size=1).map(tuple),
        pair=st.tuples(st.floats(allow_nan=False), st.floats(allow_nan=False)),
        kind=st.sampled_from(["a", "b"]),
    ),
    steps=st.integers(),
    rate=st.floats(allow_nan=False),
    limit=st.none() | st.floats(allow_nan=False),
    name=st.text(),
    fast=st.booleans(),
    options=st.dictionaries(st.text(), st.integers() | st.lists(st.integers())),
)


@given(SETTINGS)
def test_settings_survive_json(settings):
    assert from_json(Outer, json.loads(json.dumps(to_json(settings)))) == settings


def test_fields_left_out_take_their_defaults():
    assert from_json(Outer, {"inner": {"kind": "b"}}) == Outer(inner=Inner(kind="b"))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"stpes": 1}, "unknown field `stpes`: did you mean 'steps'"),
        ({"inner": {"zzz": 1}}, "unknown field `inner.zzz`: known are widths, pair, kind"),
        ({"steps": "ten"}, "`steps` must be a whole number, got 'ten'"),
        ({"steps": 1.5}, "`steps` must be a whole number, got 1.5"),
        ({"steps": True}, "`steps` must be a whole number, got True"),
        ({"rate": None}, "`rate` must be a number, got None"),
        ({"fast": 1}, "`fast` must be true or false, got 1"),
        ({"limit": "soon"}, "`limit` must be a number, got 'soon'"),
        ({"name": 3}, "`name` must be a string, got 3"),
        ({"options": []}, "`options` must be an object with named fields"),
        ({"inner": 3}, "`inner` must be an object with named fields, got 3"),
        ({"inner": {"kind": "c"}}, "`inner.kind` must be 'a' or 'b', got 'c'"),
        ({"inner": {"widths": 3}}, "`inner.widths` must be a list, got 3"),
        ({"inner": {"widths": [1, "x"]}}, r"`inner.widths\[1\]` must be a whole number, got 'x'"),
        ({"inner": {"widths": []}}, "inner: widths must not be empty"),
        ({"inner": {"pair": [1.0]}}, "`inner.pair` must be a list of 2"),
        ([], "settings must be an object"),
    ],
)
def test_errors_name_the_path_of_the_field(values, message):
    with pytest.raises(ConfigError, match=message):
        from_json(Outer, values)
