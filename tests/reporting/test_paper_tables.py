"""Tables show means over seeds beside the paper's figures; Student's intervals tell a clear best value."""

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from result_sets import FakeRow, comparison_rows, result_set_of
from scipy import stats

from lgq.experiments.scales import SCALES
from lgq.experiments.tables import EXPERIMENTS
from lgq.reporting.paper_tables import (
    BASES,
    COLUMNS,
    NOT_GIVEN,
    Column,
    build_table,
    own_table,
    paired_table,
    runs_table,
    table_specs,
)
from lgq.reporting.result_set import ResultSet, Sample, compare_samples

COMPARISON = table_specs()["Table 2"]
PSNRS = {"lgq": (23.5, 23.6, 23.4), "fsq": (22.0, 22.1, 22.2), "ibq": (20.0, 21.0, 23.0)}


@pytest.mark.parametrize("table", table_specs().values(), ids=table_specs())
def test_every_table_of_the_paper_is_complete(table):
    assert table.experiment in EXPERIMENTS
    assert table.title
    assert table.about
    for row in table.rows:
        assert row.settings
        assert len(row.values) == len(table.columns)
        assert set(row.spread) <= {column.metric for column in table.columns}


def as_planned(experiment: str) -> ResultSet:
    """The runs that an experiment asks for at the paper's scale."""
    rows = [
        FakeRow(row.label, row.task.settings(), [{"psnr": 1.0}], group=row.group, kind=row.task.kind)
        for row in EXPERIMENTS[experiment].rows(SCALES["imagenet256"]())
    ]
    return result_set_of({experiment: rows})


@pytest.mark.parametrize("label", ["Table 2", "Table 3", "Table 6", "Table 7"])
def test_every_row_of_the_paper_is_a_run_that_its_experiment_asks_for(label):
    table = table_specs()[label]
    shown = build_table(as_planned(table.experiment), table)
    names = {row.name for row in table.rows}
    assert all(row.ours for row in shown.rows if row.name in names)
    runs = [run.id for row in shown.rows for run, _ in (row.ours[0].sources if row.ours else ())]
    assert len(runs) == len(set(runs))
    only_ours = {row.name for row in shown.rows} - names
    assert only_ours == ({"VQ", "BSQ", "DiVeQ", "Wasserstein VQ"} if table is COMPARISON else set())


def test_a_paper_figure_is_written_as_it_is_printed():
    row = next(row for row in build_table(result_set_of({}), COMPARISON).rows if row.name == "LGQ")
    assert row.paper == ("21.791", "0.6289", "0.2438", "0.2225", "12.32", NOT_GIVEN, "100.00", "16,011")
    assert row.ours == ()


def test_timings_have_no_seeds():
    rows = [FakeRow("LGQ", {"quantizer": "lgq", "codebook_size": 4096}, [{"ms": 1.0}], kind="cost")]
    table = build_table(result_set_of({"cost": rows}), table_specs()["Table 8"])
    assert not table.has_seeds
    shown = next(row for row in table.rows if row.ours)
    assert {run.seed for cell in shown.ours for run, _ in cell.sources} == {None}
    assert build_table(result_set_of({"comparison": comparison_rows(PSNRS)}), COMPARISON).has_seeds


def test_a_cell_is_the_mean_and_sample_deviation_over_seeds():
    table = build_table(result_set_of({"comparison": comparison_rows(PSNRS)}), COMPARISON)
    for row in table.rows:
        if row.ours:
            values = np.array(PSNRS[row.name.lower()])
            assert row.seeds == 3
            assert row.ours[0].mean == f"{values.mean():.3f}"
            assert row.ours[0].spread == f"± {values.std(ddof=1):.3f}"
            assert [value for _, value in row.ours[0].sources] == [f"{value:.3f}" for value in values]
            assert row.ours[2].mean == NOT_GIVEN


