"""Tables, ready to be written: our runs over seeds, beside the paper's figures."""

from collections.abc import Iterable
from dataclasses import dataclass

from lgq.experiments.results_directory import Plan, PlannedRow
from lgq.report.columns import L1, RECONSTRUCTION, Column
from lgq.report.finished import FinishedRun
from lgq.report.intervals import Sample, clear_best
from lgq.report.ledger import Ledger, sample_of
from lgq.report.printed import PaperRow, PaperTable, Printed

NOT_GIVEN = "-"


@dataclass(frozen=True)
class Source:
    """One run behind a number."""

    run: str
    seed: int | None
    value: str
    command: str


@dataclass(frozen=True)
class Cell:
    mean: str
    """Or that there is none."""
    spread: str = ""
    """Sample standard deviation, which one seed does not have."""
    sources: tuple[Source, ...] = ()
    best: bool = False
    worse: bool = False
    """Of a difference: certainly not for the better."""


@dataclass(frozen=True)
class TableRow:
    name: str
    seeds: int
    failed: int
    """Seeds whose training diverged."""
    ours: tuple[Cell, ...]
    """One a column; none where nothing was run."""
    paper: tuple[str, ...]


@dataclass(frozen=True)
class Table:
    anchor: str
    title: str
    label: str
    """Of the paper's table; empty for one of our own."""
    about: str
    experiment: str
    columns: tuple[Column, ...]
    rows: tuple[TableRow, ...]
    state: str
    """How many of the runs that were asked for are finished."""


@dataclass(frozen=True)
class _Line:
    """A row before it is written."""

    name: str
    group: str
    size: float
    """Of the codebook, by which rows are ordered; 0 where it is not what the table varies."""
    runs: tuple[FinishedRun, ...]
    printed: tuple[Printed, ...]
    row: PaperRow | None
    """Of the paper; none where we alone have the row."""


def build_table(ledger: Ledger, table: PaperTable) -> Table:
    """The paper's rows, each beside our runs with its settings, and the rows that we alone have."""
    lines = _lines(ledger, table)
    best = [_best(lines, column, by_group=table.by_group) for column in table.columns]
    plan = ledger.plans.get(table.experiment)
    asked = {row.id for row in plan.rows} if plan else set()
    return Table(
        anchor=f"table-{table.label or table.experiment}".replace(":", "-")
        .replace(" ", "-")
        .replace(",", ""),
        title=table.title,
        label=table.label,
        about=table.about,
        experiment=table.experiment,
        columns=table.columns,
        rows=tuple(_row(line, table, best) for line in lines),
        state=f"{len(asked & ledger.runs.keys())} of {len(asked)} runs" if plan else "not run",
    )


def own_table(ledger: Ledger, plan: Plan) -> Table:
    """What the paper has no table of: all rows of the plan, with the columns that some run has."""
    runs = ledger.finished(plan.experiment)
    columns = tuple(each for each in (*RECONSTRUCTION, L1) if sample_of(runs, each.metric))
    table = PaperTable(
        label="",
        title=plan.title,
        about=plan.about,
        experiment=plan.experiment,
        columns=columns or RECONSTRUCTION,
        rows=(),
        by_group=True,
    )
    return build_table(ledger, table)


def written(sample: Sample, column: Column) -> str:
    """Mean ± sample standard deviation, which one seed does not have."""
    return f"{column.write(sample.mean)} {spread(sample, column)}".rstrip()


def spread(sample: Sample, column: Column) -> str:
    return "" if sample.std is None else f"± {column.write(sample.std)}"


def sources(runs: Iterable[FinishedRun], column: Column) -> tuple[Source, ...]:
    found = [(run, run.value(column.metric)) for run in runs]
    return tuple(
        Source(run.id, run.seed, column.write(value), run.command)
        for run, value in found
        if value is not None
    )


def _lines(ledger: Ledger, table: PaperTable) -> list[_Line]:
    ours = _our_rows(ledger, table)
    lines, taken = [], set[str]()
    for row in table.rows:
        name = next((name for name, (_, runs) in ours.items() if runs and runs[0].has(row.where)), None)
        planned, runs = ours[name] if name else (None, ())
        taken |= {name} if name else set()
        size = float(row.where.get("codebook_size", 0))
        lines.append(_Line(row.name, planned.group if planned else "", size, runs, row.values, row))
    missing = [line.name for line in lines if not line.runs]
    for name, (planned, runs) in ours.items():
        shown = _name(planned)
        is_there = not runs and any(each.startswith(shown) for each in missing)
        if name not in taken and not is_there:
            size = float(runs[0].setting("codebook_size") or 0) if runs and table.sized else 0.0
            lines.append(_Line(shown, planned.group, size, runs, (None,) * len(table.columns), None))
    return sorted(lines, key=lambda line: line.size)


def _our_rows(ledger: Ledger, table: PaperTable) -> dict[str, tuple[PlannedRow, tuple[FinishedRun, ...]]]:
    """Rows of the plan by their short names, with the finished runs of each."""
    plan = ledger.plans.get(table.experiment)
    found: dict[str, tuple[PlannedRow, tuple[FinishedRun, ...]]] = {}
    for row in plan.rows if plan else ():
        run = ledger.runs.get(row.id)
        if run.has(table.only) if run else not table.only:
            planned, runs = found.get(row.row, (row, ()))
            found[row.row] = (planned, runs if run is None else (*runs, run))
    return found


def _name(row: PlannedRow) -> str:
    return f"{row.label}, {row.group}" if row.group else row.label


def _best(lines: list[_Line], column: Column, *, by_group: bool) -> set[str]:
    """Names of rows that are ahead of all others that they compete with."""
    if column.better is None:
        return set()
    groups: dict[str, dict[str, Sample]] = {}
    for line in lines:
        sample = sample_of(line.runs, column.metric)
        if sample is not None:
            groups.setdefault(line.group if by_group else "", {})[line.name] = sample
    found = (clear_best(group, column.better) for group in groups.values())
    return {name for name in found if name is not None}


def _row(line: _Line, table: PaperTable, best: list[set[str]]) -> TableRow:
    cells = [
        _cell(line, column, line.name in names) for column, names in zip(table.columns, best, strict=True)
    ]
    printed = [
        _printed(value, column, line.row) for value, column in zip(line.printed, table.columns, strict=True)
    ]
    failed = sum(bool(run.failed) for run in line.runs)
    return TableRow(
        line.name, len(line.runs) - failed, failed, tuple(cells) if line.runs else (), tuple(printed)
    )


def _cell(line: _Line, column: Column, best: bool) -> Cell:
    sample = sample_of(line.runs, column.metric)
    if sample is None:
        return Cell(NOT_GIVEN)
    return Cell(column.write(sample.mean), spread(sample, column), sources(line.runs, column), best)


def _printed(value: Printed, column: Column, row: PaperRow | None) -> str:
    if value is None or isinstance(value, str):
        return value or NOT_GIVEN
    given = row.spread.get(column.metric) if row else None
    return column.write_printed(value) + (f" ± {given:g}" if given is not None else "")
