"""Tables of the report: our runs over seeds beside the paper's figures, seed-by-seed differences, all runs.

for table in all_tables(read_result_set("results")):
    table.spec.title, [(row.name, [cell.mean for cell in row.ours]) for row in table.rows]
"""

import json
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from lgq.experiments.results_directory import Plan, PlannedRow
from lgq.reporting.result_set import Better, ResultSet, RunRecord, Sample, Settings, clear_best, sample_of

NOT_GIVEN = "-"
PrintedValue = float | str
"""A number that the paper prints, or words in its place; empty where it prints nothing."""

_ARROWS = {"higher": "↑", "lower": "↓", None: ""}
_MORE_ROWS_THAN_THE_PAPER = {"codebook-size"}
"""Experiments that get a table of their own beside the paper's."""
_PAIRED_EXPERIMENTS = ("seeds", "comparison")
"""Experiments to compare seed by seed; the one with the most seeds first."""


@dataclass(frozen=True)
class Column:
    """A metric as a column shows it: its title, its better direction, its digits."""

    metric: str
    """Name for `RunRecord.value`."""
    title: str
    better: Better | None = None
    digits: int = 2
    """Digits after the point."""
    factor: float = 1.0
    """Factor from our records to the shown unit: 100 for a share in per cent."""

    @property
    def heading(self) -> str:
        return f"{self.title} {_ARROWS[self.better]}".strip()

    @property
    def direction(self) -> str:
        """The arrow in words, for screen readers."""
        return f"{self.better} is better" if self.better else ""

    def write(self, value: float) -> str:
        """A value of our records, in the unit of the column."""
        return self.write_printed(value * self.factor)

    def write_printed(self, value: float) -> str:
        """A value that is already in the unit of the column."""
        return f"{value:,.{self.digits}f}"

    def spread(self, sample: Sample) -> str:
        """± the sample standard deviation; empty for a single seed."""
        return "" if sample.std is None else f"± {self.write(sample.std)}"

    def write_sample(self, sample: Sample) -> str:
        """Mean ± sample standard deviation."""
        return f"{self.write(sample.mean)} {self.spread(sample)}".rstrip()


@cache
def read_paper() -> dict[str, Any]:
    """Contents of paper.toml: tables, row selections and claims of the LGQ paper."""
    return tomllib.loads((Path(__file__).parent / "paper.toml").read_text("utf-8"))


COLUMNS = {metric: Column(metric, **entry) for metric, entry in read_paper()["columns"].items()}
"""Columns by metric."""
RECONSTRUCTION = ("psnr", "ssim", "lpips", "reconstruction_loss", "rfid", "utilization", "perplexity")
_PAIRED = tuple(COLUMNS[name] for name in RECONSTRUCTION if name != "reconstruction_loss")


@dataclass(frozen=True)
class PaperRow:
    """A row of a table in the paper."""

    name: str
    settings: Settings
    """Settings of our runs that are this row."""
    values: Sequence[PrintedValue]
    """Printed figures, one per column."""
    spread: Mapping[str, float] = field(default_factory=dict)
    """Standard deviations that the paper gives, by metric."""


@dataclass(frozen=True, kw_only=True)
class TableSpec:
    """What a table shows: the figures of a paper's table beside our experiment, or an experiment alone."""

    title: str
    about: str
    experiment: str
    columns: tuple[Column, ...]
    label: str = ""
    """Label in the paper's source, or the section whose text has the figures; empty for our own tables."""
    rows: tuple[PaperRow, ...] = ()
    only: Settings = field(default_factory=dict)
    """Settings that our runs must have to be shown here."""
    by_group: bool = False
    """Whether rows compete for the best value only within their group of the plan."""


@cache
def table_specs() -> dict[str, TableSpec]:
    """Tables of the paper by label, in the order of the page."""
    specs = {}
    for entry in read_paper()["tables"]:
        columns = tuple(COLUMNS[metric] for metric in entry["columns"])
        rows = tuple(PaperRow(**row | {"settings": flat_settings(row["settings"])}) for row in entry["rows"])
        only = flat_settings(entry.get("only"))
        specs[entry["label"]] = TableSpec(**entry | {"columns": columns, "rows": rows, "only": only})
    return specs


