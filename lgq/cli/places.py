"""Where commands leave what they make."""

import os
from pathlib import Path

from lgq.errors import LGQError


def require_place(folder: Path) -> None:
    """Before the work: can its result be kept? Nothing is made yet."""
    there = next(place for place in (folder, *folder.parents) if place.exists())
    if not (there.is_dir() and os.access(there, os.W_OK | os.X_OK)):
        raise LGQError(f"cannot write to {folder}: choose another place with --out.")
