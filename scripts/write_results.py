"""Write what is made of committed records: the report, and parts of the README and the docs.

python scripts/write_results.py
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from textwrap import fill
from typing import Any

from matplotlib.ticker import MaxNLocator

from lgq.files import replace_file
from lgq.plots.canvas import FAINT, figure_png, panel_figure
from lgq.reporting import which_quantizer
from lgq.reporting.charts import band_of, charts_of, over_steps, row_styles
from lgq.reporting.claims import count_outcomes, decide_claims
from lgq.reporting.overview import changes_since, what_is_here, what_the_results_show
from lgq.reporting.page import report
from lgq.reporting.paper_tables import COLUMNS, build_table, table_specs
from lgq.reporting.result_set import ResultSet, read_result_set

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "docs" / "results" / "pocket"
REPORT = ROOT / "docs" / "results" / "report.html"
BENCHMARKS = ROOT / "docs" / "benchmarks"
PAGES = (ROOT / "README.md", ROOT / "docs" / "quantizers.md", ROOT / "docs" / "results" / "README.md")
PICTURE = ROOT / "docs" / "images" / "comparison.png"
WHICH_QUANTIZER = ROOT / "docs" / "which-quantizer.md"
WHICH_PICTURE = ROOT / "docs" / "images" / "which-quantizer.png"
MILLION = 2**20
_PLAIN = "the plain formula's"
_HEADLINE_COLUMNS = ("psnr", "ssim", "lpips", "rfid", "utilization", "perplexity")
_HEADLINE_CURVES = ("psnr", "ssim", "utilization")


def rewritten(page: str, parts: Mapping[str, str]) -> str:
    """The page with new text between `<!-- name -->` and `<!-- end of name -->`, for each name in it."""
    for name, text in parts.items():
        place = re.compile(rf"(<!-- {name} -->).*?(?=<!-- end of {name} -->)", re.DOTALL)
        page = place.sub(lambda match, text=text: f"{match[1]}{text}", page)
    return page


def parts_of(results: ResultSet, steps: list[dict[str, Any]]) -> dict[str, str]:
    """Texts by the names of their places."""
    return {
        "comparison": f"\n\n{headline_table(results)}\n",
        "cost": f"\n\n{cost_table(steps)}\n",
        "million": million_codes(steps),
        "verdicts": verdicts(results),
        "contents": f"\n\n{what_is_here(results)}\n\n",
        "findings": f"\n\n{what_the_results_show(results)}\n\n",
    }


def timed_steps(directory: Path = BENCHMARKS) -> list[dict[str, Any]]:
    """Training steps of LGQ that `lgq bench quantizers` recorded, from the smallest codebook on."""
    records = [json.loads((directory / file).read_text()) for file in ("lgq.json", "million.json")]
    return [row | record["machine"] for record in records for row in record["rows"]]


def headline_table(results: ResultSet) -> str:
    """The comparison in Markdown: mean ± standard deviation over seeds, bold where clearly best."""
    table = build_table(results, table_specs()["Table 2"])
    if not table.was_run:
        return "No row is finished yet.\n"
    columns = [COLUMNS[metric] for metric in _HEADLINE_COLUMNS]
    lines = [["quantizer", *(column.heading for column in columns)], ["---", *["---:"] * len(columns)]]
    for row in (row for row in table.rows if row.ours):
        cells = [row.ours[table.spec.columns.index(column)] for column in columns]
        texts = [(f"{cell.mean} {cell.spread}".rstrip(), cell.best) for cell in cells]
        lines.append([row.name, *(f"**{text}**" if best else text for text, best in texts)])
    changes = changes_since(results)
    earlier = {run.id for run in results.select("comparison")} & set(changes.runs if changes else ())
    note = "; made with an earlier protocol" if earlier else ""
    return f"{_markdown(lines)}\nMean ± standard deviation; {table.basis}{note}.\n"


def headline_png(results: ResultSet) -> bytes:
    """PSNR, SSIM and codes used of the comparison over steps: one line per quantizer, a band over seeds."""
    figure, panels = panel_figure(len(_HEADLINE_CURVES), (3.8, 3.6), columns=len(_HEADLINE_CURVES))
    styles = row_styles(results, "comparison", "")
    charts = charts_of(results, "comparison") if "comparison" in results.plans else {}
    bases = {chart.title: chart.basis for chart in charts.get("", [])}
    for panel, metric in zip(panels, _HEADLINE_CURVES, strict=True):
        column, lines = COLUMNS[metric], over_steps(results, "comparison", "", metric)
        for name, curve in lines.items():
            samples, style = curve.points.values(), styles[name]
            low, means, high = zip(*(band_of(sample, column) for sample in samples), strict=True)
            steps, dashes = list(curve.points), (0, style.dashes) if style.dashes else "-"
            look: dict[str, Any] = {"color": style.light, "marker": style.marker, "linestyle": dashes}
            panel.plot(steps, means, linewidth=2, markersize=5, label=name, **look)
            panel.fill_between(steps, low, high, color=style.light, alpha=0.15, linewidth=0)
        panel.set_title(column.heading, loc="left", pad=32)
        # Validations measure all of them on the same images.
        basis = fill(bases.get(COLUMNS["psnr"].heading, ""), 52)
        panel.annotate(basis, (0, 1), (0, 6), "axes fraction", "offset points", color=FAINT, fontsize=8)
        panel.set_xlabel("training step")
        panel.xaxis.set_major_locator(MaxNLocator(5))
        if metric == "utilization":
            panel.set_ylim(0, 105)
    handles, labels = panels[0].get_legend_handles_labels()
    if labels:
        figure.legend(handles, labels, loc="outside lower center", frameon=False, ncols=min(5, len(labels)))
    return figure_png(figure)


def cost_table(steps: list[dict[str, Any]]) -> str:
    """Time and memory of LGQ's step beside the plain formula's, in Markdown."""
    by_size: dict[int, dict[str, dict[str, Any]]] = {}
    for row in steps:
        by_size.setdefault(row["codebook_size"], {})[row["implementation"]] = row
    headings = [
        name for own in ("seconds per step", "extra memory", "time ÷ floor") for name in (own, _PLAIN)
    ]
    lines = [["codes", *headings], ["---:"] * (1 + len(headings))]
    for size, rows in by_size.items():
        ours, dense = (_cost(rows[name]) for name in ("ours", "dense"))
        lines.append([f"{size:,}", *(cell for pair in zip(ours, dense, strict=True) for cell in pair)])
    return _markdown(lines)


def _cost(row: dict[str, Any]) -> list[str]:
    """Seconds, memory, and time over that of the matrix products of a step."""
    if row["ms"] is None:
        return ["", "does not fit in 24 GiB", ""]
    seconds, ratio = row["ms"] / 1e3, row["ms"] / row["floor_ms"]
    return [f"{seconds:.{0 if seconds >= 10 else 2}f}", f"{row['extra_bytes'] / 1e6:,.0f} MB", f"{ratio:.2f}"]


def million_codes(steps: list[dict[str, Any]]) -> str:
    """What a step with a million codes costs, in words."""
    (row,) = (r for r in steps if (r["codebook_size"], r["implementation"]) == (MILLION, "ours"))
    seconds, memory, _ = _cost(row)
    return (
        f"{memory} and {seconds} seconds per step of {row['tokens']:,} vectors on {row['threads']} CPU cores"
    )


def verdicts(results: ResultSet) -> str:
    """How many of the paper's claims have which outcome, in words."""
    counts = count_outcomes(decide_claims(results))
    outcomes = ", ".join(f"{number} {outcome}" for outcome, number in counts.items() if number)
    return f"Of {sum(counts.values())} claims of the paper: {outcomes}."


def _markdown(lines: list[list[str]]) -> str:
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def main() -> None:
    results = read_result_set(RESULTS)
    parts = parts_of(results, timed_steps())
    for page in PAGES:
        replace_file(page, rewritten(page.read_text(), parts).encode())
    replace_file(PICTURE, headline_png(results))
    replace_file(WHICH_QUANTIZER, which_quantizer.page(results).encode())
    replace_file(WHICH_PICTURE, which_quantizer.picture(results))
    report(RESULTS, REPORT)


if __name__ == "__main__":
    main()
