"""May this run go on in that directory? It must be asked for, and its settings must be those of its start."""

from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, get_args

from lgq.checks import require_one_of
from lgq.models.sampling import Sampling
from lgq.training.checkpoint import Checkpoints
from lgq.training.directory import CHECKPOINTS, CONFIG, ENVIRONMENT, RunError

Resume = Literal["auto", "never", "must"]
"""`auto` continues the run in a directory, if any; `never` refuses one with a run, `must` one without."""

FREE_FIELDS = frozenset(
    {"workers", "data.source", "validation_data.source", "tokens.source", "validation_tokens.source"}
    | {"sample_images", *(f"sampling.{field.name}" for field in fields(Sampling))}
    | {f"loop.{name}" for name in ("epochs", "log_every", "checkpoint_every", "keep", "patience", "minutes")}
    | {"loop.wandb"}
)
"""Settings that may change when a run is resumed: the weights of a step do not depend on them. Of
`loop.epochs` they depend through `loop.steps` alone, which it is resolved to."""

_MISSING = "nothing"


def require_as_asked(run: Path, resume: Resume) -> None:
    """Refuse a directory that holds a run, or none, where `resume` says otherwise."""
    require_one_of(get_args(Resume), resume=resume)
    checkpoints = bool(Checkpoints(run / CHECKPOINTS).paths())
    described = (run / CONFIG).exists()
    if described and not checkpoints and not (run / ENVIRONMENT).exists():
        # A tokenizer's own, for one.
        raise RunError(f"{run} holds a {CONFIG} that is of no run: choose another directory.")
    exists = described or checkpoints
    if resume == "never" and exists:
        raise RunError(f"{run} holds a run already: choose another directory, or resume it with resume=auto.")
    if resume == "must" and not exists:
        raise RunError(f"{run} holds no run to resume: check the path, or start one with resume=auto.")


def require_same_settings(run: Path, saved: dict[str, Any], now: dict[str, Any]) -> None:
    """Refuse settings under which the run would become another, by the names of those that differ."""
    before, after = _by_path(saved), _by_path(now)
    differing = [
        f"{path} (was {before.get(path, _MISSING)!r}, now {after.get(path, _MISSING)!r})"
        for path in sorted((before.keys() | after.keys()) - FREE_FIELDS)
        if before.get(path, _MISSING) != after.get(path, _MISSING)
    ]
    if differing:
        way_out = "resume with the old settings, or choose another directory"
        raise RunError(f"{run} was begun with other settings: {', '.join(differing)}; {way_out}.")


def _by_path(settings: Any, path: str = "") -> dict[str, Any]:
    """Nested settings as one level, such as {"loss.l1": 1.0}."""
    if not isinstance(settings, dict) or not settings:
        return {path: settings}
    inner = ((f"{path}.{name}" if path else name, value) for name, value in settings.items())
    return {name: value for place, part in inner for name, value in _by_path(part, place).items()}
