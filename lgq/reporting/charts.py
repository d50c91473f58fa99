"""Metrics over training steps: SVG charts for the page, and the README's table and picture."""

from collections.abc import Callable
from typing import NamedTuple

from matplotlib.ticker import MaxNLocator

from lgq.plots.canvas import QUALITATIVE, figure_png, panel_figure
from lgq.reporting.paper_tables import COLUMNS, Column, build_table, table_specs
from lgq.reporting.result_set import ResultSet, Sample, curve_of

WIDTH, HEIGHT = 480, 300
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 10, 38
Points = dict[int, Sample]
"""A metric over seeds, by step."""

_NORMS = ("norm_correlation", "dead_norm_max", "live_norm_min")
_HEADLINE_COLUMNS = ("psnr", "ssim", "lpips", "rfid", "utilization", "perplexity")
_HEADLINE_CURVES = ("psnr", "rfid", "utilization")


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
        loss = "rfid" if _over_steps(results, experiment, group, "rfid") else "l1"
        for metric in ("psnr", loss, "utilization", *(_NORMS if experiment == "logits" else ())):
            if lines := _over_steps(results, experiment, group, metric):
                charts.setdefault(group, []).append(_chart(COLUMNS[metric], lines))
    return charts


def _over_steps(results: ResultSet, experiment: str, group: str, metric: str) -> dict[str, Points]:
    """The metric of each row, by label, at the steps that its finished runs share."""
    rows = [(row.label, runs) for row, runs in results.rows(experiment) if row.group == group]
    return {label: points for label, runs in rows if (points := curve_of(runs, metric))}


def _chart(column: Column, lines: dict[str, Points]) -> Chart:
    bands = {name: {step: _band(points[step], column) for step in points} for name, points in lines.items()}
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


def _band(sample: Sample, column: Column) -> tuple[float, float, float]:
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


def headline_table(results: ResultSet) -> str:
    """The comparison in Markdown: mean ± standard deviation over seeds, bold where clearly best."""
    table = build_table(results, table_specs()["tab:k16k"])
    columns = [COLUMNS[metric] for metric in _HEADLINE_COLUMNS]
    lines = [["quantizer", *(column.heading for column in columns)], ["---", *["---:"] * len(columns)]]
    for row in (row for row in table.rows if row.ours):
        cells = [row.ours[table.spec.columns.index(column)] for column in columns]
        texts = [(f"{cell.mean} {cell.spread}".rstrip(), cell.best) for cell in cells]
        lines.append([row.name, *(f"**{text}**" if best else text for text, best in texts)])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def headline_png(results: ResultSet) -> bytes:
    """PSNR, rFID and utilization of the comparison over steps: one line per quantizer, a band over seeds."""
    figure, panels = panel_figure(len(_HEADLINE_CURVES), (3.6, 3.2), columns=len(_HEADLINE_CURVES))
    for panel, metric in zip(panels, _HEADLINE_CURVES, strict=True):
        column, lines = COLUMNS[metric], _over_steps(results, "comparison", "", metric)
        for colour, (name, points) in zip(QUALITATIVE, lines.items(), strict=False):
            low, means, high = zip(*(_band(sample, column) for sample in points.values()), strict=True)
            steps = list(points)
            panel.plot(steps, means, color=colour, linewidth=2, marker="o", markersize=4, label=name)
            panel.fill_between(steps, low, high, color=colour, alpha=0.2, linewidth=0)
        panel.set_title(column.heading, loc="left")
        panel.set_xlabel("step")
        panel.xaxis.set_major_locator(MaxNLocator(5))
        if metric == "utilization":
            panel.set_ylim(0, 105)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", frameon=False, ncols=len(labels))
    return figure_png(figure)