@pytest.mark.parametrize(
    ("psnrs", "bold"),
    [
        ({"lgq": (23.5, 23.6, 23.4), "fsq": (22.0, 22.1, 22.2)}, "LGQ"),
        ({"lgq": (21.5, 21.6, 21.4), "fsq": (22.0, 22.1, 22.2)}, "FSQ"),
        ({"lgq": (23.5, 23.6, 23.4), "fsq": (22.0, 22.1, 22.2), "ibq": (20.0, 21.0, 23.0)}, None),
        ({"lgq": (23.5,), "fsq": (22.0,)}, None),
        ({"lgq": (23.5, 23.6, 23.4), "fsq": (22.0,)}, None),
        ({"lgq": (23.5, 23.6, 23.4)}, None),
        ({"lgq": (1.0, 1.0), "fsq": (1.0, 1.0)}, None),
    ],
)
def test_the_best_is_bold_only_where_intervals_lie_apart(psnrs, bold):
    table = build_table(result_set_of({"comparison": comparison_rows(psnrs)}), COMPARISON)
    assert [row.name for row in table.rows if row.ours and row.ours[0].best] == ([bold] if bold else [])


def test_rows_compete_within_their_group():
    rows = [
        FakeRow("A", {"codebook_size": 1}, [{"psnr": 1.0}, {"psnr": 1.1}], group="small"),
        FakeRow("B", {"codebook_size": 1}, [{"psnr": 3.0}, {"psnr": 3.11}], group="small"),
        FakeRow("A", {"codebook_size": 2}, [{"psnr": 9.0}, {"psnr": 9.11}], group="large"),
        FakeRow("B", {"codebook_size": 2}, [{"psnr": 7.0}, {"psnr": 7.1}], group="large"),
    ]
    results = result_set_of({"mine": rows})
    table = own_table(results, results.plans["mine"])
    assert [row.name for row in table.rows if row.ours[0].best] == ["B, small", "A, large"]


LUCK = (-1.0, 0.0, 1.0)
"""Effect of each seed, the same for all rows."""


def shared_luck(advantage: tuple[float, ...]) -> list[FakeRow]:
    """Rows in which LGQ is ahead by this much with each seed, while the seeds vary far more."""
    ours = tuple(20 + luck + lead for luck, lead in zip(LUCK, advantage, strict=True))
    return comparison_rows({"fsq": tuple(20 + luck for luck in LUCK), "lgq": ours})


def test_a_difference_of_the_same_seeds_is_seen_where_intervals_touch():
    results = result_set_of({"comparison": shared_luck((0.1, 0.2, 0.3))})
    assert not any(row.ours[0].best for row in build_table(results, COMPARISON).rows if row.ours)
    (row,) = paired_table(results).rows
    low, high = Sample((0.1, 0.2, 0.3)).interval
    assert (row.name, row.seeds, row.ours[0].best) == ("against FSQ", 3, False)
    assert (row.ours[0].mean, row.ours[0].spread) == ("+0.200", f"{low:.3f} to +{high:.3f}")
    clear = paired_table(result_set_of({"comparison": shared_luck((0.19, 0.2, 0.21))}))
    assert clear.rows[0].ours[0].best
    assert not clear.rows[0].ours[0].worse
    assert [run.seed for run, _ in clear.rows[0].ours[0].sources] == [0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [((0.75, 0.5), (0.5, 0.25)), ((1.0, 1.0), (0.5, 0.5)), ((0.3 + 0.1, 0.2), (0.3, 0.1))],
    ids=["equal differences", "two constants", "equal but for rounding"],
)
def test_differences_that_are_the_same_for_all_seeds_have_no_interval_and_separate_nothing(ours, theirs):
    rows = comparison_rows({"fsq": theirs, "lgq": ours})
    for row in rows:
        row.values = [{"utilization": value["psnr"]} for value in row.values]
    results = result_set_of({"comparison": rows})
    table = paired_table(results)
    cell = table.rows[0].ours[table.spec.columns.index(COLUMNS["utilization"])]
    assert (cell.mean[0], cell.spread, cell.best, cell.worse) == ("+", "interval unknown", False, False)
    first, second = (results.sample("comparison", "utilization", {"quantizer": q}) for q in ("lgq", "fsq"))
    assert compare_samples(first, second, "higher") == compare_samples(second, first, "higher") == 0
    assert compare_samples(replace(first, seeds=()), replace(second, seeds=()), "higher") == 0
    assert first.minus(second).seeds_to_decide is None


