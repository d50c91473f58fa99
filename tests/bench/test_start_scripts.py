"""The scripts about the start of training run: every row of their tables."""

import runpy
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = Path(__file__).parents[2] / "benchmarks"
pytestmark = pytest.mark.filterwarnings("ignore::lgq.errors.LGQWarning")


@pytest.fixture
def table(capsys, monkeypatch):
    """A function that runs a script with small numbers; returns its names, header and rows."""
    monkeypatch.syspath_prepend(str(SCRIPTS))

    def run(name: str) -> tuple[dict[str, Any], str, list[str]]:
        script = runpy.run_path(str(SCRIPTS / name))
        script["main"](script["Settings"](steps=1, seeds=1, batch_size=2, codebook_size=64, dim=8, width=8))
        header, _, *rows = capsys.readouterr().out.splitlines()
        return script, header, rows

    return run


def test_every_start_of_vq_is_a_row_with_both_gradients(table):
    script, header, rows = table("vq_start.py")
    assert header == "| start of the codes | straight-through | rotation |"
    assert [row.split(" | ")[0].removeprefix("| ") for row in rows] == list(script["STARTS"])
    assert all(row.count(" dB, ") == row.count("% |") == 2 for row in rows)


def test_latents_have_a_table_of_factors_and_one_without_normalisation(table):
    script, header, lines = table("latent_scale.py")
    rows, (empty, raw_header, _, *raw_rows) = lines[: len(script["ROWS"])], lines[len(script["ROWS"]) :]
    assert (header, empty) == ("| factor | 0.03 | 0.1 | 0.3 | 1 | 3 | 10 | 30 |", "")
    assert raw_header == "| quantizer | seed 0 |"
    for names, cells, own in ((script["ROWS"], 7, rows), (script["RAW_ROWS"], 1, raw_rows)):
        assert [row.split(" | ")[0].removeprefix("| ") for row in own] == list(names)
        assert all(row.count("%, ") == row.count(" dB |") == cells for row in own)
