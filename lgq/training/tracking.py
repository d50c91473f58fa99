"""Weights & Biases as one more place for a run's records. It may refuse to begin, but it never ends a run.

RUN/wandb.json keeps which W&B run it is, and a resumed run continues it. Steps that a killed run has
to do again are there twice, with the same values.
"""

import json
import logging
import uuid
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from lgq.files import replace_json
from lgq.training.directory import RunError

WANDB = "wandb.json"

_log = logging.getLogger(__name__)


class WandbTracker:
    """Sends records to a W&B run until that fails for the first time.

    run: the run directory.
    project: its name, or owner/name.
    config: the settings that W&B shows.
    resumed: a run that has got somewhere goes on without W&B where this one cannot begin.
    """

    def __init__(self, run: Path, project: str, config: dict[str, Any], *, resumed: bool):
        self._wandb_run: Any = None
        run_id = _run_id(run, project)
        try:
            self._wandb_run = _start(run, project, run_id, config)
        except ImportError as error:
            way_out = "install it with: pip install 'lgq[wandb]', or leave wandb unset"
            raise RunError(f"wandb={project!r} needs a package that is not here: {way_out}.") from error
        except Exception as error:
            if not resumed:
                way_out = "log in with `wandb login`, or set WANDB_MODE=offline in the environment"
                raise RunError(f"Weights & Biases does not start: {error}; {way_out}.") from error
            _log.warning("Weights & Biases does not start, the run goes on without it: %s", error)

    def record(self, step: int, split: str, values: dict[str, float]) -> None:
        named = {f"{split}/{name}": value for name, value in values.items()}
        self._attempt(lambda run: run.log({"step": step, **named}))

    def __enter__(self) -> "WandbTracker":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._attempt(lambda run: run.finish(exit_code=int(kind is not None)))

    def _attempt(self, action: Callable[[Any], None]) -> None:
        if self._wandb_run is None:
            return
        try:
            action(self._wandb_run)
        except Exception as error:
            self._wandb_run = None
            _log.warning("Weights & Biases failed, the run goes on without it: %s", error)


def _start(run: Path, project: str, run_id: str, config: dict[str, Any]) -> Any:
    # Seconds to import, and an extra of this package.
    from wandb import Settings, init

    owner, _, name = project.rpartition("/")
    wandb_run = init(
        entity=owner or None,
        project=name,
        id=run_id,
        name=run.resolve().name,
        dir=run,
        config=config,
        resume="allow",
        settings=Settings(console="off"),  # the progress bar is not for its log
    )
    # W&B's own steps must never fall back, as those of a resumed run do.
    wandb_run.define_metric("*", step_metric="step")
    return wandb_run


def _run_id(run: Path, project: str) -> str:
    """The one that this directory has in this project already, or a new one, which it keeps."""
    file = run / WANDB
    known: dict[str, str] = json.loads(file.read_text()) if file.exists() else {}
    if known.get("project") != project:
        known = {"project": project, "id": uuid.uuid4().hex[:8]}
        replace_json(file, known)
    return known["id"]