@pytest.mark.parametrize(("ours", "theirs", "sign"), [(1.0, 2.0, 1), (2.0, 1.0, -1), (1.0, 1.05, 0)])
def test_memory_without_seeds_keeps_its_ratio(ours, theirs, sign):
    first, second = (Sample((value, value), timing=True, ratio=1.1) for value in (ours, theirs))
    assert compare_samples(first, second, "lower") == sign


@pytest.mark.parametrize(
    "psnrs",
    [{"lgq": (20.0,), "fsq": (21.0,)}, {"fsq": (20.0, 21.0), "ibq": (20.0, 21.0)}, {"lgq": (20.0, 21.0)}],
)
def test_differences_need_two_seeds_and_two_rows_one_of_them_lgq(psnrs):
    assert paired_table(result_set_of({"comparison": comparison_rows(psnrs)})) is None


def test_differences_use_the_seeds_that_both_rows_have():
    rows = shared_luck((0.1, 0.2, 0.3))
    rows[0].values[2]["psnr"] = None
    cell = paired_table(result_set_of({"comparison": rows})).rows[0].ours[0]
    assert cell.mean == "+0.150"


@pytest.mark.parametrize(("metric", "column", "mean"), [("psnr", 0, "-2.100"), ("rfid", 3, "-2.10")])
def test_a_lower_psnr_is_worse_and_a_lower_rfid_better(metric, column, mean):
    rows = shared_luck((-2.0, -2.1, -2.2))
    for row in rows:
        row.values = [{metric: value["psnr"]} for value in row.values]
    cell = paired_table(result_set_of({"comparison": rows})).rows[0].ours[column]
    assert (cell.best, cell.worse, cell.mean) == (metric == "rfid", metric == "psnr", mean)


def test_differences_prefer_the_experiment_with_more_seeds():
    rows = {"comparison": shared_luck((1.0, 1.0, 1.0)), "seeds": shared_luck((2.0, 2.0, 2.0))}
    assert paired_table(result_set_of(rows)).rows[0].ours[0].mean == "+2.000"


def test_shares_are_in_per_cent_and_arrows_show_the_better_direction():
    assert COLUMNS["utilization"].write(0.9876) == "98.76"
    assert (COLUMNS["utilization"].heading, COLUMNS["rfid"].heading) == ("Codes used, % ↑", "rFID ↓")
    assert Column("x", "X").heading == "X"


@pytest.mark.parametrize("column", COLUMNS.values(), ids=COLUMNS)
def test_every_column_says_in_words_what_it_is_and_what_it_is_measured_on(column):
    assert column.about.endswith(".")
    assert column.on in BASES
    assert not re.search(r"\b(Util|Corr|Co-occ|Rec|MI|IS)\b|H /", column.title)
    assert column.tooltip.endswith(f"{column.better.capitalize()} is better." if column.better else ".")


USE = "Codes used, Perplexity of codes: 5,000 validation images"
"""What the use of codes stands on in results that are made up."""


def measured(metric: str, **extra: Any) -> FakeRow:
    config = {"quantizer": "lgq", "validation_images": 40, "validation_data": {"images": 30}, "tokens": 64}
    return FakeRow("LGQ", config, [{metric: 1.0}] * 2, extra={"images": 1000, **extra})


@pytest.mark.parametrize(
    ("source", "metric", "extra", "basis"),
    [
        ("Table 2", "psnr", {}, f"2 training seeds per row; 1,000 validation images; {USE}"),
        ("Table 4", "geometry.dead_codes", {}, "2 training seeds per row; 5,000 validation images"),
        ("Section 7.2", "psnr", {}, "2 training seeds per row; 30 validation images"),
        ("Appendix C", "seconds_per_step", {}, "2 training seeds per row; 1 training steps"),
        ("Table 8", "ms", {"kind": "cost"}, "64 vectors per step"),
    ],
)
def test_a_table_says_on_how_many_seeds_and_images_it_stands(source, metric, extra, basis):
    spec = table_specs()[source]
    row = measured(metric, **extra)
    row.kind = extra.get("kind", row.kind)
    assert build_table(result_set_of({spec.experiment: [row]}), spec).basis == basis


