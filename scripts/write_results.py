"""Write all that is made of the committed results: the report, and the README's table and picture.

python scripts/write_results.py
"""

import re
from pathlib import Path

from lgq.files import replace_file
from lgq.report.headline import headline_png, headline_table
from lgq.report.ledger import Ledger, read_ledger
from lgq.report.page import write_report

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "docs" / "results" / "pocket"
REPORT = ROOT / "docs" / "results" / "report.html"
README = ROOT / "README.md"
PICTURE = ROOT / "docs" / "images" / "comparison.png"
_PLACE = re.compile(r"(<!-- comparison -->\n).*?(?=<!-- end of comparison -->)", re.DOTALL)


def with_table(readme: str, ledger: Ledger) -> str:
    """The README with its table anew."""
    return _PLACE.sub(lambda found: f"{found[1]}\n{headline_table(ledger)}\n", readme)


def main() -> None:
    ledger = read_ledger(RESULTS)
    replace_file(README, with_table(README.read_text(), ledger).encode())
    replace_file(PICTURE, headline_png(ledger))
    write_report(RESULTS, REPORT)


if __name__ == "__main__":
    main()
