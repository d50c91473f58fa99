"""The page shows what the records say, loads nothing, and trusts no file."""

import re
from html.parser import HTMLParser
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from result_sets import FakeRow, ledger_of, write_results
from scipy import stats

from lgq.cli.report import Report
from lgq.experiments.results_directory import ResultsDirectory, RowsError
from lgq.report.columns import RFID, USED, Column
from lgq.report.curves import charts_of, round_values
from lgq.report.intervals import Sample, clear_best, separated, t_quantile
from lgq.report.ledger import read_ledger
from lgq.report.page import report_page, write_report
from lgq.report.pairs import paired_table
from lgq.report.paper import COMPARISON, TABLES
from lgq.report.tables import NOT_GIVEN, build_table, own_table

HOSTILE = '<script>alert("1")</script>'
VOID = {"meta", "img", "br", "line", "path", "circle"}
PSNRS = {"lgq": (23.5, 23.6, 23.4), "fsq": (22.0, 22.1, 22.2), "ibq": (20.0, 21.0, 23.0)}


def png(width: int = 32, height: int = 16) -> bytes:
    file = BytesIO()
    Image.fromarray(np.arange(width * height * 3, dtype=np.uint8).reshape(height, width, 3)).save(file, "PNG")
    return file.getvalue()


def comparison(psnrs: dict[str, tuple[float, ...]] = PSNRS) -> list[FakeRow]:
    return [
        FakeRow(
            name.upper(),
            {"quantizer": name, "codebook_size": 1024, "lr": 0.1},
            [{"psnr": value, "utilization": 1.0, "lpips": None} for value in values],
            journals=[
                [
                    (10, "validation", {"psnr": value - 1, "l1": 0.2, "utilization": 0.5}),
                    (20, "validation", {"psnr": value, "l1": 0.1, "utilization": 1.0}),
                ]
                for value in values
            ],
        )
        for name, values in psnrs.items()
    ]