def flat_settings(settings: Any, prefix: str = "") -> dict[str, Any]:
    """Nested settings by their dotted names."""
    flat: dict[str, Any] = {}
    for name, value in settings.items() if isinstance(settings, dict) else ():
        nested = isinstance(value, dict) and value
        flat |= flat_settings(value, f"{prefix}{name}.") if nested else {f"{prefix}{name}": value}
    return flat


class Cell(NamedTuple):
    """A number of a table with the runs behind it."""

    mean: str
    """The mean over seeds, or `NOT_GIVEN`."""
    spread: str = ""
    """± the sample standard deviation; empty for a single seed."""
    sources: tuple[tuple[RunRecord, str], ...] = ()
    """Runs behind the number, each with its own value."""
    best: bool = False
    worse: bool = False
    """Whether a difference is for the worse, with an interval that excludes 0."""


class TableRow(NamedTuple):
    """A row as the page shows it."""

    name: str
    seeds: int
    """Number of finished training seeds."""
    failed: int
    """Number of seeds whose training diverged."""
    ours: tuple[Cell, ...]
    """One cell per column; empty where nothing was run."""
    paper: tuple[str, ...]


class Table(NamedTuple):
    """A table as the page shows it."""

    spec: TableSpec
    anchor: str
    rows: tuple[TableRow, ...]
    state: str
    """How many of the planned runs are finished."""
    has_seeds: bool = True
    """Whether rows have training seeds; timings have none."""


class _Line(NamedTuple):
    """A row before it is formatted."""

    name: str
    group: str
    codebook_size: float
    """Rows are sorted by it; 0 where the table does not vary it."""
    runs: tuple[RunRecord, ...]
    paper: PaperRow | None
    """The paper's row; None for a row that only we have."""


def all_tables(results: ResultSet) -> list[Table]:
    """The paper's tables, those of our other experiments, and the differences seed by seed."""
    paper = table_specs().values()
    covered = {table.experiment for table in paper} - _MORE_ROWS_THAN_THE_PAPER
    own = [own_table(results, plan) for name, plan in results.plans.items() if name not in covered]
    pairs = paired_table(results)
    return [build_table(results, table) for table in paper] + own + ([pairs] if pairs else [])


def build_table(results: ResultSet, spec: TableSpec) -> Table:
    """The paper's rows beside our runs with the same settings, and the rows that only we have."""
    plan = results.plans.get(spec.experiment)
    planned = {row.id for row in plan.rows} if plan else set()
    has_seeds = not plan or any(row.kind != "cost" for row in plan.rows)
    lines = _lines(results, spec)
    best = [_best(lines, column, by_group=spec.by_group) if has_seeds else set() for column in spec.columns]
    slug = (spec.label or spec.experiment).replace(":", "-").replace(" ", "-").replace(",", "")
    return Table(
        spec,
        f"table-{slug}",
        tuple(_row(line, spec, best) for line in lines),
        f"{len(planned & results.runs.keys())} of {len(planned)} runs" if plan else "not run",
        has_seeds,
    )


def own_table(results: ResultSet, plan: Plan) -> Table:
    """An experiment without a table in the paper: all rows, with the columns that some run has."""
    runs = results.select(plan.experiment)
    measured = tuple(name for name in (*RECONSTRUCTION, "l1") if sample_of(runs, name))
    spec = TableSpec(
        title=plan.title,
        about=plan.about,
        experiment=plan.experiment,
        columns=tuple(COLUMNS[name] for name in measured or RECONSTRUCTION),
        by_group=True,
    )
    return build_table(results, spec)


def _lines(results: ResultSet, spec: TableSpec) -> list[_Line]:
    ours = _our_rows(results, spec)
    lines, matched = [], set[str]()
    for row in spec.rows:
        name = next((name for name, (_, runs) in ours.items() if runs and runs[0].has(row.settings)), None)
        planned, runs = ours[name] if name else (None, ())
        matched |= {name} if name else set()
        size = float(row.settings.get("codebook_size", 0))
        lines.append(_Line(row.name, planned.group if planned else "", size, runs, row))
    missing = [line.name for line in lines if not line.runs]
    sized = any("codebook_size" in row.settings for row in spec.rows)
    for name, (planned, runs) in ours.items():
        shown = f"{planned.label}, {planned.group}" if planned.group else planned.label
        has_paper_row = not runs and any(row_name.startswith(shown) for row_name in missing)
        if name not in matched and not has_paper_row:
            size = float(runs[0].setting("codebook_size") or 0) if runs and sized else 0.0
            lines.append(_Line(shown, planned.group, size, runs, None))
    return sorted(lines, key=lambda line: line.codebook_size)


