"""Errors and warnings about what a user can fix: each names the value, the rule and the way out.

A message, like the docstring of a setting, names settings by their keywords in backticks: `codebook_size`, or
`loop.steps` within a run. The command line shows options in their place: --codebook-size, --steps.
"""

import re
import sys
import warnings
from collections.abc import Callable
from typing import ClassVar

_SETTING = re.compile(r"`([A-Za-z_]\w*(?:\.\w+)*)`")
_INNER = ("lgq", "torch", "jaxtyping", "beartype")
"""Packages whose lines no user of a quantizer wrote."""


class LGQError(ValueError):
    """Base of errors about options, files, weights or disk space, as opposed to bugs of this package.

    The command line shows its message in one line and exits with `exit_code`; all other exceptions keep
    their traceback.
    """

    exit_code: ClassVar[int] = 2


class LGQWarning(UserWarning):
    """Training that will probably fail, with the likely causes and what to turn."""


def warn(message: str) -> None:
    """Warn at the line, outside of this package, of torch and of checks of shapes, that led here."""
    level, frame = 1, sys._getframe()
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] in _INNER:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, LGQWarning, stacklevel=level)


def rename_settings(text: str, rename: Callable[[str], str | None]) -> str:
    """Replace each name in backticks by what `rename` makes of it; None leaves it as it is."""
    return _SETTING.sub(lambda match: rename(match[1]) or match[0], text)