class Checker(HTMLParser):
    """Every tag is closed, in order; collects what the page would load, and all its text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = dict(attributes)
        assert tag not in {"script", "link", "iframe", "object", "embed", "base"}
        assert not [name for name in given if name.startswith("on")]
        self.ids += [given["id"] or ""] if "id" in given else []
        self.links += [given["href"] or ""] if "href" in given else []
        self.loads += [value or "" for name, value in attributes if name in {"src", "srcset", "data"}]
        if tag == "img":
            assert given.get("alt")
        if tag not in VOID or (tag == "path" and self.get_starttag_text()[-2] != "/"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.ids += [value or "" for name, value in attributes if name == "id"]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def checked(page: str) -> Checker:
    checker = Checker()
    checker.feed(page)
    checker.close()
    assert checker.open == []
    return checker


@pytest.fixture
def results(tmp_path: Path) -> ResultsDirectory:
    written = write_results(tmp_path / "results", {"comparison": comparison(), "beyond": comparison()})
    for row in comparison():
        written.write_pictures(row.ids("comparison")[0], {"reconstructions": png(), "usage": png()})
    written.originals.write_bytes(png())
    return written


def test_a_cell_is_the_mean_and_sample_deviation_over_seeds():
    table = build_table(ledger_of({"comparison": comparison()}), COMPARISON)
    for row in table.rows:
        if row.ours:
            values = np.array(PSNRS[row.name.lower()])
            assert row.seeds == 3
            assert row.ours[0].mean == f"{values.mean():.3f}"
            assert row.ours[0].spread == f"± {values.std(ddof=1):.3f}"
            assert [source.value for source in row.ours[0].sources] == [f"{value:.3f}" for value in values]
            assert row.ours[2].mean == NOT_GIVEN


def interval(values: tuple[float, ...]) -> tuple[float, float]:
    return stats.t.interval(0.95, len(values) - 1, np.mean(values), stats.sem(values))


@pytest.mark.parametrize("values", [(1.0, 2.0), (3.0, 3.5, 3.1), tuple(range(12)), tuple(range(40))])
def test_intervals_are_students(values):
    assert Sample(values).interval == pytest.approx(interval(values), rel=1e-3)


def test_quantiles_are_students():
    degrees = range(1, 200)
    expected = [stats.t.ppf(0.975, n) for n in degrees]
    assert [t_quantile(n) for n in degrees] == pytest.approx(expected, abs=2e-4)


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
    table = build_table(ledger_of({"comparison": comparison(psnrs)}), COMPARISON)
    assert [row.name for row in table.rows if row.ours and row.ours[0].best] == ([bold] if bold else [])


def test_lower_is_better_where_a_column_says_so():
    samples = {"a": Sample((1.0, 1.1)), "b": Sample((9.0, 9.1))}
    assert (clear_best(samples, "lower"), clear_best(samples, "higher")) == ("a", "b")
    assert not separated(Sample((1.0,)), Sample((9.0, 9.1)))


def test_rows_compete_within_their_group_alone():
    rows = [
        FakeRow("A", {"codebook_size": 1}, [{"psnr": 1.0}, {"psnr": 1.1}], group="small"),
        FakeRow("B", {"codebook_size": 1}, [{"psnr": 3.0}, {"psnr": 3.1}], group="small"),
        FakeRow("A", {"codebook_size": 2}, [{"psnr": 9.0}, {"psnr": 9.1}], group="large"),
        FakeRow("B", {"codebook_size": 2}, [{"psnr": 7.0}, {"psnr": 7.1}], group="large"),
    ]
    ledger = ledger_of({"mine": rows})
    table = own_table(ledger, ledger.plans["mine"])
    assert [row.name for row in table.rows if row.ours[0].best] == ["B, small", "A, large"]


LUCK = (-1.0, 0.0, 1.0)
"""Of a seed, the same for all rows of it."""


def shared_luck(advantage: tuple[float, ...]) -> list[FakeRow]:
    """LGQ ahead by so much with each seed, in rows that vary with the seed far more."""
    ours = tuple(20 + luck + lead for luck, lead in zip(LUCK, advantage, strict=True))
    return comparison({"fsq": tuple(20 + luck for luck in LUCK), "lgq": ours})


def test_a_difference_of_the_same_seeds_is_seen_where_intervals_touch():
    ledger = ledger_of({"comparison": shared_luck((0.1, 0.2, 0.3))})
    assert not any(row.ours[0].best for row in build_table(ledger, COMPARISON).rows if row.ours)
    (row,) = paired_table(ledger).rows
    low, high = interval((0.1, 0.2, 0.3))
    assert (row.name, row.seeds, row.ours[0].best) == ("against FSQ", 3, False)
    assert (row.ours[0].mean, row.ours[0].spread) == ("+0.200", f"{low:.3f} to +{high:.3f}")
    clear = paired_table(ledger_of({"comparison": shared_luck((0.19, 0.2, 0.21))}))
    assert clear.rows[0].ours[0].best
    assert not clear.rows[0].ours[0].worse
    assert [source.seed for source in clear.rows[0].ours[0].sources] == [0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize(
    "psnrs",
    [{"lgq": (20.0,), "fsq": (21.0,)}, {"fsq": (20.0, 21.0), "ibq": (20.0, 21.0)}, {"lgq": (20.0, 21.0)}],
)
def test_differences_need_two_seeds_and_two_rows_one_of_them_lgq(psnrs):
    assert paired_table(ledger_of({"comparison": comparison(psnrs)})) is None


def test_differences_are_of_the_seeds_that_both_rows_have_a_number_of():
    rows = shared_luck((0.1, 0.2, 0.3))
    rows[0].values[2]["psnr"] = None
    cell = paired_table(ledger_of({"comparison": rows})).rows[0].ours[0]
    assert cell.mean == "+0.150"


def test_a_difference_for_the_worse_is_no_best():
    cell = paired_table(ledger_of({"comparison": shared_luck((-2.0, -2.1, -2.2))})).rows[0].ours[0]
    assert (cell.best, cell.worse, cell.mean) == (False, True, "-2.100")


def test_a_lower_distance_is_a_difference_for_the_better():
    rows = shared_luck((-2.0, -2.1, -2.2))
    for row in rows:
        row.values = [{"rfid": value["psnr"]} for value in row.values]
    cell = paired_table(ledger_of({"comparison": rows})).rows[0].ours[3]
    assert (cell.best, cell.worse, cell.mean) == (True, False, "-2.10")


def test_differences_prefer_the_experiment_with_more_seeds():
    rows = {"comparison": shared_luck((1.0, 1.0, 1.0)), "seeds": shared_luck((2.0, 2.0, 2.0))}
    assert paired_table(ledger_of(rows)).rows[0].ours[0].mean == "+2.000"


def test_rows_that_were_not_run_are_shown_as_such(results):
    page = checked(report_page(read_ledger(results.root)))
    assert page.text.count("not run") >= sum(len(table.rows) for table in TABLES) - 2 * len(PSNRS)


def test_shares_are_in_per_cent_and_arrows_show_the_better_direction():
    assert USED.write(0.9876) == "98.76"
    assert (USED.heading, RFID.heading) == ("Util. % ↑", "rFID ↓")
    assert Column("x", "X").heading == "X"


def test_the_page_is_whole_and_loads_nothing(results):
    page = checked(report_page(read_ledger(results.root)))
    assert page.loads
    assert all(load.startswith("data:image/") for load in page.loads)
    assert all(link.startswith("#") for link in page.links)
    assert len(set(page.ids)) == len(page.ids)
    assert {link[1:] for link in page.links} <= set(page.ids)
    style = re.search(r"<style>(.*?)</style>", report_page(read_ledger(results.root)), re.DOTALL)
    assert style
    assert "url(" not in style[1]
    assert "@import" not in style[1]
    for needed in ("prefers-color-scheme: dark", "@media print", "overflow-x: auto", "max-width: 40rem"):
        assert needed in style[1]


def test_every_number_names_its_runs_with_seed_and_command(results):
    page = report_page(read_ledger(results.root))
    text = checked(page).text
    for id in ResultsDirectory(results.root).records():
        assert f'id="run-{id}"' in page
        assert f'href="#run-{id}"' in page
    assert "lgq experiment made-up --seeds 3" in text
    assert "seed 2" in text


def test_the_same_results_give_the_same_page(results):
    assert report_page(read_ledger(results.root)) == report_page(read_ledger(results.root))


def test_what_files_say_is_escaped(tmp_path):
    rows = [
        FakeRow(
            HOSTILE,
            {"quantizer": HOSTILE, f"{HOSTILE}": HOSTILE},
            [{"psnr": 1.0}] * 2,
            group=HOSTILE,
            extra={"failed": HOSTILE, "command": ["lgq", HOSTILE], "environment": {HOSTILE: HOSTILE}},
            journals=[[(1, "validation", {"psnr": 1.0})]] * 2,
        )
    ]
    written = write_results(tmp_path, {"comparison": rows})
    (tmp_path / "rows" / "<b onclick=x>.json").write_text("{")
    written.write_pictures(rows[0].ids("comparison")[0], {"usage": png()})
    page = report_page(read_ledger(tmp_path))
    text = checked(page).text
    assert "<script" not in page
    assert "<b onclick" not in page
    assert HOSTILE in text


def test_a_damaged_record_is_named_and_left_out(results):
    names = sorted(path.name for path in (results.root / "rows").iterdir())
    torn, wrong, foreign = (results.root / "rows" / name for name in names[:3])
    torn.write_text("{")
    wrong.write_text('{"id": "x", "kind": "tokenizer"}')
    foreign.write_text(foreign.read_text().replace(foreign.stem, "another"))
    (results.root / "runs" / names[3].removesuffix(".json") / "metrics.jsonl").write_text('{"step": 1}\n')
    (results.root / "pictures" / "originals.png").write_bytes(b"no picture")
    ledger = read_ledger(results.root)
    text = checked(report_page(ledger)).text
    for file in (*(f"rows/{name}" for name in names[:3]), f"runs/{names[3][:-5]}/metrics.jsonl"):
        assert file in ledger.damaged
        assert file in text
    assert "pictures/originals.png" in text
    assert str(results.root) not in text
    assert len(ledger.runs) == len(names) - 3


def test_a_run_that_failed_is_named_and_has_no_numbers(tmp_path):
    rows = [FakeRow("LGQ", {"quantizer": "lgq"}, [{}], extra={"failed": "the loss is no number"})]
    write_results(tmp_path, {"comparison": rows})
    ledger = read_ledger(tmp_path)
    assert "the loss is no number" in checked(report_page(ledger)).text
    row = next(row for row in build_table(ledger, COMPARISON).rows if row.name == "LGQ")
    assert (row.seeds, row.failed) == (0, 1)
    assert {cell.mean for cell in row.ours} == {NOT_GIVEN}


@pytest.mark.parametrize("made", [False, True])
def test_no_results_are_one_clear_line(tmp_path, made):
    place = tmp_path / "nothing"
    if made:
        place.mkdir()
    with pytest.raises(RowsError, match="lgq experiment") as refusal:
        write_report(place, tmp_path / "report.html")
    assert "\n" not in str(refusal.value)
    assert not (tmp_path / "report.html").exists()


def test_the_command_writes_the_page_and_says_what_it_left_out(results, tmp_path, capsys):
    (results.root / "rows" / "torn.json").write_text("{")
    out = tmp_path / "new" / "report.html"
    assert Report(results=results.root, out=out).run() == 0
    assert out.read_text() == report_page(read_ledger(results.root))
    assert "left out rows/torn.json" in capsys.readouterr().err


def test_what_is_kept_gives_the_same_page_without_weights(results, tmp_path, capsys):
    weights = results.run(next(iter(results.records()))) / "best" / "model.safetensors"
    weights.parent.mkdir(parents=True)
    weights.write_bytes(bytes(100))
    unfinished = results.run("unfinished") / "metrics.jsonl"
    unfinished.parent.mkdir(parents=True)
    unfinished.touch()
    page, again, kept = tmp_path / "page.html", tmp_path / "again.html", tmp_path / "kept"
    assert Report(results=results.root, out=page, keep=kept).run() == 0
    assert f"MB: {kept}" in capsys.readouterr().err.replace("\n", "")
    assert Report(results=kept, out=again).run() == 0
    assert again.read_bytes() == page.read_bytes()
    assert {file.suffix for file in kept.rglob("*") if file.is_file()} == {".json", ".jsonl", ".png"}
    assert not (kept / "runs/unfinished").exists()
    assert ResultsDirectory(kept).records() == results.records()


def test_results_are_not_kept_in_themselves(results, tmp_path):
    with pytest.raises(RowsError, match="choose another directory"):
        Report(results=results.root, out=tmp_path / "page.html", keep=results.root).run()


def test_the_command_refuses_a_directory_as_its_page(results, tmp_path):
    with pytest.raises(ValueError, match="must be a file"):
        Report(results=results.root, out=tmp_path).run()


def test_charts_have_a_line_a_row_and_a_band_over_seeds():
    ledger = ledger_of({"comparison": comparison() + comparison({"vq": (1.0,)})})
    (charts,) = charts_of(ledger, "comparison").values()
    assert [chart.title for chart in charts] == ["PSNR ↑", "l1 ↓", "Util. % ↑"]
    assert [line.name for line in charts[0].lines] == ["LGQ", "FSQ", "IBQ", "VQ"]
    assert [bool(line.band) for line in charts[0].lines] == [True, True, True, False]
    assert "LGQ 23.500 ± 0.100" in charts[0].alternative


def test_charts_prefer_rfid_where_it_was_taken():
    rows = comparison({"lgq": (1.0,)})
    rows[0].journals = [[(10, "validation", {"psnr": 1.0, "l1": 0.1, "rfid": 3.0, "utilization": 1.0})]]
    (charts,) = charts_of(ledger_of({"comparison": rows}), "comparison").values()
    assert [chart.title for chart in charts] == ["PSNR ↑", "rFID ↓", "Util. % ↑"]
    assert charts[1].lines[0].marks


@pytest.mark.parametrize(("low", "high"), [(0, 1), (18.7, 23.6), (0, 6000), (-3e-5, 2e-5), (5, 5)])
def test_ticks_are_round_and_lie_within_the_axis(low, high):
    ticks = round_values(low, high, 6)
    assert 1 <= len(ticks) <= 7
    assert all(low - 1e-12 <= tick <= high + 1e-12 for tick in ticks)
    assert all(len(f"{tick:g}") <= 8 for tick in ticks)


def test_large_pictures_are_made_small(results):
    noise = np.random.default_rng(0).integers(0, 256, (512, 4096, 3), dtype=np.uint8)
    file = BytesIO()
    Image.fromarray(noise).save(file, "PNG")
    results.write_pictures(comparison()[0].ids("comparison")[0], {"reconstructions": file.getvalue()})
    assert len(report_page(read_ledger(results.root))) < 1_000_000


@pytest.mark.parametrize(
    ("of_the_other", "named"),
    [(["tench, Tinca tinca", "barn"], True), (["barn", "barn"], False), (None, False)],
)
def test_samples_name_their_classes_where_all_drew_the_same(tmp_path, of_the_other, named):
    shown = {"LGQ": ["tench, Tinca tinca", "barn"], "FSQ": of_the_other}
    rows = [
        FakeRow(name, {}, [{"gfid": 9.0}], kind="generator", extra={"shown_classes": classes})
        for name, classes in shown.items()
    ]
    written = write_results(tmp_path / "results", {"generation": rows})
    for row in rows:
        written.write_pictures(row.ids("generation")[0], {"samples": png()})
    text = checked(report_page(read_ledger(written.root))).text
    assert ("row by row: tench; barn." in text) is named
