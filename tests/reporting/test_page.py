"""The page shows what the records say, loads nothing from elsewhere, and trusts no file."""

import json
import re
import shlex
from dataclasses import replace
from html.parser import HTMLParser
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from result_sets import FakeRow, comparison_rows, result_set_of, write_results

import lgq
from lgq.cli import main, parse
from lgq.cli.experiment import Report
from lgq.errors import LGQError
from lgq.experiments.results_directory import ResultsDirectory
from lgq.experiments.scales import SCALES
from lgq.experiments.tables import EXPERIMENTS
from lgq.plots.palette import colour_of
from lgq.reporting.overview import changes_since
from lgq.reporting.page import report, report_page, tinted
from lgq.reporting.paper_tables import NOT_GIVEN, all_tables, build_table, table_specs
from lgq.reporting.result_set import read_result_set

HOSTILE = '<script>alert("1")</script>'
VOID = {"meta", "img", "br", "line", "path", "circle"}
PSNRS = {"lgq": (23.5, 23.6, 23.4), "fsq": (22.0, 22.1, 22.2), "ibq": (20.0, 21.0, 23.0)}
ROWS = comparison_rows(PSNRS)


def png(width: int = 32, height: int = 16) -> bytes:
    file, noise = BytesIO(), np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    Image.fromarray(noise).save(file, "PNG")
    return file.getvalue()


