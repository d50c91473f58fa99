"""Names of models: a directory, a model of the package, or owner/name on the Hub.

Nothing here imports torch, so that a wrong name is refused before anything is loaded.
"""

import difflib
import json
import re
from pathlib import Path
from typing import Any, Literal

from lgq.config import ConfigError
from lgq.errors import LGQError
from lgq.files import MANIFEST

CONFIG = "config.json"
SHIPPED = Path(__file__).parent / "shipped"
"""Directory of the models that come with the package, each in a directory of its name."""

ModelKind = Literal["tokenizer", "generator"]

_TOKENS = "tokens.json"
"""File by which a directory of tokens is known, which is no model."""
_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")


class PretrainedError(LGQError):
    """Files that make no model."""


def shipped_models() -> list[str]:
    """Return the names of the models that come with the package."""
    return sorted(manifest.parent.name for manifest in SHIPPED.glob(f"*/{MANIFEST}"))


def shipped_model(source: str | Path) -> Path | None:
    """Return the directory of a model of the package if `source` is its name, and no directory has it."""
    return SHIPPED / source if str(source) in shipped_models() and not Path(source).is_dir() else None


def require_findable(source: str | Path) -> None:
    """Check that a model can be where its name says, without asking the Hub."""
    folder = shipped_model(source) or Path(source)
    if folder.is_dir():
        return
    # A mistyped path must not cost the seconds in which the Hub is waited for.
    if isinstance(source, Path) or not _HUB_ID.fullmatch(source) or folder.parent.is_dir():
        shipped = ", ".join(shipped_models())
        way_out = f"name a run directory, one that save_pretrained wrote, {shipped} or owner/name on the Hub."
        if folder.parent.is_dir():
            beside = [path.name for path in folder.parent.iterdir() if path.is_dir()]
            if str(source) == folder.name:
                beside += shipped_models()
            if close := difflib.get_close_matches(folder.name, beside, n=1):
                way_out = f"did you mean {folder.parent / close[0]}?"
        raise PretrainedError(f"there is no directory {source}: {way_out}")


def require_kind(source: str | Path, expected: ModelKind, *, way_out: str | None = None) -> None:
    """Refuse a generator where a tokenizer is needed, the reverse, and tokens in place of either.

    Other mistakes show when it is loaded.

    way_out: what to do instead, in place of where to find a model of the expected kind.
    """
    config = (shipped_model(source) or Path(source)) / CONFIG
    if not config.is_file() and (config.parent / _TOKENS).is_file():
        ways_out = {
            "tokenizer": f"give the one that made them, such as {config.parent / 'tokenizer'}",
            "generator": "give what `lgq train-generator` made from them",
        }
        raise PretrainedError(f"{source} holds tokens, and this needs a {expected}: {ways_out[expected]}.")
    if config.is_file() and (kind := kind_of(config)) != expected:
        ways_out = {
            "tokenizer": "give the one that made its tokens, such as the tokenizer/ beside its weights",
            "generator": "give what `lgq train-generator` made from its tokens",
        }
        raise PretrainedError(
            f"{source} is a {kind}, and this needs a {expected}: {way_out or ways_out[expected]}."
        )


def kind_of(config: Path) -> ModelKind:
    """Tell a tokenizer from a generator by the config.json of a run or of a saved model."""
    return "generator" if "transformer" in read_config(config) else "tokenizer"


def read_config(file: Path) -> dict[str, Any]:
    try:
        settings = json.loads(file.read_bytes())
    except (ValueError, RecursionError):
        settings = None
    if not isinstance(settings, dict):
        raise damaged_config(file)
    return settings


def damaged_config(file: Path) -> ConfigError:
    return ConfigError(f"{file} is damaged, or belongs to no run: copy it again.")
