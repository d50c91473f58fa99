"""The page of advice: each line stands on records, and is left out where there are none."""

import runpy
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import pytest
from matplotlib.axes import Axes
from PIL import Image
from result_sets import FakeRow, result_set_of

from lgq.reporting.result_set import read_result_set
from lgq.reporting.which_quantizer import PANELS, advice, page, picture, samples_over

ROOT = Path(__file__).parent.parent.parent
SIZES = (1_024, 16_384)
STARTED = {"start": {"id": "autoencoder"}}


def over_sizes(metrics: dict[str, dict[int, dict[str, list[float]]]], **more) -> list[FakeRow]:
    """Rows of a sweep: values of each seed by quantizer, size and metric."""
    return [
        FakeRow(
            name.upper(),
            {"quantizer": name, "codebook_size": size},
            [dict(zip(values, seed, strict=True)) for seed in zip(*values.values(), strict=True)],
            group=f"K = {size}",
            **({"extra": STARTED} | more),
        )
        for name, by_size in metrics.items()
        for size, values in by_size.items()
    ]


def world() -> dict[str, list[FakeRow]]:
    sweep = {
        "lgq": {
            1_024: {"lpips": [0.30, 0.31], "utilization": [0.99, 0.99], "psnr": [21.0, 21.0]},
            16_384: {"lpips": [0.1900, 0.1901], "utilization": [0.95, 0.95], "psnr": [22.0, 22.0]},
        },
        "fsq": {
            1_024: {"lpips": [0.305, 0.304], "utilization": [0.99, 0.99], "psnr": [21.0, 21.0]},
            16_384: {"lpips": [0.2100, 0.2102], "utilization": [0.50, 0.50], "psnr": [22.0, 22.0]},
        },
    }
    cold = {name: {16_384: {"psnr": [20.0 + more] * 2}} for name, more in (("lgq", 0.0), ("fsq", 1.5))}
    cost = {name: {16_384: {"ms": [ms]}} for name, ms in (("lgq", 80.0), ("fsq", 2.0))}
    gaussian = [
        FakeRow(
            name.upper(),
            {"quantizer": name, "codebook_size": 64, "mean": mean},
            [{"utilization": used, "mse": 36.0 if name == "lgq" else 0.4}],
            group=f"mean {mean:g}",
            kind="gaussian",
        )
        for name, mean, used in (("lgq", 0.0, 1.0), ("fsq", 0.0, 1.0), ("lgq", 8.0, 0.6), ("fsq", 8.0, 0.01))
    ]
    regularizers = [
        FakeRow(
            f"{weight}",
            {"quantizer": "lgq", "quantizer_options": {"peak_weight": weight, "diversity_weight": weight}},
            [{"utilization": used}],
            extra=STARTED,
        )
        for weight, used in ((0.005, 0.5), (0.05, 0.9))
    ]
    comparison = over_sizes({"lgq": {16_384: {"lpips": [0.2]}}})
    comparison.append(
        replace(comparison[0], label="LGQ, best of the search", values=[{"lpips": 0.18}], group="best")
    )
    latents = over_sizes(
        {name: {64: {"mse": [e]}} for name, e in (("lgq", 0.5), ("fsq", 0.4))}, kind="latents"
    )
    return {
        "codebook-size": over_sizes(sweep),
        "cold": over_sizes(cold),
        "cost": over_sizes(cost, kind="cost"),
        "gaussian": gaussian,
        "regularizers": regularizers,
        "comparison": comparison,
        "latents": latents,
    }


@pytest.mark.parametrize(
    ("experiment", "sentences"),
    [
        (
            "codebook-size",
            (
                "**16,384 codes**: LGQ has the best LPIPS (0.190), ahead of all others; by PSNR LGQ is 1 of",
                "**1,024 codes**: FSQ has the best LPIPS (0.304); LGQ cannot be told from it; LGQ is 2 of 2 "
                "(0.305); by PSNR LGQ is 1 of 2.",
                "(16,384 codes): LGQ uses 90% of the codes or more; FSQ uses the fewest (50%); LGQ is 1 of 2 "
                "(95%).",
            ),
        ),
        ("cold", ("FSQ loses the least (0.5 dB) and LGQ the most (2.0 dB).",)),
        (
            "cost",
            (
                "FSQ takes the least time per step (2.0 ms), LGQ the most (40 times that); LGQ takes 80 ms, "
                "40 times the least.",
            ),
        ),
        (
            "gaussian",
            (
                "FSQ less than 5%; LGQ: 100.0% at mean 0 (1 of 2), 60.0% at mean 8 (1 of 2).",
                "FSQ has the lowest (0.40), LGQ the highest (36.00); LGQ: 36.00 at mean 0 (2 of 2), 36.00 at "
                "mean 8 (2 of 2).",
            ),
        ),
        ("regularizers", ("50% of the codes with both at 0.005, 90% with both at 0.05.",)),
        ("comparison", ("helps LGQ the most: its LPIPS falls by 0.020.",)),
        ("latents", ("FSQ represents the latents best with 64 codes, LGQ worst.",)),
    ],
)
def test_each_line_stands_on_an_experiment_and_goes_with_it(experiment, sentences):
    records = world()
    for sentence in sentences:
        assert sentence in page(result_set_of(records))
    less = page(result_set_of({name: rows for name, rows in records.items() if name != experiment}))
    assert not any(sentence in less for sentence in sentences)


