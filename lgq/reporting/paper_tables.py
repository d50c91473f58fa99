"""Tables of the report: our runs over seeds beside the paper's figures, differences by seed, all runs."""

import json
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from lgq.experiments.quantizer_alone import TEST_VECTORS_PER_CODE
from lgq.experiments.results_directory import Plan
from lgq.reporting.result_set import (
    Better,
    ResultSet,
    RunRecord,
    Sample,
    Settings,
    compare_samples,
    compare_with_zero,
    flat_settings,
    sample_of,
)

NOT_GIVEN = "-"
_BUSY_MARK = " *"
PrintedValue = float | str
"""A number that the paper prints, or words in its place; empty where it prints nothing."""

_ARROWS = {"higher": "↑", "lower": "↓", None: ""}
_MORE_ROWS_THAN_THE_PAPER = {"codebook-size"}
"""Experiments that get a table of their own beside the paper's."""
_PAIRED_EXPERIMENTS = ("seeds", "comparison")
"""Experiments to compare seed by seed; the one with the most seeds first. Older results have `seeds`."""
_OPTIONS_NOT_RECORDED = {
    ("quantizer_options", "{}"): "quantizer_options: those of its version of lgq, which recorded none"
}
"""Texts of settings in records from before all options were recorded."""
_LGQ = {"quantizer": "lgq"}
_OBJECTIVE = {"l1": "l1", "lpips": "LPIPS", "gan": "GAN"}
"""Terms of the objective by their names in the settings."""
_FRECHET = {"rfid", "gfid"}
_LEAST_FRECHET_IMAGES = 2_048
"""Number of Inception's features: with fewer images, their covariance is not of full rank."""


class Basis(NamedTuple):
    """What a number stands on: how many, and of what."""

    count: Callable[[RunRecord], Any]
    """Number in a record; None where it has none."""
    unit: str


BASES = {
    "images": Basis(lambda run: run.record.get("images"), "validation images"),
    "geometry": Basis(lambda run: run.record.get("geometry_images"), "validation images"),
    "use": Basis(lambda run: run.use_images, "validation images"),
    "validation": Basis(lambda run: run.validation_images(), "validation images"),
    "rfid validation": Basis(lambda run: run.validation_images("rfid"), "validation images"),
    "tokenizer": Basis(lambda run: run.tokenizer and run.tokenizer.record.get("images"), "validation images"),
    "tokenizer use": Basis(lambda run: run.tokenizer and run.tokenizer.use_images, "validation images"),
    "samples": Basis(lambda run: run.record.get("images"), "generated images per sampling seed"),
    "training": Basis(lambda run: run.setting("batch_size"), "training images per step"),
    "steps": Basis(lambda run: run.record.get("steps"), "training steps"),
    "vectors": Basis(lambda run: run.setting("tokens"), "vectors per step"),
    "recordings": Basis(lambda run: run.record.get("recordings"), "recordings"),
}
"""What columns are measured on, by their `on`."""


def describe_basis(runs: Iterable[RunRecord], on: str) -> str:
    """What the numbers of these runs stand on, such as "1,000 validation images"; empty where unknown."""
    basis, counted = BASES[on], list(runs)
    counts = [count for run in counted if isinstance(count := basis.count(run), int)]
    unit = basis.unit
    if all(run.evaluated_on_training_images for run in counted):
        unit = unit.replace("validation", "training")
    return f"{_span(counts)} {unit}" if counts else ""


def describe_settings(runs: Iterable[RunRecord]) -> str:
    """What all runs share, such as "K = 1,024, 64 × 64, 1,000 steps, l1"; for timings also the machine."""
    described = [_settings_in_words(run) for run in runs]
    by_setting = (set(words) for words in zip(*described, strict=True))
    return ", ".join(filter(None, (words.pop() for words in by_setting if len(words) == 1)))


def _settings_in_words(run: RunRecord) -> tuple[str, ...]:
    """K, image size, steps and objective; for a quantizer alone its vectors, for a timing the machine. Empty
    where the record has none."""
    alone = run.kind in ("gaussian", "latents")
    size, side, steps = (
        value if isinstance(value := run.setting(name), int) else None
        for name in ("codebook_size", "image_size", "steps" if alone else "loop.steps")
    )
    return (
        f"K = {size:,}" if size and size > 1 else "",
        f"{side} \N{MULTIPLICATION SIGN} {side}" if side else "",
        f"{steps:,} {'generator ' if run.kind == 'generator' else ''}steps" if steps else "",
        f"{run.setting('vectors'):,} vectors per step" if alone else "",
        f"learning rate {run.setting('learning_rate'):g}" if alone else "",
        f"{TEST_VECTORS_PER_CODE} test vectors per code" if run.kind == "gaussian" else "",
        " + ".join(name for key, name in _OBJECTIVE.items() if run.setting(f"loss.{key}")),
        f"timed on {_devices(run)}" if run.kind == "cost" and _devices(run) else "",
    )


