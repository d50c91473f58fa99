"""The forecast as a picture: time against the number of GPUs, and where more of them stop helping."""

from collections.abc import Sequence
from io import BytesIO
from typing import Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from lgq.bench.scale import PAPER_PROCESSES, Scale, ScaleBenchmark
from lgq.bench.scale_model import Cluster, Forecast

_BLUE, _ORANGE, _RED, _GREEN, _GREY, _GRID = "#2f6db3", "#e07b00", "#c2353d", "#2a8f5b", "#8a8f98", "#e3e6ea"
_DOTS_PER_INCH = 150


def forecast_plot(settings: ScaleBenchmark, found: Scale) -> bytes:
    """Two panels, as PNG: training, and encoding."""
    figure = Figure(figsize=(11.0, 4.8), dpi=_DOTS_PER_INCH, layout="constrained")
    training, encoding = figure.subplots(1, 2)
    _draw_training(training, settings, found)
    _draw_encoding(encoding, settings, found)
    figure.supxlabel(_assumed(settings.cluster), x=0.99, ha="right", fontsize=8.5, color=_GREY)
    buffer = BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def _assumed(cluster: Cluster) -> str:
    return (
        f"Forecast, not measured: GPUs at {cluster.utilisation:.0%} of {cluster.peak / 1e12:g} TFLOP/s, "
        f"{cluster.gpus_per_node} to a node, files at {cluster.storage / 1e9:g} GB/s for all together."
    )


def _draw_training(panel: Axes, settings: ScaleBenchmark, found: Scale) -> None:
    _begin(panel, f"Training: {settings.epochs} epochs of ImageNet-1k", found.training)
    batch = found.training[0].images_per_step // found.training[0].gpus
    fast, slow = (8e-9 * each for each in (settings.cluster.network, settings.slow_network))
    _line(panel, found.training, _BLUE, f"{batch} images a GPU, {fast:g} Gbit/s between nodes")
    if found.paper:
        together = found.paper[0].images_per_step
        _line(panel, found.slow, _RED, f"{together} images in all, {slow:g} Gbit/s")
        _line(panel, found.paper, _GREEN, f"{together} images in all, {fast:g} Gbit/s")
    for row in (row for row in found.paper if row.gpus == PAPER_PROCESSES):
        panel.plot(row.gpus, row.hours, "o", color=_ORANGE, markersize=9, zorder=4)
        _note(panel, row, f"{row.gpus} GPUs:\n{row.hours:,.0f} h", _ORANGE, (-12, -24), "right")
    _mark(panel, found.training, _BLUE)
    _mark(panel, found.slow, _RED)
    panel.legend(frameon=False, loc="lower left", fontsize=9)


def _draw_encoding(panel: Axes, settings: ScaleBenchmark, found: Scale) -> None:
    _begin(panel, f"Encoding: {settings.encoded_images:,} images", found.encoding)
    _line(panel, found.encoding, _BLUE, "forecast")
    _mark(panel, found.encoding, _BLUE)
    panel.legend(frameon=False, loc="lower left", fontsize=9)


def _begin(panel: Axes, title: str, rows: Sequence[Forecast]) -> None:
    gpus = [row.gpus for row in rows]
    ideal = [rows[0].hours * rows[0].gpus / n for n in gpus]
    panel.set_xscale("log", base=2)
    panel.set_yscale("log")
    panel.plot(gpus, ideal, color=_GREY, linewidth=1.2, linestyle=(0, (4, 3)), label="n times as fast")
    panel.set_xticks(gpus[::2])
    panel.xaxis.set_major_formatter(FuncFormatter(lambda n, _: f"{n:,.0f}"))
    panel.xaxis.set_minor_locator(NullLocator())
    panel.yaxis.set_major_formatter(FuncFormatter(lambda hours, _: f"{hours:,g} h"))
    panel.set_xlim(gpus[0] / 2.5, 4 * gpus[-1])
    panel.set_xlabel("GPUs")
    panel.set_title(title, loc="left", fontweight="bold")
    panel.spines[["top", "right"]].set_visible(False)
    panel.grid(color=_GRID, linewidth=0.8)
    panel.set_axisbelow(True)


def _line(panel: Axes, rows: Sequence[Forecast], colour: str, label: str) -> None:
    gpus, hours = [row.gpus for row in rows], [row.hours for row in rows]
    panel.plot(gpus, hours, color=colour, linewidth=2.2, marker="o", markersize=3.5, label=label)


def _mark(panel: Axes, rows: Sequence[Forecast], colour: str) -> None:
    """The first number of GPUs at which something takes longer than computing."""
    first = next((row for row in rows if row.bound != "compute"), None)
    if first is not None:
        panel.plot(first.gpus, first.hours, "D", color=colour, markersize=8, zorder=4)
        text = f"{first.gpus:,} GPUs:\n{first.bound} limits"
        _note(panel, first, text, colour, (0, 12), "left")


def _note(
    panel: Axes,
    row: Forecast,
    text: str,
    colour: str,
    offset: tuple[int, int],
    side: Literal["right", "left"],
) -> None:
    panel.annotate(
        text,
        (row.gpus, row.hours),
        xytext=offset,
        textcoords="offset points",
        ha=side,
        color=colour,
        fontsize=9,
        fontweight="bold",
    )
