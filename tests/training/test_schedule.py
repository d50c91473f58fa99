"""Laws of the learning rate over training."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lgq.training.settings import Schedule

KINDS = ["constant", "cosine"]
FINAL = st.floats(0, 1)


def test_default_is_one_throughout():
    assert {Schedule().multiplier(step, 7) for step in range(9)} == {1.0}


def test_cosine_equals_the_plain_formula():
    steps = np.arange(101)
    expected = 0.1 + 0.9 * 0.5 * (1 + np.cos(np.pi * steps / 100))
    schedule = Schedule(kind="cosine", final=0.1)
    assert [schedule.multiplier(int(step), 100) for step in steps] == pytest.approx(expected)


@given(st.integers(0, 50), st.integers(1, 50), FINAL)
def test_ends_are_exact(warmup_steps, rest, final):
    schedule = Schedule(kind="cosine", warmup_steps=warmup_steps, final=final)
    total = warmup_steps + rest
    assert schedule.multiplier(warmup_steps, total) == 1
    assert schedule.multiplier(total, total) == final
    assert schedule.multiplier(total + 1000, total) == final


@pytest.mark.parametrize("kind", KINDS)
def test_warmup_is_a_line_that_learns_from_the_first_step(kind):
    schedule = Schedule(kind=kind, warmup_steps=4)
    rise = [schedule.multiplier(step, 100) for step in range(5)]
    assert rise == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])


def test_cosine_begins_after_the_warmup():
    late, early = Schedule(kind="cosine", warmup_steps=20, final=0.3), Schedule(kind="cosine", final=0.3)
    assert [late.multiplier(20 + i, 60) for i in range(41)] == [early.multiplier(i, 40) for i in range(41)]


@given(st.sampled_from(KINDS), st.integers(0, 20), st.integers(1, 20), FINAL)
def test_multiplier_rises_then_never_rises_again(kind, warmup_steps, rest, final):
    schedule = Schedule(kind=kind, warmup_steps=warmup_steps, final=final)
    total = warmup_steps + rest
    values = np.array([schedule.multiplier(step, total) for step in range(total + 1)])
    assert (np.diff(values[: warmup_steps + 1]) > 0).all()
    assert (np.diff(values[warmup_steps:]) <= 0).all()
    assert ((values > 0) | (np.arange(total + 1) == total) | (final == 0)).all()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "linear"}, "kind must be 'constant' or 'cosine', got 'linear'"),
        ({"warmup_steps": -1}, "warmup_steps must be at least 0, got -1"),
        ({"final": 1.5}, r"final must lie in 0\.\.1, got 1.5"),
    ],
)
@pytest.mark.usefixtures("without_shape_checks")
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Schedule(**settings)


@pytest.mark.parametrize("kind", KINDS)
def test_bad_steps_are_refused(kind):
    schedule = Schedule(kind=kind, warmup_steps=10)
    with pytest.raises(ValueError, match="step must be at least 0, got -1"):
        schedule.multiplier(-1, 20)
    with pytest.raises(ValueError, match="got 10 of 10: shorten the warm-up"):
        schedule.multiplier(0, 10)
