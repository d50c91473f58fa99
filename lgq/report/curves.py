"""Charts of a metric over steps, a line for each row of an experiment with a band over its seeds.

They are plain numbers, which the page draws as SVG in its own colours, light or dark.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from lgq.report.columns import L1, NORMS_OVER_STEPS, PSNR, RFID, USED, Column
from lgq.report.intervals import Sample
from lgq.report.ledger import Ledger
from lgq.report.tables import written

WIDTH, HEIGHT = 480, 300
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 10, 38
COLOURS = 8
"""That the page's style has; lines beyond are dashed."""
Points = dict[int, Sample]


@dataclass(frozen=True)
class Tick:
    at: float
    text: str


@dataclass(frozen=True)
class Line:
    name: str
    colour: int
    dashed: bool
    path: str
    """Of the means, in SVG's terms."""
    band: str
    """Around it, one sample standard deviation to either side; empty of one seed."""
    marks: tuple[tuple[float, float], ...]
    """Places of a single validation, which has no line."""
    last: str


@dataclass(frozen=True)
class Chart:
    title: str
    lines: tuple[Line, ...]
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]

    @property
    def alternative(self) -> str:
        """The chart in words."""
        ends = "; ".join(f"{line.name} {line.last}" for line in self.lines)
        return f"{self.title} over training steps. At the end: {ends}."


def charts_of(ledger: Ledger, experiment: str) -> dict[str, list[Chart]]:
    """By group of rows: PSNR, rFID or else l1, utilization, and in `logits` norms, where runs took them."""
    groups = dict.fromkeys(row.group for row in ledger.plans[experiment].rows)
    found = {group: _charts(ledger, experiment, group) for group in groups}
    return {group: charts for group, charts in found.items() if charts}


def _charts(ledger: Ledger, experiment: str, group: str) -> list[Chart]:
    more = NORMS_OVER_STEPS if experiment == "logits" else ()
    taken = {
        column: over_steps(ledger, experiment, group, column) for column in (PSNR, RFID, L1, USED, *more)
    }
    shown = (PSNR, RFID if taken[RFID] else L1, USED, *more)
    return [_chart(column, taken[column]) for column in shown if taken[column]]


def over_steps(ledger: Ledger, experiment: str, group: str, column: Column) -> dict[str, Points]:
    """By row, what all its finished runs took at the same steps."""
    rows: dict[str, list[str]] = {}
    for row in ledger.plans[experiment].rows:
        if row.group == group and row.id in ledger.runs:
            rows.setdefault(row.label, []).append(row.id)
    found = {name: _over_seeds(ledger, ids, column.metric) for name, ids in rows.items()}
    return {name: points for name, points in found.items() if points}


def _over_seeds(ledger: Ledger, ids: Sequence[str], metric: str) -> Points:
    curves = [curve for id in ids if (curve := ledger.runs[id].curve(metric))]
    steps = sorted(set.intersection(*map(set, curves))) if curves else []
    return {step: Sample(tuple(curve[step] for curve in curves)) for step in steps}


def _chart(column: Column, lines: dict[str, Points]) -> Chart:
    samples = [sample for points in lines.values() for sample in points.values()]
    low = min(sample.mean - (sample.std or 0) for sample in samples) * column.factor
    high = max(sample.mean + (sample.std or 0) for sample in samples) * column.factor
    if column is USED:
        low, high = 0.0, 100.0
    x = _Axis(0, max(step for points in lines.values() for step in points), LEFT, WIDTH - RIGHT)
    y = _Axis(low, high, HEIGHT - BOTTOM, TOP)
    drawn = (_line(i, name, points, column, x, y) for i, (name, points) in enumerate(lines.items()))
    return Chart(column.heading, tuple(drawn), x.ticks(4), y.ticks(6))


@dataclass(frozen=True)
class _Axis:
    """From values to places, along one direction of the picture."""

    low: float
    high: float
    begin: float
    end: float

    def at(self, value: float) -> float:
        span = self.high - self.low
        share = (value - self.low) / span if span > 0 else 0.5
        return round(self.begin + min(1.0, max(0.0, share)) * (self.end - self.begin), 1)

    def ticks(self, most: int) -> tuple[Tick, ...]:
        return tuple(Tick(self.at(value), f"{value:,g}") for value in round_values(self.low, self.high, most))


def round_values(low: float, high: float, most: int) -> list[float]:
    """Values of few digits between two others, evenly spaced, no more than `most` and one."""
    if not high > low:
        return [low]
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(size * power for size in (1, 2, 2.5, 5, 10) if size * power >= rough * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{number * step:.12g}") for number in range(first, last + 1)]


def _line(i: int, name: str, points: Points, column: Column, x: _Axis, y: _Axis) -> Line:
    def place(step: int, shift: float) -> tuple[float, float]:
        sample = points[step]
        return x.at(step), y.at((sample.mean + shift * (sample.std or 0)) * column.factor)

    means = [place(step, 0) for step in points]
    edges = [place(step, 1) for step in points] + [place(step, -1) for step in reversed(points)]
    has_band = any(sample.std for sample in points.values())
    return Line(
        name=name,
        colour=i % COLOURS,
        dashed=i >= COLOURS,
        path=_path(means),
        band=f"{_path(edges)}Z" if has_band else "",
        marks=tuple(means) if len(means) == 1 else (),
        last=written(points[max(points)], column),
    )


def _path(places: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:g} {y:g}" for x, y in places)