class Checker(HTMLParser):
    """Checks that tags are closed in order, and collects what the page would load, and its text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.text = ""
        self.commands: list[str] = []
        self.in_command = False
        self.regions: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = dict(attributes)
        assert tag not in {"script", "link", "iframe", "object", "embed", "base"}
        assert not [name for name in given if name.startswith("on")]
        self.ids += [given["id"] or ""] if "id" in given else []
        self.links += [given["href"] or ""] if "href" in given else []
        self.loads += [value or "" for name, value in attributes if name in {"src", "srcset", "data"}]
        if tag == "img":
            assert given.get("alt")
        if given.get("class") == "command":
            self.commands.append("")
        self.in_command = given.get("class") == "command"
        if "scroll" in (given.get("class") or "").split():
            assert (given.get("tabindex"), given.get("role")) == ("0", "region")
            self.regions.append(given["aria-label"] or "")
        if tag not in VOID or (tag == "path" and self.get_starttag_text()[-2] != "/"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.ids += [value or "" for name, value in attributes if name == "id"]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        self.in_command = False

    def handle_data(self, data: str) -> None:
        self.text += data
        if self.in_command:
            self.commands[-1] += data


def checked(page: str) -> Checker:
    checker = Checker()
    checker.feed(page)
    checker.close()
    assert checker.open == []
    return checker


@pytest.fixture
def results(tmp_path: Path) -> ResultsDirectory:
    written = write_results(tmp_path / "results", {"comparison": ROWS, "beyond": ROWS})
    for row in ROWS:
        written.write_pictures(row.ids("comparison")[0], {"reconstructions": png(), "usage": png()})
    written.originals.write_bytes(png())
    return written


def test_the_page_is_whole_and_loads_nothing(results):
    page = checked(report_page(read_result_set(results.root)))
    assert page.loads
    assert all(load.startswith("data:image/") for load in page.loads)
    assert all(link.startswith("#") for link in page.links)
    assert len(set(page.ids)) == len(page.ids)
    assert {link[1:] for link in page.links} <= set(page.ids)
    style = re.search(r"<style>(.*?)</style>", report_page(read_result_set(results.root)), re.DOTALL)
    assert style
    assert "url(" not in style[1]
    assert "@import" not in style[1]
    for needed in ("prefers-color-scheme: dark", "@media print", "overflow-x: auto", "max-width: 40rem"):
        assert needed in style[1]


def test_every_number_names_its_runs_with_seed_and_command_or_was_not_run(results):
    page = report_page(read_result_set(results.root))
    text = checked(page).text
    assert text.count("not run") >= sum(len(table.rows) - len(PSNRS) for table in table_specs().values())
    for id in ResultsDirectory(results.root).records():
        assert f'id="run-{id}"' in page
        assert f'href="#run-{id}"' in page
    assert "lgq experiment made-up --seeds 3" in text
    assert "seed 2" in text


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
    page = report_page(read_result_set(tmp_path))
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
    result_set = read_result_set(results.root)
    text = checked(report_page(result_set)).text
    for file in (*(f"rows/{name}" for name in names[:3]), f"runs/{names[3][:-5]}/metrics.jsonl"):
        assert file in result_set.damaged
        assert file in text
    assert "pictures/originals.png" in text
    assert str(results.root) not in text
    assert len(result_set.runs) == len(names) - 3


def test_a_run_that_failed_is_named_and_has_no_numbers(tmp_path):
    rows = [FakeRow("LGQ", {"quantizer": "lgq"}, [{}], extra={"failed": "the loss is NaN"})]
    write_results(tmp_path, {"comparison": rows})
    result_set = read_result_set(tmp_path)
    assert "the loss is NaN" in checked(report_page(result_set)).text
    row = next(row for row in build_table(result_set, table_specs()["Table 2"]).rows if row.name == "LGQ")
    assert (row.seeds, row.failed) == (0, 1)
    assert {cell.mean for cell in row.ours} == {NOT_GIVEN}


def test_a_run_that_warned_is_named_with_its_warnings(tmp_path):
    rows = [FakeRow("LGQ", {"quantizer": "lgq"}, [{"psnr": 20.0}])]
    write_results(tmp_path, {"comparison": rows})
    (journal,) = tmp_path.glob("runs/*/metrics.jsonl")
    for message in ("few codes <are> used", HOSTILE):
        record = {"step": 500, "split": "warning", "values": {}, "cause": "few_codes", "message": message}
        journal.write_text(journal.read_text() + json.dumps(record) + "\n")
    page = checked(report_page(read_result_set(tmp_path)))
    assert "Runs that warned" in page.text
    assert "few codes <are> used" in page.text
    rest = json.dumps(record | {"message": None}) + "\n"
    journal.write_text(rest.replace("warning", "train"))
    assert "Runs that warned" not in checked(report_page(read_result_set(tmp_path))).text


def test_places_that_hold_no_results_or_cannot_take_the_page_are_refused(results, tmp_path):
    page, empty = tmp_path / "page.html", tmp_path / "empty"
    empty.mkdir()
    for message, source, out, copy in (
        ("lgq experiment", tmp_path / "gone", page, None),
        ("lgq experiment", empty, page, None),
        ("is a directory: give a file", results.root, tmp_path, None),
        ("choose another directory", results.root, page, results.root),
    ):
        with pytest.raises(LGQError, match=message):
            report(source, out, copy=copy)
        assert not page.exists()


def test_the_command_writes_the_page_and_says_what_it_left_out(results, tmp_path, capsys):
    (results.root / "rows" / "torn.json").write_text("{")
    out = tmp_path / "new" / "report.html"
    assert Report(results=results.root, out=out).run() == 0
    assert out.read_text() == report_page(read_result_set(results.root))
    assert "left out rows/torn.json" in capsys.readouterr().err


def test_a_copy_gives_the_same_page_without_weights(results, tmp_path):
    for file in ("best/model.safetensors", "../unfinished/metrics.jsonl"):
        path = results.run(next(iter(results.records()))) / file
        path.parent.mkdir(parents=True)
        path.write_bytes(bytes(100))
    page, again, copy = tmp_path / "page.html", tmp_path / "again.html", tmp_path / "copy"
    summary = lgq.report(results.root, page, copy=copy)
    report(copy, again)
    assert again.read_bytes() == page.read_bytes()
    copied = [file for file in copy.rglob("*") if file.is_file()]
    assert {file.suffix for file in copied} == {".json", ".jsonl", ".png"}
    assert sum(file.stat().st_size for file in copied) == summary.kept_bytes
    assert not (copy / "runs/unfinished").exists()
    assert ResultsDirectory(copy).records() == results.records()


def test_a_copy_has_the_weights_of_autoencoders_from_which_rows_to_come_start(tmp_path):
    results, copy = tmp_path / "results", tmp_path / "copy"
    options = {"warm_start": "auto", "val_data": "sample", "device": "cpu"}
    lgq.experiment("autoencoder", "smoke", "sample", results, **options)
    lgq.report(results, tmp_path / "page.html", copy=copy)
    outcome = lgq.experiment("comparison", "smoke", "sample", copy, only=["fsq"], **options)
    (row,) = (row for row in outcome.plan.rows if row.row == "fsq")
    (autoencoder,) = ResultsDirectory(results).records().values()
    assert ResultsDirectory(copy).record(row.id)["start"]["fingerprint"] == autoencoder["fingerprint"]
    assert outcome.new_rows == 1


def test_large_pictures_are_made_small(results):
    results.write_pictures(ROWS[0].ids("comparison")[0], {"reconstructions": png(4096, 512)})
    assert len(report_page(read_result_set(results.root))) < 1_000_000


@pytest.mark.parametrize(
    ("fsq_classes", "named"),
    [(["tench, Tinca tinca", "barn"], True), (["barn", "barn"], False), (None, False)],
)
def test_samples_name_their_classes_where_all_generators_drew_the_same(tmp_path, fsq_classes, named):
    shown = {"LGQ": ["tench, Tinca tinca", "barn"], "FSQ": fsq_classes}
    rows = [
        FakeRow(name, {}, [{"gfid": 9.0}], kind="generator", extra={"shown_classes": classes})
        for name, classes in shown.items()
    ]
    written = write_results(tmp_path / "results", {"generation": rows})
    for row in rows:
        written.write_pictures(row.ids("generation")[0], {"samples": png()})
    text = checked(report_page(read_result_set(written.root))).text
    assert ("row by row: tench; barn." in text) is named


LABEL = re.compile(r"\b(tab|fig|sec|app|prop|eq|alg):\w|\\\\(ref|cref|label)")
"""Labels of the paper's source."""


