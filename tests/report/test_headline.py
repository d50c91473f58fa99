"""What a README shows of the comparison is what its records say."""

from io import BytesIO

import numpy as np
import pytest
from PIL import Image, ImageColor
from result_sets import FakeRow, ledger_of

from lgq.plots.canvas import QUALITATIVE
from lgq.report.headline import headline_png, headline_table


def row(label: str, *psnr: float) -> FakeRow:
    values = [{"psnr": value, "rfid": 100 - value, "utilization": 0.5} for value in psnr]
    journals = [
        [(step, "validation", {"psnr": value - 4 / step, "rfid": 80.0, "utilization": 0.1 * step})
         for step in (1, 2)] for value in psnr
    ]  # fmt: skip
    return FakeRow(label, {"quantizer": label.lower()}, values, journals=journals)


LEDGER = ledger_of(
    {"comparison": [row("LGQ", 21.0, 21.1, 20.9), row("FSQ", 23.0, 23.1, 22.9), row("VQ", 19.0)]}
)


def test_the_table_has_means_spreads_and_a_clear_best_over_all_quantizers():
    lines = headline_table(LEDGER).splitlines()
    assert lines[0].startswith("| quantizer | PSNR ↑ | SSIM ↑ |")
    assert "| LGQ | 21.000 ± 0.100 | - | - | 79.00 ± 0.10 | 50.00 ± 0.00 | - |" in lines
    # One seed has no interval, so nothing is clearly ahead of it.
    assert "| FSQ | 23.000 ± 0.100 | - | - | 77.00 ± 0.10 | 50.00 ± 0.00 | - |" in lines
    assert "| VQ | 19.000 | - | - | 81.00 | 50.00 | - |" in lines
    assert len(lines) == 5


def test_a_clear_best_is_bold():
    ledger = ledger_of({"comparison": [row("LGQ", 21.0, 21.1, 20.9), row("FSQ", 23.0, 23.1, 22.9)]})
    assert "| FSQ | **23.000 ± 0.100** | - | - | **77.00 ± 0.10** |" in headline_table(ledger)


@pytest.mark.parametrize("lines", [1, 2])
def test_every_quantizer_has_a_line_in_the_picture(lines):
    rows = [row("LGQ", 21.0, 21.5, 20.9), row("FSQ", 23.0)][:lines]
    pixels = np.asarray(Image.open(BytesIO(headline_png(ledger_of({"comparison": rows})))).convert("RGB"))
    seen = [bool((pixels == ImageColor.getrgb(colour)).all(2).any()) for colour in QUALITATIVE[:3]]
    assert seen == [True, lines == 2, False]