def _devices(run: RunRecord) -> str:
    """Processor and number of threads, as the record names them."""
    environment = run.record.get("environment")
    devices = environment.get("devices") if isinstance(environment, dict) else None
    return ", ".join(map(str, devices)) if isinstance(devices, list) else ""


def describe_seeds(counts: Sequence[int]) -> str:
    """Numbers of training seeds in words, such as "1 to 3 training seeds"."""
    return f"{_span(counts)} training seed{'s' if max(counts) > 1 else ''}"


def _span(counts: Sequence[int]) -> str:
    """The number, or the smallest and the largest one."""
    low, high = min(counts), max(counts)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


@dataclass(frozen=True)
class Column:
    """A metric as a column shows it: its title, its unit, its better direction, its digits."""

    metric: str
    """Name for `RunRecord.value`."""
    title: str
    unit: str = ""
    better: Better | None = None
    digits: int = 2
    """Digits after the point."""
    factor: float = 1.0
    """Factor from our records to the shown unit: 100 for a share in per cent."""
    about: str = ""
    """The metric in words."""
    on: str = "images"
    """Name in `BASES` of what it is measured on."""
    absent: str = NOT_GIVEN
    """Words for a row that was measured during training and has no value."""

    @property
    def label(self) -> str:
        """Title and unit."""
        return f"{self.title}, {self.unit}" if self.unit else self.title

    @property
    def heading(self) -> str:
        """Title, unit, and an arrow in the better direction."""
        return f"{self.label} {_ARROWS[self.better]}".strip()

    @property
    def tooltip(self) -> str:
        """The metric in words, with its better direction."""
        return f"{self.about} {self.better.capitalize()} is better." if self.better else self.about

    def write(self, value: float, sign: str = "") -> str:
        """A value of our records, in the unit of the column; with its sign where `sign` is "+"."""
        return f"{value * self.factor:{sign},.{self.digits}f}"

    def spread(self, sample: Sample) -> str:
        """± the sample standard deviation; empty for a single seed."""
        return "" if sample.std is None else f"± {self.write(sample.std)}"

    def write_sample(self, sample: Sample) -> str:
        """Mean ± sample standard deviation."""
        return f"{self.write(sample.mean)} {self.spread(sample)}".rstrip()


def describe_bias(runs: Iterable[RunRecord], column: Column) -> str:
    """A warning where a Fréchet distance stands on too few images; empty where it does not."""
    counts = [count for run in runs if isinstance(count := BASES[column.on].count(run), int)]
    few = column.metric.split(".")[-1] in _FRECHET and counts and min(counts) < _LEAST_FRECHET_IMAGES
    return f"{column.title} is biased below {_LEAST_FRECHET_IMAGES:,} images" if few else ""


def describe_resampling(runs: Iterable[RunRecord], column: Column) -> str:
    """How much a distance of features varies with the choice of the images; empty where it is unknown."""
    stds = [value for run in runs if (value := run.value(f"bootstrap_std.{column.metric}")) is not None]
    return f"{column.title} ± {column.write(median(stds))} over resamples of the images" if stds else ""


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
    source: str = ""
    """Table of the paper, or the section whose text has the figures; empty for our own tables."""
    basis: str = ""
    """On how many images and runs the paper's figures stand."""
    units: tuple[str, ...] = ()
    """The paper's headings of the columns, where its units are not ours; empty where they are."""
    rows: tuple[PaperRow, ...] = ()
    only: Settings = field(default_factory=dict)
    """Settings that our runs must have to be shown here."""
    by_group: bool = False
    """Whether rows compete for the best value only within their group of the plan."""

    @property
    def paper_headings(self) -> tuple[str, ...]:
        """Headings of the paper's columns."""
        return self.units or tuple(column.heading for column in self.columns)