def test_columns_on_other_images_are_named():
    tokenizer = measured("rfid")
    generator = FakeRow(
        "LGQ", {}, [{"gfid": 1.0}], kind="generator", extra={"images": 200},
        tokenizers=tokenizer.ids("comparison")[:1],
    )  # fmt: skip
    results = result_set_of({"comparison": [tokenizer], "generation": [generator]})
    assert build_table(results, table_specs()["Table 5"]).basis == (
        "1 training seed per row; 200 generated images per sampling seed; "
        "rFID of the tokenizer: 1,000 validation images; "
        "rFID of the tokenizer is biased below 2,048 images; gFID is biased below 2,048 images"
    )


@pytest.mark.parametrize("spec", table_specs().values(), ids=table_specs())
def test_a_table_of_the_paper_has_its_number_and_says_what_its_figures_stand_on(spec):
    assert re.fullmatch(r"(Table \d+|Section \d\.\d|Appendix [A-K](, over K)?)", spec.source)
    assert re.search(r"one training run per row|vectors per step", spec.basis)
    assert len(spec.paper_headings) == len(spec.columns)


@pytest.mark.parametrize("values", [(1.0, 2.0), (3.0, 3.5, 3.1), tuple(range(12)), tuple(range(40))])
def test_intervals_are_students(values):
    expected = stats.t.interval(0.95, len(values) - 1, np.mean(values), stats.sem(values))
    assert Sample(values).interval == pytest.approx(expected, rel=1e-12)


def changed(results: ResultSet, seed: int, **settings: Any) -> ResultSet:
    """The results with other settings in the LGQ run of one seed."""
    run = results.runs[f"comparison-LGQ-s{seed}"]
    record = run.record | {"config": run.record["config"] | settings}
    return replace(results, runs=results.runs | {run.id: replace(run, record=record)})


def test_runs_of_a_row_that_differ_in_more_than_the_seed_are_not_averaged():
    # As where the default of an option changed before seed 0 was run again.
    results = changed(
        result_set_of({"comparison": comparison_rows(PSNRS)}), 0, quantizer_options={"beta": 0.5, "seed": 0}
    )
    lgq = next(row for row in build_table(results, COMPARISON).rows if row.name == "LGQ")
    assert lgq.seeds == 1
    assert (lgq.ours[0].mean, lgq.ours[0].spread) == ("23.500", "")
    assert results.sample("comparison", "psnr", {"quantizer": "lgq"}) == Sample(
        (23.5,), ("comparison-LGQ-s0",), seeds=(0,)
    )
    assert results.mixed == {f"comparison-LGQ-s{seed}": ["quantizer_options.beta"] for seed in (1, 2)}


def test_seeds_and_places_of_the_images_do_not_split_a_row():
    results = result_set_of({"comparison": comparison_rows(PSNRS)})
    for seed in range(3):
        options, data = {"seed": seed}, {"source": f"folder of machine {seed}", "images": 9}
        results = changed(results, seed, quantizer_options=options, data=data, workers=seed)
    failed = results.runs["comparison-LGQ-s1"]
    for name in ("data", "workers"):  # the record of a run that diverged does not have them
        del failed.record["config"][name]
    assert not results.mixed
    assert len(results.select("comparison", {"quantizer": "lgq"})) == 3


