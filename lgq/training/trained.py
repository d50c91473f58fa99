"""What a run left behind, for those who use it."""

import json
from pathlib import Path
from typing import Any, Literal

from lgq.config import ConfigError
from lgq.tokenizer import WEIGHTS, Tokenizer
from lgq.training.directory import BEST, CONFIG, LAST, RunError

Which = Literal["best", "last"]


def trained_tokenizer(run: str | Path, which: Which = "best") -> Tokenizer:
    """The tokenizer of a run directory; or of one that `save_pretrained` wrote, or of the Hub.

    which: the weights of the best validation, or those of the last checkpoint. A run that was not
        validated yet has the last ones alone.
    """
    folder = Path(run)
    if not _is_run(folder):
        return Tokenizer.from_pretrained(run)
    order = (BEST, LAST) if which == "best" else (LAST,)
    published = [folder / name for name in order if (folder / name / WEIGHTS).is_file()]
    if not published:
        raise RunError(f"{folder} holds no {which} weights yet: let it train to its first checkpoint.")
    return Tokenizer.from_pretrained(published[0])


def trained_settings(run: str | Path) -> dict[str, Any] | None:
    """The resolved settings of a run; None of what is no run directory."""
    folder = Path(run)
    return _settings(folder) if _is_run(folder) else None


def trained_image_size(run: str | Path) -> int | None:
    """Side of the images that a run was trained on; None of what is no run directory."""
    settings = trained_settings(run)
    return None if settings is None else int(settings["image_size"])


def _is_run(folder: Path) -> bool:
    return (folder / CONFIG).is_file() and not (folder / WEIGHTS).is_file()


def _settings(folder: Path) -> dict[str, Any]:
    file = folder / CONFIG
    try:
        settings: dict[str, Any] = json.loads(file.read_bytes())
        int(settings["image_size"])
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{file} is damaged, or of no tokenizer's run: copy it again.") from error
    return settings
