"""What a page tells of an experiment: the best row, the worst row and LGQ's place, whatever was run."""

import runpy
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import pytest
from PIL import Image
from result_sets import FakeRow, comparison_rows, result_set_of

from lgq.experiments.tables import EXPERIMENTS
from lgq.quantizers import CONTINUOUS
from lgq.reporting.overview import placements, what_is_here, what_the_results_show
from lgq.reporting.result_set import ResultSet

SCRIPT = runpy.run_path(str(Path(__file__).parent.parent.parent / "scripts" / "write_results.py"))


def on_gaussian(errors: dict[str, float], *, size: int = 16_384, mean: float = 8.0) -> list[FakeRow]:
    alone = {"steps": 2_000, "vectors": 4_096, "learning_rate": 0.01, "dim": 8}
    return [
        FakeRow(
            name.upper(),
            {"quantizer": name, "codebook_size": size, "mean": mean, **alone},
            [{"mse": error, "utilization": 0.5}],
            group=f"K = {size:,}, mean {mean:g}",
            kind="gaussian",
        )
        for name, error in errors.items()
    ]


def lines_of(results: ResultSet) -> list[str]:
    return what_the_results_show(results).splitlines()


def test_the_worst_figure_of_lgq_is_told_with_its_place_and_ratio():
    results = result_set_of({"gaussian": on_gaussian({"lgq": 36.04, "simvq": 0.134, "vq": 2.0})})
    (line,) = (line for line in lines_of(results) if "Error" in line)
    assert line == (
        "| K = 16,384, mean 8: Error of vectors ↓ | SIMVQ 0.1340 | LGQ 36.0400 "
        "| 36.0400 (269 times the best) | 3 of 3 | not separable, one seed | one seed |"
    )


def test_a_quantizer_alone_names_its_steps_vectors_rate_and_test_vectors():
    text = what_the_results_show(result_set_of({"gaussian": on_gaussian({"lgq": 1.0, "vq": 2.0})}))
    assert (
        "K = 16,384, 2,000 steps, 4,096 vectors per step, learning rate 0.01, 8 test vectors per code;"
        in text
    )


def test_intervals_that_separate_lgq_are_told_and_others_are_not_separable():
    psnrs = {
        "lgq": (20.0, 21.0, 22.0),
        "fsq": (21.0, 22.0, 23.01),
        "ibq": (10.0, 11.0, 12.01),
        "vq": (5, 21, 40),
    }
    (line,) = (
        line for line in lines_of(result_set_of({"comparison": comparison_rows(psnrs)})) if "PSNR" in line
    )
    assert "| FSQ 22.003 ± 1.005 | IBQ 11.003 ± 1.005 | 21.000 ± 1.000 | 3 of 4 |" in line
    assert "| ahead of IBQ; behind FSQ; not separable from VQ | 3 seeds |" in line


def test_seeds_may_differ_between_rows_and_one_row_has_nothing_to_compare():
    some = result_set_of({"comparison": comparison_rows({"lgq": (20.0, 21.0), "fsq": (19.0,)})})
    assert any(line.endswith("| 1 to 2 seeds |") for line in lines_of(some))
    one = what_the_results_show(result_set_of({"comparison": comparison_rows({"fsq": (19.0,)})}))
    assert "There are no two rows to compare: FSQ 19.000 (PSNR, one seed)" in one


def test_an_autoencoder_without_a_quantizer_has_no_codes_to_use():
    row = FakeRow(
        "Continuous", {"quantizer": CONTINUOUS, "codebook_size": 1}, [{"psnr": 28.0, "utilization": 1.0}]
    )
    text = what_the_results_show(result_set_of({"autoencoder": [row]}))
    assert "Continuous 28.000 (PSNR, one seed)." in text
    assert "Codes used" not in text
    assert "K = 1" not in text


def test_where_lgq_is_not_finished_or_has_no_value_the_table_says_so():
    without = result_set_of({"comparison": comparison_rows({"vq": (20.0,), "fsq": (19.0,)})})
    assert "| not run | - | - | one seed |" in what_the_results_show(without)
    rows = comparison_rows({"lgq": (20.0,), "vq": (20.0,), "fsq": (19.0,)})
    rows[0].values = [{"psnr": None}]
    assert "| no value | - | - | one seed |" in what_the_results_show(result_set_of({"comparison": rows}))


def test_groups_are_sorted_by_their_numbers_and_marks_of_tables_are_escaped():
    rows = [row for size in (65_536, 4_096) for row in on_gaussian({"lgq": 1.0, "vq": 2.0}, size=size)]
    groups = [placement.group for placement in placements(result_set_of({"gaussian": rows}), "gaussian")]
    assert list(dict.fromkeys(groups)) == ["K = 4,096, mean 8", "K = 65,536, mean 8"]
    logits = [FakeRow(label, {"quantizer": "lgq"}, [{"psnr": 20.0}]) for label in ("-|z - e|²", "<z, e>")]
    text = what_the_results_show(result_set_of({"logits": logits}))
    assert r"| -\|z - e\|² 20.000 | &lt;z, e> 20.000 |" in text


def test_timings_of_a_busy_machine_are_marked():
    rows = [
        FakeRow(
            name.upper(),
            {"quantizer": name, "codebook_size": 64, "tokens": 8},
            [{"ms": ms, "load": load, "cores": 2.0}],
            kind="cost",
        )
        for name, ms, load in (("lgq", 8.0, 9.0), ("fsq", 1.0, 0.5))
    ]
    text = what_the_results_show(result_set_of({"cost": rows}))
    assert "| FSQ 1.00 | LGQ 8.00, timed on a busy machine |" in text
    assert "| not separable | one timing |" in text


def test_all_experiments_are_listed_with_their_rows_and_seeds():
    psnrs = {"lgq": (20.0, 21.0, 22.0), "fsq": (19.0,)}
    results = result_set_of({"comparison": comparison_rows(psnrs), "gone": comparison_rows({"vq": (1.0,)})})
    unfinished = {id: run for id, run in results.runs.items() if not id.startswith("comparison-FSQ")}
    text = what_is_here(replace(results, runs=unfinished))
    assert "| `comparison` | 1 of 2 | 3 | " in text
    assert "| `gone` | 1 of 1 | 1 | " in text
    assert "| `latents` | none |  |  |" in text
    assert text.count("| `") == len(EXPERIMENTS) + 1


@pytest.mark.parametrize("experiments", [{}, {"comparison": comparison_rows({"lgq": (20.0,)})}], ids=len)
def test_pages_read_well_with_few_records_or_none(experiments):
    results = result_set_of(experiments)
    parts = SCRIPT["parts_of"](results, SCRIPT["timed_steps"]())
    assert ("No experiment has finished rows yet." in parts["findings"]) == (not experiments)
    assert ("No row is finished yet." in parts["comparison"]) == (not experiments)
    with Image.open(BytesIO(SCRIPT["headline_png"](results))) as image:
        assert min(image.size) > 200