def test_a_caption_says_which_settings_all_rows_share():
    shared = {"image_size": 64, "loop": {"steps": 1000}, "loss": {"l1": 1.0, "lpips": 0.5, "gan": 0.0}}
    rows = [
        FakeRow(name, {"quantizer": name.lower(), "codebook_size": size, **shared}, [{"psnr": 20.0}])
        for name, size in (("LGQ", 1024), ("FSQ", 1024))
    ]
    caption = build_table(result_set_of({"comparison": rows}), COMPARISON).basis
    assert caption.startswith(
        "K = 1,024, 64 \N{MULTIPLICATION SIGN} 64, 1,000 steps, l1 + LPIPS; 1 training seed"
    )
    rows[1].config = {**rows[1].config, "codebook_size": 4096}
    caption = build_table(result_set_of({"comparison": rows}), COMPARISON).basis
    assert caption.startswith("64 \N{MULTIPLICATION SIGN} 64, 1,000 steps")


def test_timings_name_their_machine():
    extra = {"environment": {"devices": ["x86_64, 2 threads"]}}
    row = FakeRow("LGQ", {"quantizer": "lgq", "tokens": 64}, [{"ms": 1.0}], kind="cost", extra=extra)
    assert (
        "timed on x86_64, 2 threads"
        in build_table(result_set_of({"cost": [row]}), table_specs()["Table 8"]).basis
    )


@pytest.mark.parametrize(("validation", "images"), [("photos", "training"), ("others", "validation")])
def test_images_of_an_evaluation_on_the_training_images_are_called_so(validation, images):
    data = {"data": {"source": "photos", "images": 9}, "validation_data": {"source": validation, "images": 9}}
    row = FakeRow("LGQ", {"quantizer": "lgq", **data}, [{"psnr": 20.0}])
    assert f"1,000 {images} images" in build_table(result_set_of({"comparison": [row]}), COMPARISON).basis


def test_rfid_is_called_biased_on_few_images_only():
    for images, is_told in ((1000, True), (2048, False)):
        row = FakeRow("LGQ", {"quantizer": "lgq"}, [{"rfid": 20.0}], extra={"images": images})
        basis = build_table(result_set_of({"comparison": [row]}), COMPARISON).basis
        assert ("rFID is biased below 2,048 images" in basis) == is_told


def test_the_comparison_has_kid_in_thousandths():
    row = FakeRow("LGQ", {"quantizer": "lgq"}, [{"kid": 0.0123}])
    table = build_table(result_set_of({"comparison": [row]}), COMPARISON)
    place = [column.heading for column in COMPARISON.columns].index("KID \N{MULTIPLICATION SIGN} 1000 ↓")
    assert next(line for line in table.rows if line.ours).ours[place].mean == "12.3"


def test_a_codebook_that_was_never_full_says_never():
    config = {"quantizer": "lgq", "codebook_size": 4096}
    row = FakeRow("LGQ", config, [{}], journals=[[(10, "validation", {"utilization": 0.5})]])
    spec = table_specs()["Section 7.2"]
    shown = build_table(result_set_of({"codebook-size": [row]}), spec)
    assert next(line for line in shown.rows if line.ours).ours[0].mean == "never"


def test_a_table_says_how_much_distances_vary_with_the_choice_of_the_images():
    rows = comparison_rows({"lgq": (22.0, 23.0, 24.0)})
    rows[0].values = [{"kid": 0.01, "psnr": 20.0}] * 3
    table = build_table(result_set_of({"comparison": rows}), table_specs()["Table 2"])
    assert "over resamples" not in table.basis
    rows[0].extra = {"bootstrap_std": {"kid": 0.002}}
    table = build_table(result_set_of({"comparison": rows}), table_specs()["Table 2"])
    assert re.search(r"KID[^;]* ± [\d.]+ over resamples of the images", table.basis)
    assert "PSNR ±" not in table.basis


def test_a_record_without_options_is_told_from_one_with_few():
    old, new = (
        FakeRow(name, {"quantizer": "fsq", "quantizer_options": options}, [{"mse": 1.0}], kind="gaussian")
        for name, options in {"old": {}, "new": {"bound": "tan"}}.items()
    )
    lines = runs_table(result_set_of({"gaussian": [old, new]})).lines
    assert {line.run.id: line.settings for line in lines} == {
        "gaussian-old-s0": "quantizer_options: those of its version of lgq, which recorded none",
        "gaussian-new-s0": "bound = tan",
    }