@cache
def table_specs() -> dict[str, TableSpec]:
    """Tables of the paper by their source, in the order of the page."""
    specs = {}
    for entry in read_paper()["tables"]:
        columns = tuple(COLUMNS[metric] for metric in entry["columns"])
        rows = tuple(PaperRow(**row | {"settings": flat_settings(row["settings"])}) for row in entry["rows"])
        only = flat_settings(entry.get("only"))
        made = {"columns": columns, "rows": rows, "only": only, "units": tuple(entry.get("units", ()))}
        specs[entry["source"]] = TableSpec(**entry | made)
    return specs


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
    basis: str
    """On how many seeds and images our numbers stand."""
    has_seeds: bool = True
    """Whether rows have training seeds; timings have none."""

    @property
    def was_run(self) -> bool:
        """Whether some row has a finished run."""
        return any(row.ours for row in self.rows)


class _Line(NamedTuple):
    """A row before it is formatted."""

    name: str
    group: str
    codebook_size: float
    """Rows are sorted by it; 0 where the table does not vary it."""
    runs: Sequence[RunRecord]
    paper: PaperRow | None = None
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
    columns = [_column(lines, column, by_group=spec.by_group) for column in spec.columns]
    rows = []
    for i, line in enumerate(lines):
        values = line.paper.values if line.paper else [""] * len(columns)
        printed = tuple(map(_printed, values, spec.columns, [line.paper] * len(columns)))
        failed = sum(bool(run.failed) for run in line.runs)
        ours = tuple(column[i] for column in columns) if line.runs else ()
        rows.append(TableRow(line.name, len(line.runs) - failed, failed, ours, printed))
    finished = len(planned & results.runs.keys())
    state = f"{finished} of {len(planned)} runs are finished" if plan else "not run"
    runs = [run for line in lines for run in line.runs]
    basis = _basis(runs, spec.columns, [row.seeds for row in rows if row.ours] if has_seeds else [])
    anchor = f"from-{slug(spec.source or f'experiment {spec.experiment}')}"
    return Table(spec, anchor, tuple(rows), state, basis, has_seeds)


def slug(text: str) -> str:
    """The words of a text, joined by hyphens, for an id within the page."""
    return "-".join(re.findall(r"\w+", text.lower().replace("%", " percent")))


def describe_bases(runs: Sequence[RunRecord], columns: Iterable[Column]) -> list[str]:
    """What most columns stand on, and what the others do, with their titles."""
    by_basis: dict[str, list[str]] = {}
    for column in columns:
        measured = [run for run in runs if run.value(column.metric) is not None]
        if basis := describe_basis(measured or runs, column.on):
            by_basis.setdefault(basis, []).append(column.title)
    first, *others = sorted(by_basis, key=lambda basis: -len(by_basis[basis])) or [""]
    named = [f"{', '.join(dict.fromkeys(by_basis[basis]))}: {basis}" for basis in others]
    return [part for part in (first, *named) if part]


def _basis(runs: Sequence[RunRecord], columns: Sequence[Column], seeds: Sequence[int]) -> str:
    """On how many seeds and images the numbers of a table stand; columns that differ are named."""
    warnings = []
    for column in columns:
        measured = [run for run in runs if run.value(column.metric) is not None]
        warnings += [bias] if (bias := describe_bias(measured, column)) else []
        warnings += [spread] if (spread := describe_resampling(measured, column)) else []
    if any(run.busy for run in runs):
        warnings.append(f"{_BUSY_MARK.strip()} timed on a busy machine: it decides no claim")
    parts = [shared] if (shared := describe_settings(runs)) else []
    parts += [f"{describe_seeds(seeds)} per row"] if any(seeds) else []
    return "; ".join(parts + describe_bases(runs, columns) + warnings)


def own_table(results: ResultSet, plan: Plan) -> Table:
    """An experiment without a table in the paper: all rows, with the columns that some run has."""
    runs = results.select(plan.experiment)
    measured = tuple(
        name for name in (*RECONSTRUCTION, "l1", "mse", "snr", "spectral_distance") if sample_of(runs, name)
    )
    spec = TableSpec(
        title=plan.title,
        about=plan.about,
        experiment=plan.experiment,
        columns=tuple(COLUMNS[name] for name in measured or RECONSTRUCTION),
        by_group=True,
    )
    return build_table(results, spec)


