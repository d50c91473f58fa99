"""What a run left behind, for those who use it."""

import json
import logging
from pathlib import Path
from typing import Any, Literal

from lgq.config import ConfigError
from lgq.generator import MaskGIT
from lgq.pretrained import WEIGHTS, find_file
from lgq.tokenizer import Tokenizer
from lgq.training.checkpoint import MANIFEST, CheckpointError, verify
from lgq.training.directory import BEST, CONFIG, ENVIRONMENT, LAST, RunError

Which = Literal["best", "last"]
Kind = Literal["tokenizer", "generator"]

_log = logging.getLogger(__name__)


def trained_tokenizer(run: str | Path, which: Which = "best") -> Tokenizer:
    """The tokenizer of a run directory; or of one that `save_pretrained` wrote, or of the Hub.

    which: the weights of the best validation, or those of the last checkpoint. A run that was not
        validated yet has the last ones alone.
    """
    _require_kind(run, "tokenizer")
    return Tokenizer.from_pretrained(trained_weights(run, which))


def trained_generator(run: str | Path, which: Which = "best") -> MaskGIT:
    """The generator of a run directory, likewise."""
    _require_kind(run, "generator")
    return MaskGIT.from_pretrained(trained_weights(run, which))


def kind_of(source: str | Path) -> Kind:
    """What a run directory trains, or what `save_pretrained` wrote into a directory, or is on the Hub."""
    file = find_file(source, CONFIG, {})
    return "generator" if "transformer" in _read(file) else "tokenizer"


def trained_weights(run: str | Path, which: Which = "best") -> str | Path:
    """The directory, or the name on the Hub, that `trained_tokenizer` and `trained_generator` load."""
    folder = Path(run)
    if not _is_run(folder):
        return run
    order = (BEST, LAST) if which == "best" else (LAST,)
    published = [folder / name for name in order if (folder / name / WEIGHTS).is_file()]
    if not published:
        raise RunError(f"{folder} holds no {which} weights yet: let it train to its first checkpoint.")
    if published[0].name != which:
        _log.warning("%s has no %s weights yet: taking the %s ones", folder, which, published[0].name)
    _require_whole(published[0])
    return published[0]


def trained_settings(run: str | Path) -> dict[str, Any] | None:
    """The resolved settings of a run; None of what is no run directory."""
    folder = Path(run)
    return _settings(folder) if _is_run(folder) else None


def chosen_image_size(run: str | Path, given: int | None) -> int:
    """The side of images that a user gives, else that of the images that a tokenizer's run was trained on."""
    _require_kind(run, "tokenizer")
    if given is not None:
        return given
    settings = trained_settings(run)
    if settings is None:
        raise RunError(f"{run} is no run that says its image size: give --image-size.")
    return int(settings["image_size"])


def run_of(source: str | Path) -> Path:
    """The run directory to which published weights belong, which the next checkpoint replaces; else the
    directory itself."""
    folder = Path(source)
    return folder.parent if folder.name in (BEST, LAST) and _is_run(folder.parent) else folder


def _require_whole(weights: Path) -> None:
    # A second time, for a run that is at work may have replaced them meanwhile.
    for last in (False, True):
        if not (weights / MANIFEST).is_file():  # earlier versions wrote none
            return
        try:
            verify(weights)
            return
        except CheckpointError as error:
            way_out = "restore it from a copy, or resume the run, which writes its last weights anew"
            if last:
                raise RunError(f"{str(error).removesuffix('.')}: {way_out}.") from error


def _is_run(folder: Path) -> bool:
    described = (folder / CONFIG).is_file() and (folder / ENVIRONMENT).is_file()
    return described and not (folder / WEIGHTS).is_file()


def _settings(folder: Path) -> dict[str, Any]:
    settings = _read(folder / CONFIG)
    try:
        int(settings["image_size"])
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise _damaged(folder / CONFIG) from error
    return settings


def _read(file: Path) -> dict[str, Any]:
    try:
        settings = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise _damaged(file) from error
    if not isinstance(settings, dict):
        raise _damaged(file)
    return settings


def _damaged(file: Path) -> ConfigError:
    return ConfigError(f"{file} is damaged, or of no run: copy it again.")


def _require_kind(source: str | Path, expected: Kind) -> None:
    # What is on the Hub says so when it is loaded, and a directory without settings likewise.
    if (Path(source) / CONFIG).is_file() and kind_of(source) != expected:
        found = kind_of(source)
        way_out = {
            "tokenizer": "give the one that made its tokens, such as the tokenizer/ beside its weights",
            "generator": "give what `lgq train-generator` made of its tokens",
        }
        raise RunError(f"{source} is a {found}, and this needs a {expected}: {way_out[expected]}.")
