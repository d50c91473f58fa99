"""Write all that is made of the committed results: the report, and the README's table and picture.

python scripts/write_results.py
"""

import re
from pathlib import Path

from lgq.files import replace_file
from lgq.reporting.charts import headline_png, headline_table
from lgq.reporting.page import report
from lgq.reporting.result_set import ResultSet, read_result_set

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "docs" / "results" / "pocket"
REPORT = ROOT / "docs" / "results" / "report.html"
README = ROOT / "README.md"
PICTURE = ROOT / "docs" / "images" / "comparison.png"
_PLACE = re.compile(r"(<!-- comparison -->\n).*?(?=<!-- end of comparison -->)", re.DOTALL)


def with_table(readme: str, results: ResultSet) -> str:
    """The README with its table rewritten."""
    return _PLACE.sub(lambda match: f"{match[1]}\n{headline_table(results)}\n", readme)


def main() -> None:
    results = read_result_set(RESULTS)
    replace_file(README, with_table(README.read_text(), results).encode())
    replace_file(PICTURE, headline_png(results))
    report(RESULTS, REPORT)


if __name__ == "__main__":
    main()