def _lines(results: ResultSet, spec: TableSpec) -> list[_Line]:
    rows = results.rows(spec.experiment)
    shown = ((row, [run for run in runs if run.has(spec.only)]) for row, runs in rows)
    ours = [(row, runs) for row, runs in shown if runs or not spec.only]
    lines, matched = [], set[str]()
    for paper_row in spec.rows:
        matches = [(row, runs) for row, runs in ours if runs and runs[0].has(paper_row.settings)]
        matched |= {row.row for row, _ in matches[:1]}
        group, runs = (matches[0][0].group, matches[0][1]) if matches else ("", [])
        size = float(paper_row.settings.get("codebook_size", 0))
        lines.append(_Line(paper_row.name, group, size, runs, paper_row))
    missing = [line.name for line in lines if not line.runs]
    sized = any("codebook_size" in row.settings for row in spec.rows)
    for row, runs in ours:
        name = f"{row.label}, {row.group}" if row.group else row.label
        has_paper_row = not runs and any(paper_name.startswith(name) for paper_name in missing)
        if row.row not in matched and not has_paper_row:
            size = float(runs[0].setting("codebook_size") or 0) if runs and sized else 0.0
            lines.append(_Line(name, row.group, size, runs))
    return sorted(lines, key=lambda line: line.codebook_size)


def _column(lines: list[_Line], column: Column, *, by_group: bool) -> list[Cell]:
    """The cells of all lines; rows compete for the best value, or only those of a group."""
    samples = [sample_of(line.runs, column.metric) for line in lines]
    cells = []
    for line, sample in zip(lines, samples, strict=True):
        if sample is None:
            cells.append(Cell(column.absent if any(run.journal for run in line.runs) else NOT_GIVEN))
            continue
        ahead = [
            compare_samples(sample, rival, column.better) > 0
            for competitor, rival in zip(lines, samples, strict=True)
            if rival and rival is not sample and (not by_group or competitor.group == line.group)
        ]
        best = bool(ahead) and all(ahead) and not sample.timing
        sources = _sources(line.runs, column)
        mean = f"{column.write(sample.mean)}{_BUSY_MARK if sample.busy else ''}"
        cells.append(Cell(mean, column.spread(sample), sources, best))
    return cells


def _printed(value: PrintedValue, column: Column, row: PaperRow | None) -> str:
    if isinstance(value, str):
        return value or NOT_GIVEN
    std = row.spread.get(column.metric) if row else None
    return f"{value:,.{column.digits}f}" + (f" ± {std:g}" if std is not None else "")


def _sources(runs: Iterable[RunRecord], column: Column) -> tuple[tuple[RunRecord, str], ...]:
    values = ((run, run.value(column.metric)) for run in runs)
    return tuple((run, column.write(value)) for run, value in values if value is not None)


def paired_table(results: ResultSet) -> Table | None:
    """LGQ against every other quantizer, seed by seed; None where LGQ shares two seeds with none.

    Runs with the same seed share the initial networks and the order and crops of the images, so their
    difference is due to the quantizers. Its interval can exclude 0 where the intervals of the two rows,
    which include the luck of each seed, still touch.
    """
    name = next((name for name in _PAIRED_EXPERIMENTS if name in results.plans), "")
    lgq = _by_seed(results.select(name, _LGQ))
    by_label = {row.label: [run for run in runs if not run.has(_LGQ)] for row, runs in results.rows(name)}
    others = {label: _by_seed(runs) for label, runs in by_label.items()}
    rows = []
    for label, runs in others.items():
        pairs = [(lgq[seed], runs[seed]) for seed in sorted(lgq.keys() & runs)]
        if len(pairs) > 1:
            cells = tuple(_paired_cell(pairs, column) for column in _PAIRED)
            rows.append(TableRow(f"against {label}", len(pairs), failed=0, ours=cells, paper=()))
    if not rows:
        return None
    finished = len(lgq) + sum(map(len, others.values()))
    spec = TableSpec(
        title="LGQ against each other quantizer, seed by seed",
        about="LGQ minus the other quantizer: the mean over the seeds that both have, with the t-based 95% "
        "interval of the difference. Bold where the interval excludes 0: green where LGQ is better, red "
        "where it is worse. Differences that are the same for all seeds have no interval. The intervals are "
        "not corrected for the number of comparisons: of twenty without a difference, one may exclude 0 by "
        "chance.",
        experiment=name,
        columns=_PAIRED,
    )
    state = f"{finished} of {len(results.plans[name].rows)} runs are finished"
    basis = _basis(results.select(name), _PAIRED, [row.seeds for row in rows])
    return Table(spec, "pairs", tuple(rows), state, basis)


def _by_seed(runs: list[RunRecord]) -> dict[int, RunRecord]:
    return {run.seed: run for run in runs if run.seed is not None and not run.failed}


