"""Metrics over training steps, as SVG charts for the page."""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from matplotlib.ticker import MaxNLocator

from lgq.plots.palette import Style, line_styles
from lgq.reporting.paper_tables import COLUMNS, Column, describe_basis, describe_bias, describe_seeds
from lgq.reporting.result_set import ResultSet, RunRecord, Sample, curve_of

WIDTH, HEIGHT = 480, 320
LEFT, RIGHT, TOP, BOTTOM = 58, 14, 12, 46
Points = dict[int, Sample]
"""A metric over seeds, by step."""

MARKERS = {
    "o": "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0Z",
    "s": "M-3.6-3.6H3.6V3.6H-3.6Z",
    "^": "M0-4.6L4.6 3.6H-4.6Z",
    "v": "M0 4.6L4.6-3.6H-4.6Z",
    "D": "M0-4.8L4.8 0L0 4.8L-4.8 0Z",
    "P": "M-1.6-4.6H1.6V-1.6H4.6V1.6H1.6V4.6H-1.6V1.6H-4.6V-1.6H-1.6Z",
    "X": "M-4.4-2.2L-2.2-4.4L0-2.2L2.2-4.4L4.4-2.2L2.2 0L4.4 2.2L2.2 4.4L0 2.2L-2.2 4.4L-4.4 2.2L-2.2 0Z",
    "h": "M0-4.8L4.2-2.4V2.4L0 4.8L-4.2 2.4V-2.4Z",
    "<": "M-4.6 0L3.6-4.6V4.6Z",
    ">": "M4.6 0L-3.6-4.6V4.6Z",
    "*": "M0-5.4L1.4-1.9L5.1-1.7L2.3.7L3.2 4.4L0 2.4L-3.2 4.4L-2.3.7L-5.1-1.7L-1.4-1.9Z",
}
"""Outlines of the markers of `lgq.plots.palette`, as SVG paths around 0 0."""
_NORMS = ("norm_correlation", "dead_norm_max", "live_norm_min")


class Line(NamedTuple):
    """A row's line in a chart, in SVG coordinates."""

    name: str
    means: list[tuple[float, float]]
    band: list[tuple[float, float]]
    """Outline of the band, one sample standard deviation to either side; empty with one seed."""
    last: str
    """The last value, as text."""
    style: Style


class Chart(NamedTuple):
    """One metric over training steps."""

    title: str
    lines: list[Line]
    x_ticks: dict[str, float]
    """Positions by label."""
    y_ticks: dict[str, float]
    about: str
    """The metric in words."""
    basis: str
    """On how many seeds and images the lines stand."""


class RowCurve(NamedTuple):
    """A metric of a row over training steps."""

    runs: list[RunRecord]
    points: Points


def charts_of(results: ResultSet, experiment: str) -> dict[str, list[Chart]]:
    """Charts by group of rows: PSNR, rFID (or l1 without it), utilization, and norms for `logits`."""
    charts: dict[str, list[Chart]] = {}
    for group in dict.fromkeys(row.group for row in results.plans[experiment].rows):
        styles = row_styles(results, experiment, group)
        loss = "rfid" if over_steps(results, experiment, group, "rfid") else "l1"
        for metric in ("psnr", loss, "utilization", *(_NORMS if experiment == "logits" else ())):
            if lines := over_steps(results, experiment, group, metric):
                charts.setdefault(group, []).append(_chart(COLUMNS[metric], lines, styles))
    return charts


def over_steps(results: ResultSet, experiment: str, group: str, metric: str) -> dict[str, RowCurve]:
    """The metric of each row, by label, at the steps that its finished runs share."""
    rows = [(row.label, runs) for row, runs in results.rows(experiment) if row.group == group]
    return {label: RowCurve(runs, points) for label, runs in rows if (points := curve_of(runs, metric))}


def row_styles(results: ResultSet, experiment: str, group: str) -> dict[str, Style]:
    """The style of each row, by label; a quantizer has the same one in all charts of the results."""
    rows = {row.label: runs for row, runs in results.rows(experiment) if runs and row.group == group}
    names = [str(runs[0].setting("quantizer") or label) for label, runs in rows.items()]
    return dict(zip(rows, line_styles(names, results.quantizers), strict=True))


def _chart(column: Column, curves: dict[str, RowCurve], styles: dict[str, Style]) -> Chart:
    bands = {
        name: {step: band_of(sample, column) for step, sample in curve.points.items()}
        for name, curve in curves.items()
    }
    values = [value for band in bands.values() for values in band.values() for value in values]
    low, high = (0.0, 100.0) if column.metric == "utilization" else (min(values), max(values))
    last_step = max(step for curve in curves.values() for step in curve.points)
    x = _axis(0, last_step, LEFT, WIDTH - RIGHT)
    y = _axis(low, high, HEIGHT - BOTTOM, TOP)
    drawn = []
    for name, curve in curves.items():
        lower, means, upper = ([(x(s), y(v[i])) for s, v in bands[name].items()] for i in range(3))
        has_band = any(sample.std for sample in curve.points.values())
        last = column.write_sample(curve.points[max(curve.points)])
        drawn.append(Line(name, means, upper + lower[::-1] if has_band else [], last, styles[name]))
    x_ticks = {f"{value:,g}": x(value) for value in round_values(0, last_step, 4)}
    y_ticks = {f"{value:,g}": y(value) for value in round_values(low, high, 6)}
    samples = [sample for curve in curves.values() for sample in curve.points.values()]
    seeds = describe_seeds([len(sample.values) for sample in samples])
    runs = [run for curve in curves.values() for run in curve.runs]
    on = "rfid validation" if column.metric == "rfid" else "validation"
    images, bias = describe_basis(runs, on), describe_bias(runs, replace(column, on=on))
    basis = "; ".join(filter(None, (images, f"{seeds} per line", bias)))
    return Chart(column.heading, drawn, x_ticks, y_ticks, column.tooltip, basis)


def band_of(sample: Sample, column: Column) -> tuple[float, float, float]:
    """The mean between one standard deviation below and above it, in the unit of the column."""
    mean, std, factor = sample.mean, sample.std or 0, column.factor
    return (mean - std) * factor, mean * factor, (mean + std) * factor


def _axis(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    """Map from values to positions along one direction of a chart."""

    def position(value: float) -> float:
        share = (value - low) / (high - low) if high > low else 0.5
        return round(start + min(1.0, max(0.0, share)) * (end - start), 1)

    return position


def round_values(low: float, high: float, most: int) -> list[float]:
    """Evenly spaced values of few digits within [low, high], at most `most` + 1 of them."""
    locator = MaxNLocator(most, steps=[1, 2, 2.5, 5, 10], min_n_ticks=1)
    return [float(value) for value in locator.tick_values(low, high) if low <= value <= high] or [low]
