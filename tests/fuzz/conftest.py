"""The tests share their parsers and mutations with scripts/fuzz.py."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