def test_readers_meet_numbers_of_tables_and_no_labels_of_the_papers_source(results):
    text = checked(report_page(read_result_set(results.root))).text
    assert not LABEL.search(text)
    for name in ("Table 2", "Table 11", "Section 6.2", "Appendix C", "Figure 3"):
        assert name in text
    assert not any(LABEL.search(table.paper + table.about) for table in EXPERIMENTS.values())
    assert LABEL.search("see tab:main")


def test_commands_of_the_page_can_be_pasted_and_run(tmp_path, monkeypatch, capsys):
    """Quotes, the options of now, and data as it was given."""
    monkeypatch.chdir(tmp_path)
    folder = "my photos {0..1}"
    Path(folder).mkdir()
    for name in ("cat", "dog"):
        Image.new("RGB", (40, 40), (200, 90, 30)).save(tmp_path / folder / f"{name}.jpg")
    words = ["--scale", "smoke", "--data", folder, "--only", "fsq", "--out", "results"]
    rows = comparison_rows({"fsq": (20.0, 21.0), "lgq": (22.0,)})
    rows[0].extra = {"command": ["lgq", "experiment", "comparison", *words]}
    rows[1].extra = {"command": ["lgq", "experiment", "a name of before", *words]}
    write_results(tmp_path / "made", {"comparison": rows})
    assert main(["report", "made", "--out", "report.html"]) is None
    commands = checked(Path("report.html").read_text()).commands
    assert len(commands) > 2
    assert set(commands) == {f"lgq experiment {shlex.join(['comparison', *words])}"}
    for command in commands:
        program, *arguments = shlex.split(command)
        assert program == "lgq"
        assert parse(arguments).data == folder
    main([*shlex.split(commands[0])[1:], "--dry-run"])
    assert "FSQ, seed 0" in capsys.readouterr().out


def test_every_command_of_the_committed_page_parses_and_names_an_experiment():
    page = checked((Path(__file__).parent.parent.parent / "docs/results/report.html").read_text())
    assert page.commands
    for command in set(page.commands):
        assert parse(shlex.split(command)[1:]).name in EXPERIMENTS


