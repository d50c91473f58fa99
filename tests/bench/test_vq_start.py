"""The comparison of VQ's starts runs: every row, with the columns of its table."""

import runpy
from pathlib import Path

import pytest

from lgq.errors import LGQWarning

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "vq_start.py"


@pytest.mark.filterwarnings(f"ignore::{LGQWarning.__module__}.{LGQWarning.__name__}")
def test_every_start_of_vq_is_a_row_with_both_gradients(capsys):
    script = runpy.run_path(str(SCRIPT))
    script["main"](script["Settings"](steps=1, seeds=1, batch_size=2, codebook_size=64, dim=8, width=8))
    header, _, *rows = capsys.readouterr().out.splitlines()
    assert header == "| start of the codes | straight-through | rotation |"
    assert [row.split(" | ")[0].removeprefix("| ") for row in rows] == list(script["STARTS"])
    assert all(row.count(" dB, ") == row.count("% |") == 2 for row in rows)
