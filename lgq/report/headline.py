"""The comparison at a glance, for a README: a table in Markdown, and its curves as PNG."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from lgq.plots.canvas import QUALITATIVE
from lgq.plots.curves import panels_png
from lgq.report.columns import LPIPS, PERPLEXITY, PSNR, RFID, SSIM, USED, Column
from lgq.report.curves import Points, over_steps
from lgq.report.ledger import Ledger
from lgq.report.paper import COMPARISON
from lgq.report.tables import Cell, build_table

_COLUMNS = (PSNR, SSIM, LPIPS, RFID, USED, PERPLEXITY)
_CURVES = (PSNR, RFID, USED)


def headline_table(ledger: Ledger) -> str:
    """Every quantizer of the comparison: mean ± standard deviation over seeds, bold where clearly best."""
    table = build_table(ledger, COMPARISON)
    places = [table.columns.index(column) for column in _COLUMNS]
    rows = [(row.name, [_marked(row.ours[i]) for i in places]) for row in table.rows if row.ours]
    lines = [("quantizer", [column.heading for column in _COLUMNS]), ("---", ["---:"] * len(places)), *rows]
    return "".join(f"| {' | '.join((name, *cells))} |\n" for name, cells in lines)


def headline_png(ledger: Ledger) -> bytes:
    """PSNR, rFID and utilization over steps, a line for each quantizer with a band over its seeds."""
    taken = {column: over_steps(ledger, "comparison", "", column) for column in _CURVES}

    def draw(axes: Sequence[Axes]) -> None:
        for panel, (column, lines) in zip(axes, taken.items(), strict=True):
            _draw(panel, column, lines)
        shown, names = axes[0].get_legend_handles_labels()
        axes[0].figure.legend(
            handles=shown, labels=names, loc="outside lower center", frameon=False, ncols=len(names)
        )

    return panels_png(draw, panels=len(_CURVES), size=(3.6, 3.2), columns=len(_CURVES))


def _marked(cell: Cell) -> str:
    text = f"{cell.mean} {cell.spread}".rstrip()
    return f"**{text}**" if cell.best else text


def _draw(panel: Axes, column: Column, lines: dict[str, Points]) -> None:
    for colour, (name, points) in zip(QUALITATIVE, lines.items(), strict=False):
        steps = sorted(points)
        means = [points[step].mean * column.factor for step in steps]
        spread = [(points[step].std or 0) * column.factor for step in steps]
        low, high = ([mean + side * std for mean, std in zip(means, spread, strict=True)] for side in (-1, 1))
        panel.plot(steps, means, color=colour, linewidth=2, marker="o", markersize=4, label=name)
        panel.fill_between(steps, low, high, color=colour, alpha=0.2, linewidth=0)
    panel.set_title(column.heading, loc="left")
    panel.set_xlabel("step")
    panel.xaxis.set_major_locator(MaxNLocator(5))
    if column is USED:
        panel.set_ylim(0, 105)