def _our_rows(results: ResultSet, spec: TableSpec) -> dict[str, tuple[PlannedRow, tuple[RunRecord, ...]]]:
    """Rows of the plan by their short names, with the finished runs of each."""
    plan = results.plans.get(spec.experiment)
    rows: dict[str, tuple[PlannedRow, tuple[RunRecord, ...]]] = {}
    for row in plan.rows if plan else ():
        run = results.runs.get(row.id)
        if run.has(spec.only) if run else not spec.only:
            planned, runs = rows.get(row.row, (row, ()))
            rows[row.row] = (planned, runs if run is None else (*runs, run))
    return rows


def _best(lines: list[_Line], column: Column, *, by_group: bool) -> set[str]:
    """Names of rows that are ahead of all rows they compete with."""
    if column.better is None:
        return set()
    groups: dict[str, dict[str, Sample]] = {}
    for line in lines:
        sample = sample_of(line.runs, column.metric)
        if sample is not None:
            groups.setdefault(line.group if by_group else "", {})[line.name] = sample
    best = (clear_best(group, column.better) for group in groups.values())
    return {name for name in best if name is not None}


def _row(line: _Line, spec: TableSpec, best: list[set[str]]) -> TableRow:
    values = line.paper.values if line.paper else [""] * len(spec.columns)
    by_column = list(zip(spec.columns, best, values, strict=True))
    printed = tuple(_printed(value, column, line.paper) for column, _, value in by_column)
    ours = tuple(_cell(line, column, line.name in names) for column, names, _ in by_column)
    failed = sum(bool(run.failed) for run in line.runs)
    return TableRow(line.name, len(line.runs) - failed, failed, ours if line.runs else (), printed)


def _cell(line: _Line, column: Column, best: bool) -> Cell:
    sample = sample_of(line.runs, column.metric)
    if sample is None:
        return Cell(NOT_GIVEN)
    return Cell(column.write(sample.mean), column.spread(sample), _sources(line.runs, column), best)


def _printed(value: PrintedValue, column: Column, row: PaperRow | None) -> str:
    if isinstance(value, str):
        return value or NOT_GIVEN
    std = row.spread.get(column.metric) if row else None
    return column.write_printed(value) + (f" ± {std:g}" if std is not None else "")


def _sources(runs: Iterable[RunRecord], column: Column) -> tuple[tuple[RunRecord, str], ...]:
    values = ((run, run.value(column.metric)) for run in runs)
    return tuple((run, column.write(value)) for run, value in values if value is not None)


_BySeed = dict[int, RunRecord]


def paired_table(results: ResultSet) -> Table | None:
    """LGQ against every other quantizer, seed by seed; None where LGQ shares two seeds with none.

    Runs with the same seed share the initial networks and the order and crops of the images, so their
    difference is due to the quantizers. Its interval can exclude 0 where the intervals of the two rows,
    which include the luck of each seed, still touch.
    """
    name = next((name for name in _PAIRED_EXPERIMENTS if name in results.plans), "")
    by_seed: dict[str, _BySeed] = {
        label: {run.seed: run for run in runs if run.seed is not None and not run.failed}
        for label, runs in results.by_row(name).items()
    }
    lgq_label = next((label for label, runs in by_seed.items() if _are_lgq(runs)), None)
    lgq = by_seed.pop(lgq_label) if lgq_label is not None else {}
    rows = [_paired_row(label, lgq, runs) for label, runs in by_seed.items() if len(lgq.keys() & runs) > 1]
    if not rows:
        return None
    finished = len(lgq) + sum(map(len, by_seed.values()))
    spec = TableSpec(
        title="LGQ against each other quantizer, seed by seed",
        about="LGQ minus the other quantizer: the mean over the seeds that both have, with the t-based 95% "
        "interval of the difference. Bold where the interval excludes 0: green where LGQ is better, red "
        "where it is worse.",
        experiment=name,
        columns=_PAIRED,
    )
    return Table(spec, "table-pairs", tuple(rows), f"{finished} of {len(results.plans[name].rows)} runs")


def _are_lgq(runs: _BySeed) -> bool:
    return bool(runs) and all(run.has({"quantizer": "lgq"}) for run in runs.values())