def test_all_records_give_eleven_lines_and_none_give_none():
    results = result_set_of(world())
    small = {name: replace(plan, scale="pocket") for name, plan in results.plans.items()}
    assert len(advice(replace(results, plans=small))) == 11
    assert advice(result_set_of({})) == [] or "does not say" in advice(result_set_of({}))[0]


def test_records_of_an_earlier_protocol_give_no_advice():
    records = world()
    for row in records["codebook-size"]:
        row.extra = {}
    lines = samples_over(result_set_of(records), "codebook-size", "lpips", "codebook_size")
    assert not any(lines.values())


def test_a_place_of_lgq_between_the_ends_is_told_with_its_figure():
    times = {"fsq": 2.0, "vq": 10.0, "lgq": 80.0, "ibq": 200.0}
    rows = over_sizes({name: {16_384: {"ms": [ms]}} for name, ms in times.items()}, kind="cost")
    text = page(result_set_of({"cost": rows}))
    assert "IBQ the most (100 times that); LGQ takes 80 ms, 40 times the least and 8.0 times VQ's." in text
    for row in rows[-1:]:
        row.values = [row.values[0] | {"load": 9.0, "cores": 2.0}]
    assert "LGQ the most (40 times that)" in page(result_set_of({"cost": rows}))
    errors = {"fsq": 0.4, "lgq": 0.5, "ibq": 0.6}
    latents = over_sizes({name: {64: {"mse": [e]}} for name, e in errors.items()}, kind="latents")
    assert "IBQ worst; LGQ is 2 of 3 (0.500)." in page(result_set_of({"latents": latents}))


def test_the_comparison_alone_gives_advice_at_its_size():
    values = {"lpips": [0.2], "utilization": [0.3]}
    rows = over_sizes({"lgq": {16_384: values}, "fsq": {16_384: values | {"lpips": [0.1]}}})
    text = page(result_set_of({"comparison": rows}))
    assert (
        "**16,384 codes**: FSQ has the best LPIPS (0.100); LGQ cannot be told from it; LGQ is 2 of 2" in text
    )
    assert "(16,384 codes): no quantizer uses 90% of the codes" in text


def test_the_panel_on_shifted_data_names_its_number_of_codes(monkeypatch):
    titles = []
    monkeypatch.setattr(Axes, "set_title", lambda axes, title, **_: titles.append(title))
    picture(result_set_of(world()))
    assert titles[-1] == "Codes used on shifted data, %, 64 codes"
    assert titles[0] == PANELS[0].title


def test_a_panel_with_one_codebook_size_has_a_column_for_each_quantizer(monkeypatch):
    columns = []
    plot = Axes.plot
    monkeypatch.setattr(
        Axes, "plot", lambda axes, x, *y, **look: columns.append(x) or plot(axes, x, *y, **look)
    )
    values = {"lpips": [0.2], "utilization": [0.3]}
    rows = over_sizes({"lgq": {16_384: values}, "fsq": {16_384: values}})
    picture(result_set_of({"comparison": rows}))
    assert columns == 2 * [["LGQ"], ["FSQ"]]


@pytest.mark.parametrize("records", [world(), {}], ids=["all", "none"])
def test_the_picture_has_four_panels_with_or_without_records(records):
    assert len(PANELS) == 4
    with Image.open(BytesIO(picture(result_set_of(records)))) as image:
        assert min(image.size) > 400


def test_the_committed_page_is_what_the_committed_records_give():
    script = runpy.run_path(str(ROOT / "scripts" / "write_results.py"))
    results = read_result_set(script["RESULTS"])
    assert script["WHICH_QUANTIZER"].read_text() == page(results), "run scripts/write_results.py"
    assert script["WHICH_PICTURE"].is_file()