def _paired_cell(pairs: list[tuple[RunRecord, RunRecord]], column: Column) -> Cell:
    values = [(lgq.value(column.metric), baseline.value(column.metric)) for lgq, baseline in pairs]
    difference = Sample(tuple(a - b for a, b in values if a is not None and b is not None))
    if len(difference.values) < 2:
        return Cell(NOT_GIVEN)
    interval = "interval unknown"
    if difference.interval is not None:
        interval = " to ".join(column.write(bound, "+") for bound in difference.interval)
    lead = compare_with_zero(difference, column.better)
    return Cell(
        column.write(difference.mean, "+"),
        interval,
        _sources([run for pair in pairs for run in pair], column),
        best=lead > 0,
        worse=lead < 0,
    )


class RunLine(NamedTuple):
    """A run in the table of all runs."""

    run: RunRecord
    experiments: str
    quantizer: str
    settings: str
    """Settings that differ between runs of its kind with its quantizer."""
    steps: str
    minutes: str
    parameters: str
    environment: str
    """Number of its environment."""


class RunsTable(NamedTuple):
    """All runs behind a report: what differs between their settings, what is shared, where they ran."""

    lines: tuple[RunLine, ...]
    shared: dict[str, dict[str, str]]
    """Settings that all runs of a kind share, and further ones that those with one quantizer share."""
    environments: dict[str, dict[str, str]]
    """Environments by number."""
    commands: dict[str, list[str]]
    """Ids of the runs that each command made."""


def runs_table(results: ResultSet) -> RunsTable:
    """All runs, tokenizers first."""
    runs = sorted(results.runs.values(), key=lambda run: (run.kind != "tokenizer", run.kind, run.id))
    settings = {run.id: _as_text(run.record.get("config")) for run in runs}
    families = [(run.kind, str(run.setting("quantizer") or "")) for run in runs]
    shared: dict[tuple[str, str], dict[str, str]] = {}
    for run, (kind, quantizer) in zip(runs, families, strict=True):
        # A run that is alone in its family shares nothing within it.
        alone = families.count((kind, quantizer)) == 1
        for family in {(kind, ""), (kind, "" if alone else quantizer)}:
            so_far, own = shared.get(family, settings[run.id]), settings[run.id]
            shared[family] = {name: value for name, value in so_far.items() if own.get(name) == value}
    commands: dict[str, list[str]] = {}
    for run in runs:
        if command := results.command(run):
            commands.setdefault(command, []).append(run.id)
    distinct = sorted({_environment(run) for run in runs})
    numbers = {environment: str(number) for number, environment in enumerate(distinct, 1)}
    lines = []
    for run, (kind, quantizer) in zip(runs, families, strict=True):
        seconds, steps, parameters = (run.record.get(name) for name in ("seconds", "steps", "parameters"))
        counts = parameters.values() if isinstance(parameters, dict) else ()
        total = sum(count for count in counts if isinstance(count, int))
        differing = {
            name.removeprefix("quantizer_options."): value
            for name, value in settings[run.id].items()
            if name not in shared.get((kind, quantizer), shared[kind, ""])
            and name.split(".")[-1] != "seed"
            and value != "null"
        }
        plans = [name for name, plan in results.plans.items() if run.id in {row.id for row in plan.rows}]
        line = RunLine(
            run,
            experiments=", ".join(plans),
            quantizer=quantizer,
            settings=", ".join(
                _OPTIONS_NOT_RECORDED.get((name, value), f"{name} = {value}")
                for name, value in differing.items()
            ),
            steps=f"{steps:,}" if isinstance(steps, int) else "",
            minutes=f"{seconds / 60:,.1f}" if isinstance(seconds, int | float) else "",
            parameters=f"{total:,}" if total else "",
            environment=numbers[_environment(run)],
        )
        lines.append(line)
    environments = {number: json.loads(text) for text, number in numbers.items()}
    further = {
        f"{kind} run with {quantizer}" if quantizer else f"{kind} run": {
            name: value
            for name, value in common.items()
            if not (quantizer and shared[kind, ""].get(name) == value)
        }
        for (kind, quantizer), common in sorted(shared.items())
    }
    return RunsTable(tuple(lines), further, environments, commands)


def _as_text(settings: Any) -> dict[str, str]:
    """Settings by their dotted names, as text."""
    flat = flat_settings(settings)
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in flat.items()}


def _environment(run: RunRecord) -> str:
    """Environment of a run without its seed, as text that is equal for equal environments."""
    flat = _as_text(run.record.get("environment"))
    return json.dumps({name: value for name, value in sorted(flat.items()) if name != "seed"})