def _paired_row(label: str, lgq: _BySeed, baseline: _BySeed) -> TableRow:
    pairs = [(lgq[seed], baseline[seed]) for seed in sorted(lgq.keys() & baseline)]
    cells = tuple(_paired_cell(pairs, column) for column in _PAIRED)
    return TableRow(f"against {label}", seeds=len(pairs), failed=0, ours=cells, paper=())


def _paired_cell(pairs: list[tuple[RunRecord, RunRecord]], column: Column) -> Cell:
    values = [(lgq.value(column.metric), baseline.value(column.metric)) for lgq, baseline in pairs]
    difference = Sample(tuple(a - b for a, b in values if a is not None and b is not None))
    if difference.interval is None:
        return Cell(NOT_GIVEN)
    low, high = difference.interval
    above, below = low > 0, high < 0
    return Cell(
        _signed(difference.mean, column),
        f"{_signed(low, column)} to {_signed(high, column)}",
        _sources([run for pair in pairs for run in pair], column),
        best=above if column.better == "higher" else below,
        worse=below if column.better == "higher" else above,
    )


def _signed(value: float, column: Column) -> str:
    written = column.write(value)
    return written if written.startswith("-") else f"+{written}"


class RunLine(NamedTuple):
    """A run in the table of all runs."""

    run: RunRecord
    experiments: str
    settings: str
    """Settings that differ between runs of its kind."""
    steps: str
    minutes: str
    parameters: str
    environment: str
    """Number of its environment."""


class RunsTable(NamedTuple):
    """All runs behind a report: what differs between their settings, what is shared, where they ran."""

    lines: tuple[RunLine, ...]
    shared: dict[str, dict[str, str]]
    """Settings that all runs of a kind share, by kind."""
    environments: dict[str, dict[str, str]]
    """Environments by number."""


def runs_table(results: ResultSet) -> RunsTable:
    """All runs, tokenizers first."""
    runs = sorted(results.runs.values(), key=lambda run: (run.kind != "tokenizer", run.kind, run.id))
    settings = {run.id: _as_text(run.record.get("config")) for run in runs}
    shared = {
        kind: _shared([settings[run.id] for run in runs if run.kind == kind])
        for kind in dict.fromkeys(run.kind for run in runs)
    }
    distinct = sorted({_environment(run) for run in runs})
    numbers = {environment: str(number) for number, environment in enumerate(distinct, 1)}
    lines = tuple(
        _run_line(results, run, settings[run.id], shared[run.kind], numbers[_environment(run)])
        for run in runs
    )
    return RunsTable(lines, shared, {number: json.loads(text) for text, number in numbers.items()})


def _run_line(
    results: ResultSet, run: RunRecord, settings: dict[str, str], shared: dict[str, str], environment: str
) -> RunLine:
    differing = {
        name.removeprefix("quantizer_options."): value
        for name, value in settings.items()
        if name not in shared and name.split(".")[-1] != "seed" and value != "null"
    }
    seconds, steps, parameters = (run.record.get(name) for name in ("seconds", "steps", "parameters"))
    total = sum(n for n in parameters.values() if isinstance(n, int)) if isinstance(parameters, dict) else 0
    return RunLine(
        run,
        experiments=", ".join(
            name for name, plan in results.plans.items() if run.id in {row.id for row in plan.rows}
        ),
        settings=", ".join(f"{name} = {value}" for name, value in differing.items()),
        steps=f"{steps:,}" if isinstance(steps, int) else "",
        minutes=f"{seconds / 60:,.1f}" if isinstance(seconds, int | float) else "",
        parameters=f"{total:,}" if total else "",
        environment=environment,
    )


def _as_text(settings: Any) -> dict[str, str]:
    """Settings by their dotted names, as text."""
    flat = flat_settings(settings)
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in flat.items()}


def _shared(settings: list[dict[str, str]]) -> dict[str, str]:
    """Settings that are equal in all of them."""
    first = settings[0]
    return {name: value for name, value in first.items() if all(run.get(name) == value for run in settings)}


def _environment(run: RunRecord) -> str:
    """Environment of a run without its seed, as text that is equal for equal environments."""
    flat = _as_text(run.record.get("environment"))
    return json.dumps({name: value for name, value in sorted(flat.items()) if name != "seed"})
