"""Write the README's table and picture of the comparison, from the committed results.

python scripts/write_headline.py
"""

import re
from pathlib import Path

from lgq.files import replace_file
from lgq.report.headline import headline_png, headline_table
from lgq.report.ledger import Ledger, read_ledger

ROOT = Path(__file__).parent.parent
README, PICTURE = ROOT / "README.md", ROOT / "docs" / "images" / "comparison.png"
RESULTS = ROOT / "docs" / "results" / "pocket"
_PLACE = re.compile(r"(<!-- comparison -->\n).*?(?=<!-- end of comparison -->)", re.DOTALL)


def with_table(readme: str, ledger: Ledger) -> str:
    """The README with its table anew."""
    return _PLACE.sub(lambda found: f"{found[1]}\n{headline_table(ledger)}\n", readme)


def main() -> None:
    ledger = read_ledger(RESULTS)
    replace_file(README, with_table(README.read_text(), ledger).encode())
    replace_file(PICTURE, headline_png(ledger))


if __name__ == "__main__":
    main()
