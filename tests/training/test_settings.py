"""Settings of runs: the learning rate schedule, epochs, seeds, and what is refused."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tiny_generator
import tiny_run
import torch
from hypothesis import given
from hypothesis import strategies as st

from lgq.errors import LGQError
from lgq.training.settings import GeneratorRun, LoopSettings, Schedule, TokenizerRun, require_run

KINDS = ["constant", "cosine"]
FINAL = st.floats(0, 1)


@pytest.mark.parametrize("warmup_steps", [0, 20])
def test_cosine_equals_the_plain_formula(warmup_steps):
    steps = np.arange(101)
    expected = 0.1 + 0.9 * 0.5 * (1 + np.cos(np.pi * steps / 100))
    schedule = Schedule(kind="cosine", warmup_steps=warmup_steps, final=0.1)
    multipliers = [schedule.multiplier(warmup_steps + int(step), warmup_steps + 100) for step in steps]
    assert multipliers == pytest.approx(expected)


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


@given(st.sampled_from(KINDS), st.integers(0, 20), st.integers(1, 20), FINAL)
def test_multiplier_rises_then_never_rises_again(kind, warmup_steps, rest, final):
    schedule = Schedule(kind=kind, warmup_steps=warmup_steps, final=final)
    total = warmup_steps + rest
    values = np.array([schedule.multiplier(step, total) for step in range(total + 1)])
    assert (np.diff(values[: warmup_steps + 1]) > 0).all()
    assert (np.diff(values[warmup_steps:]) <= 0).all()
    assert kind == "cosine" or values[-1] == 1
    assert ((values > 0) | (np.arange(total + 1) == total) | (final == 0)).all()


TOKENIZER, GENERATOR = tiny_run.TINY, tiny_generator.TINY


@pytest.mark.parametrize("kind", ["constant", "cosine"])
@pytest.mark.parametrize("steps", [1, 9, 80, 100])
def test_a_warm_up_as_long_as_the_run_takes_a_tenth_of_it(kind, steps):
    long, tenth = Schedule(kind=kind, warmup_steps=100), Schedule(kind=kind, warmup_steps=steps // 10)
    assert all(long.multiplier(i, steps) == tenth.multiplier(i, steps) for i in range(steps))


@pytest.mark.parametrize(
    ("settings", "wrong", "message"),
    [
        *((TOKENIZER.loop, {name: 0}, name) for name in ("steps", "keep", "patience", "log_every")),
        (Schedule(), {"kind": "linear"}, "`kind` must be 'constant' or 'cosine', got 'linear'"),
        (Schedule(), {"warmup_steps": -1}, "`warmup_steps` must be at least 0, got -1"),
        (Schedule(), {"final": 1.5}, r"`final` must lie in 0\.\.1, got 1.5"),
        (TOKENIZER.loop, {"epochs": 0.0}, "epochs"),
        (TOKENIZER.loop, {"minutes": 0.0}, "minutes"),
        (TOKENIZER, {"image_size": 13}, "`image_size` must be a multiple of 2"),
        (TOKENIZER, {"batch_size": 0}, "batch_size"),
        (TOKENIZER, {"learning_rate": 0.0}, "learning_rate"),
        (TOKENIZER, {"clip": 0.0}, "clip"),
        (TOKENIZER, {"average_decay": 2.0}, "average_decay"),
        (TOKENIZER, {"rfid_images": 1}, r"`rfid_images` must lie in 2\.\.3, got 1"),
        (TOKENIZER, {"rfid_images": 4}, r"`rfid_images` must lie in 2\.\.3, got 4"),
        (GENERATOR, {"label_smoothing": 1.5}, "label_smoothing"),
        (GENERATOR, {"label_dropout": -0.1}, "label_dropout"),
        (GENERATOR, {"sample_images": -1}, "sample_images"),
        (GENERATOR, {"seed": -1}, r"`seed` must lie in 0\.\.9223372036854775807, got -1"),
        (GENERATOR, {"seed": 2**63}, r"`seed` must lie in 0\.\.9223372036854775807, got 9223372036854775808"),
    ],
    ids=str,
)
@pytest.mark.usefixtures("without_shape_checks")
def test_settings_that_make_no_sense_are_refused_by_name(settings: Any, wrong: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        replace(settings, **wrong)


@pytest.mark.parametrize("ranks", [1, 5])
def test_the_largest_seed_gives_every_rank_a_seed_that_torch_takes(ranks):
    seeds = {replace(GENERATOR, seed=2**63 - 1).rank_seed(rank, ranks) for rank in range(ranks)}
    assert len(seeds) == ranks
    for seed in seeds:
        torch.Generator().manual_seed(seed)


EPOCHS = [(1, 10, 3), (1, 8, 2), (2.5, 8, 5), (0.1, 40, 1), (0.1, 120, 3)]
EPOCHS += [(1e-9, 8, 1), (1e9, 8, 9), (None, 8, 9)]


@pytest.mark.parametrize(("epochs", "images", "steps"), EPOCHS)
def test_epochs_are_whole_steps_that_see_them_all_and_never_more_than_steps(epochs, images, steps):
    settings = LoopSettings(steps=9, epochs=epochs)
    assert settings.for_data(images, images_per_step=4) == replace(settings, steps=steps)


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(
    ("run", "kind", "message"),
    [
        ("pocket-lgq", TokenizerRun, r"expected a TokenizerRun, such as lgq.*, got 'pocket-lgq'"),
        (TOKENIZER, GeneratorRun, r"expected a GeneratorRun, such as lgq.*, got TokenizerRun"),
    ],
)
def test_a_name_or_another_kind_of_run_is_refused(run, kind, message):
    with pytest.raises(LGQError, match=message):
        require_run(run, kind)
