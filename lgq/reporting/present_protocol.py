"""What has changed in the protocol of an experiment since its runs were made."""

import json
from typing import Any, NamedTuple

from lgq.experiments.tables import EXPERIMENTS
from lgq.experiments.tasks import SCALES, CostTask
from lgq.reporting.result_set import ResultSet, RunRecord, flat_settings

_BY_OPTION = {"loop.steps", "loop.validate_every", "schedule.warmup_steps", "precision"}
"""Settings that `--steps` and `--precision` choose, so that they say nothing about the protocol."""


class Changes(NamedTuple):
    """Runs that the present version would make otherwise."""

    runs: tuple[str, ...]
    """Their ids."""
    settings: dict[str, list[str]]
    """By the name of a setting: the values of the runs and those of now, in words."""


def changes_since(results: ResultSet) -> Changes | None:
    """What the present version would make otherwise; None where it would make all runs as they are.

    Rows that an experiment no longer has, timings and scales without a name are left out.
    """
    ids: dict[str, None] = {}
    settings: dict[str, dict[str, None]] = {}
    for name, plan in results.plans.items():
        if name not in EXPERIMENTS or plan.scale not in SCALES:
            continue
        tasks = {row.row: row.task for row in EXPERIMENTS[name].rows(SCALES[plan.scale]())}
        for row, runs in results.rows(name):
            task = tasks.get(row.row)
            if not runs or task is None or isinstance(task, CostTask):
                continue
            for setting, values in _differences(runs[0], task.seeded(runs[0].seed or 0).settings()).items():
                ids |= dict.fromkeys(run.id for run in runs)
                settings.setdefault(setting, {})[values] = None
    return Changes(tuple(ids), {name: list(settings[name]) for name in sorted(settings)}) if ids else None


def _differences(run: RunRecord, present: dict[str, Any]) -> dict[str, str]:
    """Settings that the record and the present protocol both have, where they differ, in words."""
    now = flat_settings(present)
    return {
        name: f"{json.dumps(value)}, now {json.dumps(now[name])}"
        for name, value in run.protocol.items()
        if name in now and now[name] != value and name.removeprefix("tokenizer.") not in _BY_OPTION
    }
