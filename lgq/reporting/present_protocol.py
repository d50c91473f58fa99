"""What has changed in the protocol of an experiment since its runs were made."""

import json
from typing import Any, NamedTuple

from lgq.experiments.scales import SCALES
from lgq.experiments.tables import EXPERIMENTS
from lgq.reporting.result_set import ResultSet, RunRecord, flat_settings, is_of_a_seed

_BY_OPTION = {"loop.steps", "loop.validate_every", "schedule.warmup_steps", "precision"}
"""Settings that `--steps` and `--precision` choose, so that they say nothing about the protocol."""
_OF_THE_DATA = {"recordings"}
"""Settings that name the data of a run, which the protocol of now does not know."""


class Changes(NamedTuple):
    """Runs that the present version would make otherwise."""

    runs: tuple[str, ...]
    """Their ids."""
    settings: dict[str, list[str]]
    """By the name of a setting: the values of the runs and those of now, in words."""


def changes_since(results: ResultSet) -> Changes | None:
    """What the present version would make otherwise; None where it would make all runs as they are.

    Runs of a row that its experiment no longer has are among them. Scales without a name are left out.
    """
    ids: dict[str, None] = {}
    settings: dict[str, dict[str, None]] = {}
    for name, plan in results.plans.items():
        if name not in EXPERIMENTS or plan.scale not in SCALES:
            continue
        tasks = {row.row: row.task for row in EXPERIMENTS[name].rows(SCALES[plan.scale]())}
        for row, runs in results.rows(name):
            if not runs:
                continue
            task = tasks.get(row.row)
            present = None if task is None else task.seeded(runs[0].seed or 0).settings()
            differences = {} if present is None else _differences(runs[0], present)
            if differences or present is None:
                ids |= dict.fromkeys(run.id for run in runs)
            for setting, values in differences.items():
                settings.setdefault(setting, {})[values] = None
    return Changes(tuple(ids), {name: list(settings[name]) for name in sorted(settings)}) if ids else None


def _differences(run: RunRecord, present: dict[str, Any]) -> dict[str, str]:
    """Settings that record and present protocol both have, where they differ, and the start; in words."""
    now, then = flat_settings(present), flat_settings(run.record.get("config"))
    by_option = _BY_OPTION if then.get("loop.steps") != now.get("loop.steps") else set[str]()
    different = {
        name: f"{json.dumps(value)}, now {json.dumps(now[name])}"
        for name, value in then.items()
        if name in now and now[name] != value and not is_of_a_seed(name) and name not in _OF_THE_DATA
    }
    if run.kind == "tokenizer" and bool(run.record.get("start")) != bool(present["start"]):
        places = ("random weights", "the autoencoder of its seed")
        was, is_now = (places[bool(start)] for start in (run.record.get("start"), present["start"]))
        different["start"] = f"{was}, now {is_now}"
    return {
        name: words for name, words in different.items() if name.removeprefix("tokenizer.") not in by_option
    }