def test_regions_that_scroll_have_names_show_their_edges_and_can_be_reached_by_keyboard(results):
    page = report_page(read_result_set(results.root))
    regions = checked(page).regions
    assert len(regions) == page.count("</table>") + 2
    assert len(set(regions)) == len(regions)
    assert all("scroll" in name for name in regions)
    assert page.count('class="hint"') == len(regions)
    for needed in ("background-attachment: local", "scroll-timeline: --sideways", "@keyframes hint"):
        assert needed in page


def test_every_column_of_a_table_leads_to_its_meaning(results):
    page = report_page(read_result_set(results.root))
    tables = all_tables(read_result_set(results.root))
    shown = {column for table in tables if table.was_run for column in table.spec.columns}
    assert len(shown) > 5
    for column in shown:
        assert f'title="{column.tooltip}">{column.heading}</a>' in page
        assert f"<dt>{column.heading}</dt><dd>{column.tooltip}</dd>" in page


def test_tables_and_pictures_say_on_how_many_images_and_seeds_they_stand(results):
    page = report_page(read_result_set(results.root))
    text = checked(page).text
    assert "3 training seeds per row; 1,000 validation images" in text
    assert "Paper (Table 2): rFID on 10,000 validation images; one training run per row." in text
    assert "200 validation images; 3 training seeds per line" in text
    assert "The same 2 images of photos through every tokenizer of the comparison, one seed each." in text
    assert "Counted on 5,000 validation images, one training seed each." in text


def test_plots_have_the_colour_of_their_quantizer_whenever_they_were_drawn():
    blue, white, grey = ((0, 114, 178), (255, 255, 255), (220, 220, 220))
    pale = (128, 184, 217)
    plot = np.array([[blue, white, grey, pale, (213, 94, 0), (0, 0, 0)]], dtype=np.uint8)
    red, pink = [184, 0, 31], [220, 128, 143]
    changed = tinted(plot, "#b8001f")
    assert changed[0].tolist() == [red, *map(list, (white, grey)), pink, [213, 94, 0], [0, 0, 0]]
    assert tinted(plot, colour_of("lgq")) is plot
    assert np.array_equal(tinted(changed, "#b8001f"), changed)


def test_runs_that_are_left_out_of_their_rows_are_named(tmp_path):
    directory = write_results(tmp_path / "results", {"comparison": ROWS})
    record = directory.record("comparison-LGQ-s0")
    directory.write_record("comparison-LGQ-s0", record | {"config": record["config"] | {"lr": 0.2}})
    page = report_page(read_result_set(directory.root))
    assert "differ from the run of its first seed in more than the seed" in page
    notice = page.split("differ from the run of its first seed")[1].split("</div>")[0]
    assert re.findall(r"run-(comparison-\w+-s\d)", notice) == ["comparison-LGQ-s1", "comparison-LGQ-s2"]
    assert ": lr<" in notice


def test_experiments_that_were_not_run_are_one_list(results):
    page = report_page(read_result_set(results.root))
    tables = all_tables(read_result_set(results.root))
    folded = [table for table in tables if not table.was_run]
    listed = page.split('id="not-run"')[1].split("</ul>")[0]
    assert listed.count("<li") == len(folded) > 3
    assert f'<h3 id="{folded[0].anchor}"' not in page
    assert all(table.spec.title not in listed for table in tables if table.was_run)


def test_the_page_says_what_its_scale_is(tmp_path):
    directory = write_results(tmp_path / "results", {"comparison": ROWS})
    directory.write_plan(replace(directory.plan("comparison"), scale="pocket"))
    assert "made small for two CPU cores" in report_page(read_result_set(directory.root))


