"""LGQ against each other quantizer, seed by seed.

Runs of one seed share the start of the networks and the order and crops of the images, so the difference of
two of them is of the quantizers alone. Its interval over seeds can leave out zero where the intervals of the
two rows, which hold the luck of each seed, still touch.

    paired_table(read_ledger("results"))
"""

from lgq.experiments.results_directory import Plan
from lgq.report.columns import LPIPS, PERPLEXITY, PSNR, RFID, SSIM, USED, Column
from lgq.report.finished import FinishedRun
from lgq.report.intervals import Sample
from lgq.report.ledger import Ledger
from lgq.report.tables import NOT_GIVEN, Cell, Table, TableRow, sources

BySeed = dict[int, FinishedRun]

_EXPERIMENTS = ("seeds", "comparison")
"""The first of these that was run has the most seeds."""
_COLUMNS = (PSNR, SSIM, LPIPS, RFID, USED, PERPLEXITY)
_ABOUT = (
    "LGQ less the other quantizer, in the mean over the seeds that both have, with the t-based 95% interval "
    "of that difference. It is bold where the interval leaves out zero: green where LGQ is better, and red "
    "where it is worse."
)


def paired_table(ledger: Ledger) -> Table | None:
    """None where LGQ shares two seeds with no other quantizer."""
    plan = next((ledger.plans[name] for name in _EXPERIMENTS if name in ledger.plans), None)
    rows = _by_seed(ledger, plan) if plan else {}
    lgq = next((runs for runs in rows.values() if _are_lgq(runs)), {})
    others = {name: runs for name, runs in rows.items() if runs is not lgq}
    found = [_row(name, lgq, runs) for name, runs in others.items() if len(lgq.keys() & runs) > 1]
    if plan is None or not found:
        return None
    return Table(
        anchor="table-pairs",
        title="LGQ against each other quantizer, seed by seed",
        label="",
        about=_ABOUT,
        experiment=plan.experiment,
        columns=_COLUMNS,
        rows=tuple(found),
        state=f"{sum(map(len, rows.values()))} of {len(plan.rows)} runs",
    )


def _by_seed(ledger: Ledger, plan: Plan) -> dict[str, BySeed]:
    """Finished runs of each row, by its label."""
    found: dict[str, BySeed] = {}
    for row in plan.rows:
        run = ledger.runs.get(row.id)
        if run is not None and run.seed is not None and not run.failed:
            found.setdefault(row.label, {})[run.seed] = run
    return found


def _are_lgq(runs: BySeed) -> bool:
    return all(run.has({"quantizer": "lgq"}) for run in runs.values())


def _row(name: str, lgq: BySeed, other: BySeed) -> TableRow:
    pairs = [(lgq[seed], other[seed]) for seed in sorted(lgq.keys() & other)]
    cells = tuple(_cell(pairs, column) for column in _COLUMNS)
    return TableRow(f"against {name}", seeds=len(pairs), failed=0, ours=cells, paper=())


def _cell(pairs: list[tuple[FinishedRun, FinishedRun]], column: Column) -> Cell:
    values = [(one.value(column.metric), other.value(column.metric)) for one, other in pairs]
    difference = Sample(tuple(a - b for a, b in values if a is not None and b is not None))
    if difference.interval is None:
        return Cell(NOT_GIVEN)
    low, high = difference.interval
    above, below = low > 0, high < 0
    return Cell(
        _signed(difference.mean, column),
        f"{_signed(low, column)} to {_signed(high, column)}",
        sources([run for pair in pairs for run in pair], column),
        best=above if column.better == "higher" else below,
        worse=below if column.better == "higher" else above,
    )


def _signed(value: float, column: Column) -> str:
    written = column.write(value)
    return written if written.startswith("-") else f"+{written}"
