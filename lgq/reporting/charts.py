"""Metrics over training steps, as SVG charts for the page."""

from collections.abc import Callable
from typing import NamedTuple

from matplotlib.ticker import MaxNLocator

from lgq.reporting.paper_tables import COLUMNS, Column
from lgq.reporting.result_set import ResultSet, Sample, curve_of

WIDTH, HEIGHT = 480, 300
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 10, 38
Points = dict[int, Sample]
"""A metric over seeds, by step."""

_NORMS = ("norm_correlation", "dead_norm_max", "live_norm_min")


class Line(NamedTuple):
    """A row's line in a chart, in SVG coordinates."""

    name: str
    means: list[tuple[float, float]]
    band: list[tuple[float, float]]
    """Outline of the band, one sample standard deviation to either side; empty with one seed."""
    last: str
    """The last value, as text."""


class Chart(NamedTuple):
    """One metric over training steps."""

    title: str
    lines: list[Line]
    x_ticks: dict[str, float]
    """Positions by label."""
    y_ticks: dict[str, float]


def charts_of(results: ResultSet, experiment: str) -> dict[str, list[Chart]]:
    """Charts by group of rows: PSNR, rFID (or l1 without it), utilization, and norms for `logits`."""
    charts: dict[str, list[Chart]] = {}
    for group in dict.fromkeys(row.group for row in results.plans[experiment].rows):
        loss = "rfid" if over_steps(results, experiment, group, "rfid") else "l1"
        for metric in ("psnr", loss, "utilization", *(_NORMS if experiment == "logits" else ())):
            if lines := over_steps(results, experiment, group, metric):
                charts.setdefault(group, []).append(_chart(COLUMNS[metric], lines))
    return charts


def over_steps(results: ResultSet, experiment: str, group: str, metric: str) -> dict[str, Points]:
    """The metric of each row, by label, at the steps that its finished runs share."""
    rows = [(row.label, runs) for row, runs in results.rows(experiment) if row.group == group]
    return {label: points for label, runs in rows if (points := curve_of(runs, metric))}


def _chart(column: Column, lines: dict[str, Points]) -> Chart:
    bands = {name: {step: band_of(points[step], column) for step in points} for name, points in lines.items()}
    values = [value for band in bands.values() for values in band.values() for value in values]
    low, high = (0.0, 100.0) if column.metric == "utilization" else (min(values), max(values))
    last_step = max(step for points in lines.values() for step in points)
    x = _axis(0, last_step, LEFT, WIDTH - RIGHT)
    y = _axis(low, high, HEIGHT - BOTTOM, TOP)
    drawn = []
    for name, points in lines.items():
        lower, means, upper = ([(x(s), y(v[i])) for s, v in bands[name].items()] for i in range(3))
        has_band = any(sample.std for sample in points.values())
        last = column.write_sample(points[max(points)])
        drawn.append(Line(name, means, upper + lower[::-1] if has_band else [], last))
    x_ticks = {f"{value:,g}": x(value) for value in round_values(0, last_step, 4)}
    y_ticks = {f"{value:,g}": y(value) for value in round_values(low, high, 6)}
    return Chart(column.heading, drawn, x_ticks, y_ticks)


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
