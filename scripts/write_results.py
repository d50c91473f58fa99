"""Write all that is made of the committed results: the report, and the README's table and picture.

python scripts/write_results.py
"""

import re
from pathlib import Path

from matplotlib.ticker import MaxNLocator

from lgq.files import replace_file
from lgq.plots.canvas import QUALITATIVE, figure_png, panel_figure
from lgq.reporting.charts import band_of, over_steps
from lgq.reporting.page import report
from lgq.reporting.paper_tables import COLUMNS, build_table, table_specs
from lgq.reporting.result_set import ResultSet, read_result_set

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "docs" / "results" / "pocket"
REPORT = ROOT / "docs" / "results" / "report.html"
README = ROOT / "README.md"
PICTURE = ROOT / "docs" / "images" / "comparison.png"
_HEADLINE_COLUMNS = ("psnr", "ssim", "lpips", "rfid", "utilization", "perplexity")
_HEADLINE_CURVES = ("psnr", "rfid", "utilization")
_PLACE = re.compile(r"(<!-- comparison -->\n).*?(?=<!-- end of comparison -->)", re.DOTALL)


def with_table(readme: str, results: ResultSet) -> str:
    """The README with its table rewritten."""
    return _PLACE.sub(lambda match: f"{match[1]}\n{headline_table(results)}\n", readme)


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
        column, lines = COLUMNS[metric], over_steps(results, "comparison", "", metric)
        for colour, (name, points) in zip(QUALITATIVE, lines.items(), strict=False):
            low, means, high = zip(*(band_of(sample, column) for sample in points.values()), strict=True)
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


def main() -> None:
    results = read_result_set(RESULTS)
    replace_file(README, with_table(README.read_text(), results).encode())
    replace_file(PICTURE, headline_png(results))
    report(RESULTS, REPORT)


if __name__ == "__main__":
    main()
