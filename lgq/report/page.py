"""One page that shows what held and what did not: tables, curves, pictures, verdicts, and all runs.

    html = report_page(read_ledger("results"))

It loads nothing: styles, charts and pictures are inside. The same results give the same page.
"""

from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from lgq.files import make_directory, replace_file
from lgq.report import curves
from lgq.report.album import albums
from lgq.report.ledger import Ledger, read_ledger
from lgq.report.pairs import paired_table
from lgq.report.paper import TABLES
from lgq.report.runs_table import runs_table
from lgq.report.tables import Table, build_table, own_table
from lgq.report.verdicts import counts, judge

_TEMPLATES = Path(__file__).parent / "templates"
_ALSO_OURS = {"codebook-size"}
"""Experiments with more rows than the paper's table of them."""


@dataclass(frozen=True)
class Written:
    """What a report is of."""

    runs: int
    size: int
    """Bytes of the page."""
    verdicts: dict[str, int]
    damaged: dict[str, str]


def write_report(results: str | Path, out: str | Path) -> Written:
    """Read RESULTS, and write the page in one step."""
    ledger = read_ledger(results)
    page = report_page(ledger).encode("utf-8", "replace")
    make_directory(Path(out).absolute().parent)
    replace_file(Path(out), page)
    outcomes = {str(outcome): number for outcome, number in counts(judge(ledger)).items()}
    return Written(len(ledger.runs), len(page), outcomes, ledger.damaged)


def report_page(ledger: Ledger) -> str:
    verdicts = judge(ledger)
    shown = {name: charts for name in ledger.plans if (charts := curves.charts_of(ledger, name))}
    pictures = albums(ledger)
    return (
        _environment()
        .get_template("page.html.jinja")
        .render(
            plans=ledger.plans,
            runs=ledger.runs,
            failed={run.id: run.failed for run in ledger.runs.values() if run.failed},
            tables=_tables(ledger),
            charts=shown,
            frame=curves,
            albums=pictures,
            verdicts=verdicts,
            counts=counts(verdicts),
            all_runs=runs_table(ledger),
            # After the pictures, some of which may turn out to be damaged.
            damaged=ledger.damaged,
        )
    )


def _tables(ledger: Ledger) -> list[Table]:
    of_the_paper = [build_table(ledger, table) for table in TABLES]
    covered = {table.experiment for table in TABLES} - _ALSO_OURS
    own = [own_table(ledger, plan) for name, plan in ledger.plans.items() if name not in covered]
    pairs = paired_table(ledger)
    return of_the_paper + own + ([pairs] if pairs else [])


def _environment() -> Environment:
    """Everything that comes from a file is escaped; what a template forgets is an error."""
    return Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
