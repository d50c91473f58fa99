"""Charts and the README's figure show what the records say."""

import runpy
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageColor
from result_sets import FakeRow, comparison_rows, result_set_of

from lgq.plots.palette import colour_of, styles_of
from lgq.reporting.charts import charts_of, round_values

SCRIPT = runpy.run_path(str(Path(__file__).parent.parent.parent / "scripts" / "write_results.py"))
headline_png, headline_table = SCRIPT["headline_png"], SCRIPT["headline_table"]


def row(label: str, *psnr: float) -> FakeRow:
    values = [{"psnr": value, "rfid": 100 - value, "utilization": 0.5} for value in psnr]
    journals = [
        [(step, "validation", {"psnr": value - 4 / step, "rfid": 80.0, "utilization": 0.1 * step})
         for step in (1, 2)] for value in psnr
    ]  # fmt: skip
    config = {"quantizer": label.lower(), "validation_images": 200, "rfid_images": 50}
    return FakeRow(label, config, values, journals=journals, extra={"images": 500})


PSNRS = {"lgq": (23.5, 23.6, 23.4), "fsq": (22.0, 22.1, 22.2)}
ROWS = [row("LGQ", 21.0, 21.1, 20.9), row("FSQ", 23.0, 23.2, 22.8), row("VQ", 19.0)]


def test_the_readme_table_has_means_spreads_and_a_clear_best():
    lines = headline_table(result_set_of({"comparison": ROWS})).splitlines()
    assert lines[0].startswith("| quantizer | PSNR, dB ↑ | SSIM ↑ |")
    assert "| LGQ | 21.000 ± 0.100 | - | - | 79.00 ± 0.10 | 50.00 ± 0.00 | - |" in lines
    # One seed has no interval, so nothing is clearly ahead of it.
    assert "| FSQ | 23.000 ± 0.200 | - | - | 77.00 ± 0.20 | 50.00 ± 0.00 | - |" in lines
    assert "| VQ | 19.000 | - | - | 81.00 | 50.00 | - |" in lines
    assert lines[-1].startswith(
        "Mean ± standard deviation; 1 to 3 training seeds per row; 500 validation images"
    )
    assert "; rFID is biased below 2,048 images; made with an earlier protocol." in lines[-1]
    assert len(lines) == 7
    without_vq = headline_table(result_set_of({"comparison": ROWS[:2]}))
    assert "| FSQ | **23.000 ± 0.200** | - | - | **77.00 ± 0.20** |" in without_vq


@pytest.mark.parametrize("labels", [["LGQ"], ["FSQ"], ["FSQ", "LGQ"], ["SLOWVQ", "LGQ"]])
def test_every_quantizer_has_a_line_of_its_colour_in_the_picture(labels):
    rows = [row(label, 21.0 + i, 21.5 + i, 20.9 + i) for i, label in enumerate(labels)]
    pixels = np.asarray(Image.open(BytesIO(headline_png(result_set_of({"comparison": rows})))).convert("RGB"))
    for name in ("lgq", "fsq", "ibq", "slowvq"):
        drawn = (pixels == ImageColor.getrgb(colour_of(name))).all(2).any()
        assert drawn == (name.upper() in labels), name


def test_a_quantizer_has_the_same_look_in_every_chart_whatever_is_beside_it():
    rows = [row(name, 20.0 + i) for i, name in enumerate(("SLOWVQ", "IBQ", "LGQ", "FSQ"))]
    results = result_set_of({"comparison": rows, "geometry": rows[2:], "mine": [rows[3], rows[0]]})
    styles = styles_of(["slowvq", "ibq", "lgq", "fsq"])
    for experiment in results.plans:
        for chart in charts_of(results, experiment)[""]:
            assert {line.name.lower(): line.style for line in chart.lines}.items() <= styles.items()


def test_variants_of_one_quantizer_have_looks_of_their_own():
    variants = [row("LGQ", 20.0 + i) for i in range(4)]
    for i, variant in enumerate(variants):
        variant.label = f"weight {i}"
    (charts,) = charts_of(result_set_of({"regularizers": variants}), "regularizers").values()
    looks = [[line.style for line in chart.lines] for chart in charts]
    assert looks == looks[:1] * len(looks)
    assert len(set(looks[0])) == 4
    assert looks[0][0].light == colour_of("lgq")


def test_a_chart_says_on_how_many_images_and_seeds_it_stands():
    (charts,) = charts_of(result_set_of({"comparison": ROWS}), "comparison").values()
    assert [chart.basis for chart in charts] == [
        "200 validation images; 1 to 3 training seeds per line",
        "50 validation images; 1 to 3 training seeds per line; rFID is biased below 2,048 images",
        "200 validation images; 1 to 3 training seeds per line",
    ]


def test_charts_have_a_line_per_row_and_a_band_over_seeds():
    results = result_set_of({"comparison": comparison_rows(PSNRS) + comparison_rows({"vq": (1.0,)})})
    (charts,) = charts_of(results, "comparison").values()
    assert [chart.title for chart in charts] == ["PSNR, dB ↑", "l1 ↓", "Codes used, % ↑"]
    assert [line.name for line in charts[0].lines] == ["LGQ", "FSQ", "VQ"]
    assert [bool(line.band) for line in charts[0].lines] == [True, True, False]
    assert charts[0].lines[0].last == "23.500 ± 0.100"


def test_charts_prefer_rfid_where_it_was_taken():
    rows = comparison_rows({"lgq": (1.0,)})
    rows[0].journals = [[(10, "validation", {"psnr": 1.0, "l1": 0.1, "rfid": 3.0, "utilization": 1.0})]]
    (charts,) = charts_of(result_set_of({"comparison": rows}), "comparison").values()
    assert [chart.title for chart in charts] == ["PSNR, dB ↑", "rFID ↓", "Codes used, % ↑"]
    assert len(charts[1].lines[0].means) == 1


@pytest.mark.parametrize(("low", "high"), [(0, 1), (18.7, 23.6), (0, 6000), (-3e-5, 2e-5), (5, 5)])
def test_ticks_are_round_and_lie_within_the_axis(low, high):
    ticks = round_values(low, high, 6)
    assert 1 <= len(ticks) <= 7
    assert all(low - 1e-12 <= tick <= high + 1e-12 for tick in ticks)
    assert all(len(f"{tick:g}") <= 8 for tick in ticks)
