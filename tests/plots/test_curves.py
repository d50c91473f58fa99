"""Plots show what the records say, and nothing else."""

from typing import Any

import numpy as np
import pytest
import torch
from png_pixels import count, opened

from lgq.plots.canvas import SHADE
from lgq.plots.curves import CURVES, training_curves, usage_histogram
from lgq.plots.palette import colour_of


def has(colour: str, png: bytes) -> bool:
    return count(colour, opened(png)) > 0


def record(step: int, split: str, **values: float | None) -> dict[str, Any]:
    return {"step": step, "split": split, "seconds": 1.0, "values": values}


RECORDS = [
    record(10, "train", loss=0.3, tau=1.0, l1=0.2),
    record(20, "train", loss=0.2, tau=0.5, l1=0.1),
    record(20, "validation", psnr=20.0, utilization=0.5),
    record(30, "train", loss=0.1, tau=0.1, l1=0.1),
    record(30, "validation", psnr=22.0, utilization=0.9),
]


def last_panel(png: bytes) -> np.ndarray:
    """The lower right quarter of a figure."""
    pixels = opened(png)
    return pixels[pixels.shape[0] // 2 + 10 :, pixels.shape[1] // 2 + 60 :]


@pytest.mark.parametrize("curve", CURVES, ids=lambda curve: curve.value)
def test_a_value_that_a_run_does_not_measure_has_no_panel(curve):
    without, alone = (
        [
            line
            | {"values": {name: v for name, v in line["values"].items() if (name == curve.value) is kept}}
            for line in RECORDS
        ]
        for kept in (False, True)
    )
    assert (last_panel(training_curves(RECORDS)) < 255).any()
    assert (last_panel(training_curves(without)) == 255).all()
    assert opened(training_curves(alone)).shape[1] < opened(training_curves(RECORDS)).shape[1]


@pytest.mark.parametrize(("name", "other"), [("lgq", "fsq"), ("fsq", "lgq")])
def test_plots_have_the_colour_of_their_quantizer(name, other):
    colour, counts = colour_of(name), torch.tensor([5, 0, 9, 1])
    for plot in (training_curves(RECORDS, colour=colour), usage_histogram(counts, colour=colour)):
        assert has(colour, plot)
        assert not has(colour_of(other), plot)


def test_a_single_record_is_enough_for_its_panel():
    single = opened(training_curves([record(5, "validation", psnr=20.0)]))
    assert single.shape[0] < opened(training_curves(RECORDS)).shape[0]


def test_nan_values_and_values_of_another_split_are_left_out():
    more = [record(40, "train", loss=None, tau=None, psnr=50.0), record(40, "validation", psnr=None)]
    assert training_curves([*RECORDS, *more]) == training_curves(RECORDS)


def test_the_histogram_does_not_depend_on_the_order_of_the_codes():
    counts = torch.tensor([5, 0, 9, 1, 0, 30])
    assert usage_histogram(counts) == usage_histogram(counts.flip(0))
    assert usage_histogram(counts) == usage_histogram(2 * counts)
    assert usage_histogram(counts) != usage_histogram(counts + 1)


def test_half_of_the_plot_is_shaded_where_half_of_the_codes_are_unused():
    def shaded(*counts: int) -> float:
        plot = opened(usage_histogram(torch.tensor(counts)))
        return count(SHADE, plot) / plot[..., 0].size

    assert 0.25 < shaded(4, 2, 0, 0) < 0.5
    assert shaded(4, 2, 1, 1) < 0.01


def test_a_run_without_records_and_a_histogram_of_no_tokens_raise_an_error():
    with pytest.raises(ValueError, match=r"none of 0 records .* train for some steps"):
        training_curves([])
    with pytest.raises(ValueError, match="`tokens` must be at least 1, got 0"):
        usage_histogram(torch.zeros(4, dtype=torch.int64))
