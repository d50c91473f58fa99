"""Training curves and the histogram of code usage, as PNG.   k = codes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from jaxtyping import Int
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter
from torch import Tensor

from lgq.checks import require_at_least
from lgq.errors import LGQError
from lgq.plots.canvas import BLUE, DOTS_PER_INCH, GREEN, GRID, ORANGE, PURPLE, SHADE, figure_png

Record = dict[str, Any]
"""A line of metrics.jsonl: step, split, values."""


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One value of the records over the training steps, drawn in its own panel."""

    title: str
    split: Literal["train", "validation"]
    value: str
    """Name of the value in the records."""
    colour: str
    share: bool = False
    """Whether the value is a share from 0 to 1, shown in per cent."""


CURVES = (
    Curve(title="Training loss", split="train", value="loss", colour=BLUE),
    Curve(title="Held-out PSNR (dB)", split="validation", value="psnr", colour=ORANGE),
    Curve(
        title="Codes used on held-out images",
        split="validation",
        value="utilization",
        colour=GREEN,
        share=True,
    ),
    Curve(title="Temperature of the assignment, tau", split="train", value="tau", colour=PURPLE),
)


def training_curves(records: Sequence[Record], curves: Sequence[Curve] = CURVES) -> bytes:
    """Draw one panel per curve; curves without values in the records are left out."""
    points = {curve: _points(records, curve) for curve in curves}
    shown = [curve for curve in curves if points[curve]]
    if not shown:
        wanted = ", ".join(curve.value for curve in curves)
        raise LGQError(f"none of {len(records)} records has a value of {wanted}: train for some steps first.")

    def draw(axes: Sequence[Axes]) -> None:
        for curve, panel in zip(shown, axes, strict=True):
            _draw_curve(panel, curve, points[curve])

    return panels_png(draw, panels=len(shown), size=(5.2, 3.2))


def usage_histogram(counts: Int[Tensor, " k"], *, caption: str = "") -> bytes:
    """Draw the frequency of each code, the most frequent first, beside a uniform distribution."""
    require_at_least(1, codes=len(counts), tokens=int(counts.sum()))
    ordered = counts.detach().cpu().sort(descending=True).values
    frequencies = (ordered.double() / ordered.sum()).tolist()

    def draw(axes: Sequence[Axes]) -> None:
        _draw_usage(axes[0], frequencies, used=int((ordered > 0).sum()))
        if caption:
            axes[0].set_title(f"{caption}: {axes[0].get_title('left')}", loc="left")

    return panels_png(draw, panels=1, size=(9.0, 3.6))


def _points(records: Sequence[Record], curve: Curve) -> list[tuple[int, float]]:
    """Steps and values of a curve; a value that was NaN is null in the records."""
    values = (
        (record["step"], record["values"].get(curve.value))
        for record in records
        if record["split"] == curve.split
    )
    return [(step, value) for step, value in values if value is not None]


def _draw_curve(panel: Axes, curve: Curve, points: list[tuple[int, float]]) -> None:
    steps, values = zip(*points, strict=True)
    marker = "o" if curve.split == "validation" else None
    panel.plot(steps, values, color=curve.colour, linewidth=2, marker=marker, markersize=5)
    panel.annotate(
        f"{values[-1]:.1%}" if curve.share else f"{values[-1]:.3g}",
        (steps[-1], values[-1]),
        xytext=(6, 0),
        textcoords="offset points",
        va="center",
        color=curve.colour,
        fontweight="bold",
    )
    panel.set_title(curve.title, loc="left")
    panel.set_xlabel("step")
    panel.set_xlim(0, 1.04 * steps[-1])
    if curve.share:
        panel.set_ylim(0, 1.05)
        panel.yaxis.set_major_formatter(PercentFormatter(xmax=1, decimals=0))


def _draw_usage(panel: Axes, frequencies: list[float], *, used: int) -> None:
    codes = len(frequencies)
    panel.stairs(frequencies, fill=True, color=BLUE)
    panel.axhline(1 / codes, color=ORANGE, linewidth=1.5, linestyle="--")
    panel.annotate(
        "uniform",
        (codes, 1 / codes),
        xytext=(0, 5),
        textcoords="offset points",
        ha="right",
        color=ORANGE,
    )
    if used < codes:
        panel.axvspan(used, codes, color=SHADE, linewidth=0)
    panel.set_title(f"{used:,} of {codes:,} codes are used ({used / codes:.1%})", loc="left")
    panel.set_xlabel("codes, the most frequent first")
    panel.set_ylabel("share of all tokens")
    panel.set_xlim(-0.01 * codes, codes)
    panel.yaxis.set_major_formatter(PercentFormatter(xmax=1, decimals=1))


def panels_png(
    draw: Callable[[Sequence[Axes]], None], *, panels: int, size: tuple[float, float], columns: int = 2
) -> bytes:
    """Draw panels of `size` inches, `columns` per row."""
    columns = min(panels, columns)
    rows = -(-panels // columns)
    figure = Figure(figsize=(size[0] * columns, size[1] * rows), dpi=DOTS_PER_INCH, layout="constrained")
    axes = [figure.add_subplot(rows, columns, i + 1) for i in range(panels)]
    for panel in axes:
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(axis="y", color=GRID, linewidth=0.8)
        panel.set_axisbelow(True)
    draw(axes)
    return figure_png(figure)