def test_records_of_an_earlier_protocol_are_told_beside_their_commands(tmp_path):
    task = next(row for row in EXPERIMENTS["comparison"].rows(SCALES["smoke"]()) if row.label == "FSQ")
    config = task.task.settings()
    for rate, is_told in ((config["learning_rate"], False), (123.0, True)):
        row = FakeRow("FSQ", config | {"learning_rate": rate}, [{"psnr": 20.0}])
        directory = write_results(tmp_path / str(rate), {"comparison": [row]})
        plan = directory.plan("comparison")
        planned = (replace(plan.rows[0], row=task.row),)
        directory.write_plan(replace(plan, scale="smoke", rows=planned))
        record = directory.record(planned[0].id)
        directory.write_record(
            planned[0].id, record | {"start": {"id": "autoencoder-s0", "fingerprint": "0"}}
        )
        page = report_page(read_result_set(directory.root))
        assert ("1 of 1 runs were made with an earlier protocol" in page.split("</header>")[0]) == is_told
        commands = page.split('id="commands"')[1]
        assert ("earlier protocol" in commands) == is_told
        assert ("<code>learning_rate</code>: 123.0, now " in commands) == is_told
        assert ("1 of 1 runs were made with an earlier protocol" in commands) == is_told


@pytest.mark.parametrize("change", ["clip", "start", "row"])
def test_what_only_one_of_two_protocols_has_is_a_difference_too(change, tmp_path):
    task = next(row for row in EXPERIMENTS["comparison"].rows(SCALES["pocket"]()) if row.label == "FSQ")
    config = task.task.settings() | ({"clip": None} if change == "clip" else {})
    directory = write_results(tmp_path, {"comparison": [FakeRow("FSQ", config, [{"psnr": 20.0}])]})
    plan = directory.plan("comparison")
    row = replace(plan.rows[0], row="gone" if change == "row" else task.row)
    directory.write_plan(replace(plan, scale="pocket", rows=(row,)))
    if change != "start":
        record = directory.record(row.id)
        directory.write_record(row.id, record | {"start": {"id": "autoencoder-s0", "fingerprint": "0"}})
    commands = report_page(read_result_set(directory.root)).split('id="commands"')[1]
    assert "1 of 1 runs were made with an earlier protocol" in commands
    assert ("<code>clip</code>: null, now 1.0" in commands) == (change == "clip")
    random = "<code>start</code>: random weights, now the autoencoder of its seed"
    assert (random in commands) == (change == "start")


def test_a_page_of_the_viewer_beside_the_report_is_linked(results, tmp_path):
    report(results.root, tmp_path / "alone.html")
    assert "view.html" not in (tmp_path / "alone.html").read_text()
    (tmp_path / "view.html").write_text("the page")
    report(results.root, tmp_path / "report.html")
    assert '<a href="view.html">' in (tmp_path / "report.html").read_text()


def test_recordings_are_data_and_no_protocol():
    row = next(row for row in EXPERIMENTS["modality"].rows(SCALES["pocket"]()) if row.label == "FSQ")
    config = row.task.settings() | {"recordings": "fed1719db188f40f"}
    results = result_set_of({"modality": [FakeRow("FSQ", config, [{"snr": 2.0}], kind="speech")]})
    plan = results.plans["modality"]
    planned = (replace(plan.rows[0], row=row.row),)
    now = replace(results, plans={"modality": replace(plan, scale="pocket", rows=planned)})
    assert changes_since(now) is None


def test_timings_of_a_busy_machine_have_a_footnote():
    rows = [
        FakeRow(
            name,
            {"quantizer": name.lower(), "codebook_size": 16_384},
            [{"ms": 1.0, "extra_bytes": 1e6, "load": load, "cores": 2.0}],
            kind="cost",
        )
        for name, load in (("LGQ", 9.0), ("FSQ", 0.5))
    ]
    table = build_table(result_set_of({"cost": rows}), table_specs()["Table 8"])
    shown = {row.name: [cell.mean for cell in row.ours] for row in table.rows if row.ours}
    marks = {name: sum("*" in mean for mean in means) for name, means in shown.items()}
    assert sorted(marks.values())[0] == 0 < sorted(marks.values())[1]
    assert "* timed on a busy machine: it decides no claim" in table.basis
