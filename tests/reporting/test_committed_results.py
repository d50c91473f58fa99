"""The report and the README say what the committed records say."""

import re
import runpy
from pathlib import Path

import pytest

from lgq.reporting.page import report_page
from lgq.reporting.result_set import read_result_set

ROOT = Path(__file__).parent.parent.parent
SCRIPT = runpy.run_path(str(ROOT / "scripts" / "write_results.py"))
AGAIN = "run scripts/write_results.py"


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


def test_the_readme_has_the_table_of_the_records(results):
    readme = SCRIPT["README"].read_text()
    assert SCRIPT["headline_table"](results) in readme, AGAIN
    assert SCRIPT["with_table"](readme, results) == readme


def test_every_record_is_planned_and_has_its_command_and_seed(results):
    planned = {row.id for plan in results.plans.values() for row in plan.rows}
    for run in results.runs.values():
        assert run.id in planned
        assert run.command.startswith("lgq experiment ")
        assert run.seed is not None or run.kind == "cost"


def test_no_record_names_a_place_of_the_machine_that_made_it():
    for file in SCRIPT["RESULTS"].rglob("*.json*"):
        assert not re.search(r'"(/|[A-Z]:\\)', file.read_text()), file
