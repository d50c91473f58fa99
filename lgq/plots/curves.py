"""Training curves and the histogram of code usage, as PNG.   k = codes."""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from jaxtyping import Int
from matplotlib.ticker import PercentFormatter
from torch import Tensor

from lgq.checks import require_at_least
from lgq.errors import LGQError
from lgq.plots.canvas import BLUE, ORANGE, SHADE, figure_png, panel_figure

Record = dict[str, Any]
"""A line of metrics.jsonl: step, split, values."""


class Curve(NamedTuple):
    """One value of the records over the training steps, drawn in its own panel."""

    title: str
    split: Literal["train", "validation"]
    value: str
    """Name of the value in the records."""
    share: bool = False
    """Whether the value is a share from 0 to 1, shown in per cent."""


CURVES = (
    Curve("Training loss", "train", "loss"),
    Curve("Held-out PSNR (dB)", "validation", "psnr"),
    Curve("Codes used on held-out images", "validation", "utilization", share=True),
    Curve("Temperature of the assignment, tau", "train", "tau"),
)


def training_curves(records: Sequence[Record], *, colour: str = BLUE) -> bytes:
    """Draw one panel per curve; curves without values in the records are left out.

    colour: that of the quantizer (`lgq.plots.palette`).
    """
    points = {curve: _points(records, curve) for curve in CURVES}
    shown = [curve for curve in CURVES if points[curve]]
    if not shown:
        wanted = ", ".join(curve.value for curve in CURVES)
        raise LGQError(f"none of {len(records)} records has a value of {wanted}: train for some steps first.")
    figure, panels = panel_figure(len(shown), (5.2, 3.2))
    for curve, panel in zip(shown, panels, strict=True):
        steps, values = zip(*points[curve], strict=True)
        marker = "o" if curve.split == "validation" else None
        panel.plot(steps, values, color=colour, linewidth=2, marker=marker, markersize=5)
        last = f"{values[-1]:.1%}" if curve.share else f"{values[-1]:.3g}"
        style: dict[str, Any] = {"va": "center", "color": colour, "fontweight": "bold"}
        panel.annotate(last, (steps[-1], values[-1]), (6, 0), textcoords="offset points", **style)
        panel.set_title(curve.title, loc="left")
        panel.set_xlabel("step")
        panel.set_xlim(0, 1.04 * steps[-1])
        if curve.share:
            panel.set_ylim(0, 1.05)
            panel.yaxis.set_major_formatter(PercentFormatter(xmax=1, decimals=0))
    return figure_png(figure)


def usage_histogram(counts: Int[Tensor, " k"], *, caption: str = "", colour: str = BLUE) -> bytes:
    """Draw the frequency of each code, the most frequent first, beside a uniform distribution.

    colour: that of the quantizer (`lgq.plots.palette`).
    """
    require_at_least(1, codes=len(counts), tokens=int(counts.sum()))
    ordered = counts.detach().cpu().sort(descending=True).values
    codes, used = len(ordered), int((ordered > 0).sum())
    figure, (panel,) = panel_figure(1, (9.0, 3.6))
    panel.stairs((ordered.cpu().double() / ordered.sum()).tolist(), fill=True, color=colour)
    panel.axhline(1 / codes, color=ORANGE, linewidth=1.5, linestyle="--")
    style: dict[str, Any] = {"ha": "right", "color": ORANGE}
    panel.annotate("uniform", (codes, 1 / codes), (0, 5), textcoords="offset points", **style)
    if used < codes:
        panel.axvspan(used, codes, color=SHADE, linewidth=0)
    title = f"{used:,} of {codes:,} codes are used ({used / codes:.1%})"
    panel.set_title(f"{caption}: {title}" if caption else title, loc="left")
    panel.set_xlabel("codes, the most frequent first")
    panel.set_ylabel("share of all tokens")
    panel.set_xlim(-0.01 * codes, codes)
    panel.yaxis.set_major_formatter(PercentFormatter(xmax=1))
    return figure_png(figure)


def _points(records: Sequence[Record], curve: Curve) -> list[tuple[int, float]]:
    """Steps and values of a curve; a value that was NaN is null in the records."""
    lines = [record for record in records if record["split"] == curve.split]
    values = ((line["step"], line["values"].get(curve.value)) for line in lines)
    return [(step, value) for step, value in values if value is not None]
