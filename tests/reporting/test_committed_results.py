"""The report and the README say what the committed records say."""

import json
import re
import runpy
from pathlib import Path

import pytest

from lgq.reporting.page import report_page
from lgq.reporting.result_set import read_result_set

ROOT = Path(__file__).parent.parent.parent
SCRIPT = runpy.run_path(str(ROOT / "scripts" / "write_results.py"))
AGAIN = "run scripts/write_results.py"
LAPTOP = re.compile(r"million codes[\s\w]* on a laptop")


@pytest.fixture(scope="module")
def results():
    return read_result_set(SCRIPT["RESULTS"])


def without_pictures(page: str) -> str:
    """The page without its pictures, whose bytes depend on the library that compressed them."""
    return re.sub(r"data:image/\w+;base64,[\w+/=]+", "", page)


def test_the_report_is_what_the_records_give(results):
    committed = SCRIPT["REPORT"].read_text()
    assert without_pictures(report_page(results)) == without_pictures(committed), AGAIN
    assert not results.damaged


@pytest.mark.parametrize("page", SCRIPT["PAGES"], ids=lambda page: page.name)
def test_readme_and_docs_have_the_tables_and_numbers_of_the_records(results, page):
    parts, text = SCRIPT["parts_of"](results, SCRIPT["timed_steps"]()), page.read_text()
    assert SCRIPT["rewritten"](text, parts) == text, AGAIN
    there = [name for name in parts if f"<!-- {name} -->" in text]
    assert there
    for name in there:
        assert SCRIPT["rewritten"](text, {name: "put in anew"}).count("put in anew") == 1


def test_a_million_codes_stand_beside_their_seconds_per_step_wherever_they_are_claimed():
    record = json.loads((ROOT / "docs/benchmarks/million.json").read_text())["rows"][0]
    seconds = f"{record['ms'] / 1e3:.0f} seconds per step"
    pages = (ROOT / "README.md", *(ROOT / "docs").rglob("*.md"))
    claims = [page for page in pages if LAPTOP.search(page.read_text())]
    assert len(claims) >= 2
    for page in claims:
        for claim in LAPTOP.finditer(page.read_text()):
            assert seconds in page.read_text()[claim.start() : claim.start() + 700], page
    table = SCRIPT["cost_table"](SCRIPT["timed_steps"]())
    assert table.splitlines()[-1].startswith("| 1,048,576 | 155 |  | 848 MB |")
    assert "| 4,096 | 0.14 | 0.91 | 26 MB | 676 MB | 1.16 | 7.67 |" in table


def test_every_record_is_planned_and_has_its_command_and_seed(results):
    planned = {row.id for plan in results.plans.values() for row in plan.rows}
    starts = {run.record["start"]["id"] for run in results.runs.values() if run.record.get("start")}
    for run in results.runs.values():
        assert run.id in planned | starts
        assert results.command(run).startswith("lgq experiment ")
        assert run.seed is not None or run.kind == "cost"


def test_no_record_names_a_place_of_the_machine_that_made_it():
    for file in SCRIPT["RESULTS"].rglob("*.json*"):
        assert not re.search(r'"(/|[A-Z]:\\)', file.read_text()), file
