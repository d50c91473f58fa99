"""Charts and the README's figure show what the records say."""

import runpy
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageColor
from result_sets import FakeRow, comparison_rows, result_set_of

from lgq.plots.canvas import QUALITATIVE
from lgq.reporting.charts import charts_of, round_values

SCRIPT = runpy.run_path(str(Path(__file__).parent.parent.parent / "scripts" / "write_results.py"))
headline_png, headline_table = SCRIPT["headline_png"], SCRIPT["headline_table"]


def row(label: str, *psnr: float) -> FakeRow:
    values = [{"psnr": value, "rfid": 100 - value, "utilization": 0.5} for value in psnr]
    journals = [
        [(step, "validation", {"psnr": value - 4 / step, "rfid": 80.0, "utilization": 0.1 * step})
         for step in (1, 2)] for value in psnr
    ]  # fmt: skip
    return FakeRow(label, {"quantizer": label.lower()}, values, journals=journals)


PSNRS = {"lgq": (23.5, 23.6, 23.4), "fsq": (22.0, 22.1, 22.2)}
ROWS = [row("LGQ", 21.0, 21.1, 20.9), row("FSQ", 23.0, 23.1, 22.9), row("VQ", 19.0)]


def test_the_readme_table_has_means_spreads_and_a_clear_best():
    lines = headline_table(result_set_of({"comparison": ROWS})).splitlines()
    assert lines[0].startswith("| quantizer | PSNR ↑ | SSIM ↑ |")
    assert "| LGQ | 21.000 ± 0.100 | - | - | 79.00 ± 0.10 | 50.00 ± 0.00 | - |" in lines
    # One seed has no interval, so nothing is clearly ahead of it.
    assert "| FSQ | 23.000 ± 0.100 | - | - | 77.00 ± 0.10 | 50.00 ± 0.00 | - |" in lines
    assert "| VQ | 19.000 | - | - | 81.00 | 50.00 | - |" in lines
    assert len(lines) == 5
    without_vq = headline_table(result_set_of({"comparison": ROWS[:2]}))
    assert "| FSQ | **23.000 ± 0.100** | - | - | **77.00 ± 0.10** |" in without_vq


@pytest.mark.parametrize("lines", [1, 2])
def test_every_quantizer_has_a_line_in_the_picture(lines):
    rows = [row("LGQ", 21.0, 21.5, 20.9), row("FSQ", 23.0)][:lines]
    pixels = np.asarray(Image.open(BytesIO(headline_png(result_set_of({"comparison": rows})))).convert("RGB"))
    seen = [bool((pixels == ImageColor.getrgb(colour)).all(2).any()) for colour in QUALITATIVE[:3]]
    assert seen == [True, lines == 2, False]


def test_charts_have_a_line_per_row_and_a_band_over_seeds():
    results = result_set_of({"comparison": comparison_rows(PSNRS) + comparison_rows({"vq": (1.0,)})})
    (charts,) = charts_of(results, "comparison").values()
    assert [chart.title for chart in charts] == ["PSNR ↑", "l1 ↓", "Util. % ↑"]
    assert [line.name for line in charts[0].lines] == ["LGQ", "FSQ", "VQ"]
    assert [bool(line.band) for line in charts[0].lines] == [True, True, False]
    assert charts[0].lines[0].last == "23.500 ± 0.100"


def test_charts_prefer_rfid_where_it_was_taken():
    rows = comparison_rows({"lgq": (1.0,)})
    rows[0].journals = [[(10, "validation", {"psnr": 1.0, "l1": 0.1, "rfid": 3.0, "utilization": 1.0})]]
    (charts,) = charts_of(result_set_of({"comparison": rows}), "comparison").values()
    assert [chart.title for chart in charts] == ["PSNR ↑", "rFID ↓", "Util. % ↑"]
    assert len(charts[1].lines[0].means) == 1


@pytest.mark.parametrize(("low", "high"), [(0, 1), (18.7, 23.6), (0, 6000), (-3e-5, 2e-5), (5, 5)])
def test_ticks_are_round_and_lie_within_the_axis(low, high):
    ticks = round_values(low, high, 6)
    assert 1 <= len(ticks) <= 7
    assert all(low - 1e-12 <= tick <= high + 1e-12 for tick in ticks)
    assert all(len(f"{tick:g}") <= 8 for tick in ticks)
