"""Overview of a results directory: what is finished, by which protocol, and LGQ's place among the rows.

`scripts/write_results.py` puts its tables, in Markdown, into docs/results/README.md: for every experiment the
best row, the worst row and LGQ's place. A rule writes them from the records, the same for every quantizer:
nobody chooses which figures are told.
"""

import json
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from lgq.experiments.results_directory import PlannedRow
from lgq.experiments.scales import SCALES
from lgq.experiments.tables import EXPERIMENTS
from lgq.quantizers import CONTINUOUS
from lgq.reporting.paper_tables import COLUMNS, Column, describe_bases, describe_settings
from lgq.reporting.result_set import (
    ResultSet,
    RunRecord,
    Sample,
    compare_samples,
    flat_settings,
    is_of_a_seed,
    sample_of,
)

_MAIN = (
    "psnr",
    "lpips",
    "rfid",
    "gfid",
    "mse",
    "snr",
    "spectral_distance",
    "utilization",
    "ms",
    "extra_bytes",
)
"""Metrics that are told of an experiment, where its runs have them: quality, error, use of codes, time and
memory."""
_OF_GEOMETRY = ("geometry.normalized_entropy", "geometry.cooccurrence_density")
_AS_RATIO = ("mse", "ms", "extra_bytes")
"""Metrics whose ratio to the best row is told."""
_LGQ, _NONE = "lgq", "-"
_BY_OPTION = {"loop.steps", "loop.validate_every", "schedule.warmup_steps", "precision"}
"""Settings that `--steps` and `--precision` choose, so that they say nothing about the protocol."""
_OF_THE_DATA = {"recordings"}
"""Settings that name the data of a run, which the protocol of now does not know."""


class Placement(NamedTuple):
    """The rows of one group of an experiment by one metric, and where LGQ is among them."""

    group: str
    column: Column
    ranked: list[tuple[str, Sample]]
    """Names and values of the rows, the best first."""
    lgq: str | None
    """Name of LGQ's row as published, the first of several; None where it is not finished."""

    @property
    def own(self) -> Sample | None:
        """LGQ's values; None where it has none."""
        return next((sample for name, sample in self.ranked if name == self.lgq), None)

    @property
    def place(self) -> str:
        """LGQ's place by its mean, such as "6 of 9"; rows with equal means share one."""
        if self.own is None:
            return _NONE
        better = [sample for _, sample in self.ranked if _is_better(sample, self.own, self.column)]
        return f"{len(better) + 1} of {len(self.ranked)}"

    @property
    def against(self) -> str:
        """Rows that LGQ is ahead of, behind, or not separable from, in words."""
        if self.own is None:
            return _NONE
        if len(self.ranked) == 1:
            return "no other row"
        by_sign: dict[int, list[str]] = {1: [], -1: [], 0: []}
        for name, sample in self.ranked:
            if name != self.lgq:
                by_sign[compare_samples(self.own, sample, self.column.better)].append(name)
        if not by_sign[1] and not by_sign[-1]:
            return f"not separable{', one seed' if len(self.own.values) == 1 and not self.own.timing else ''}"
        words = {1: "ahead of", -1: "behind", 0: "not separable from"}
        return "; ".join(
            f"{words[sign]} {', '.join(map(_quoted, names))}" for sign, names in by_sign.items() if names
        )

    @property
    def seeds(self) -> str:
        """Number of seeds in words."""
        counts = [len(sample.values) for _, sample in self.ranked]
        if self.ranked[0][1].timing:
            return "one timing"
        few, most = min(counts), max(counts)
        if most == 1:
            return "one seed"
        return f"{most} seeds" if few == most else f"{few} to {most} seeds"


def _quoted(name: str) -> str:
    """The name of a row for a list; in quotes where it has a comma itself."""
    return f'"{name}"' if "," in name else name


def _is_better(a: Sample, b: Sample, column: Column) -> bool:
    return a.mean > b.mean if column.better == "higher" else a.mean < b.mean


def placements(results: ResultSet, experiment: str) -> list[Placement]:
    """The main metrics of every group of rows in which some row has them."""
    groups: dict[str, list[tuple[str, list[RunRecord]]]] = {}
    for row, runs in results.rows(experiment):
        group, name = _named(row)
        if runs:
            groups.setdefault(group, []).append((name, runs))
    metrics = _OF_GEOMETRY if experiment == "geometry" else _MAIN
    made = []
    for group, rows in sorted(groups.items(), key=lambda item: _numbers(item[0])):
        lgq = next((name for name, runs in rows if runs[0].setting("quantizer") == _LGQ), None)
        for column in (COLUMNS[metric] for metric in metrics):
            samples = [
                (name, sample)
                for name, runs in rows
                if (sample := sample_of(runs, column.metric, results.timing_ratio))
                and not (column.metric == "utilization" and runs[0].setting("quantizer") == CONTINUOUS)
            ]
            ranked = sorted(samples, key=lambda item: item[1].mean, reverse=column.better == "higher")
            made += [Placement(group, column, ranked, lgq)] if ranked else []
    return made


def _numbers(group: str) -> list[float]:
    """The numbers in the name of a group, by which groups are sorted."""
    return [float(number.replace(",", "")) for number in re.findall(r"\d[\d,]*(?:\.\d+)?", group)]


def _named(row: PlannedRow) -> tuple[str, str]:
    """Group and name of a row; settings after a colon, as in the search, belong to the name."""
    group, _, settings = row.group.partition(": ")
    return group, f"{row.label} ({settings})" if settings else row.label


def what_is_here(results: ResultSet) -> str:
    """A table of all experiments: how many of their rows are finished, with how many seeds."""
    lines = ["| experiment | finished rows | seeds per row | protocol |", "| --- | --- | --- | --- |"]
    earlier = _earlier(results)
    for name in _names(results):
        rows = [runs for _, runs in results.rows(name)]
        finished = [runs for runs in rows if runs]
        cells = ["none", "", ""]
        if finished:
            failed = sum(bool(run.failed) for runs in finished for run in runs)
            state = f"{len(finished)} of {len(rows)}" + (f" ({failed} failed)" if failed else "")
            counts = [len(runs) for runs in finished]
            seeds = f"{min(counts)} to {max(counts)}" if min(counts) < max(counts) else f"{counts[0]}"
            timed = finished[0][0].kind == "cost"
            cells = [state, "one timing" if timed else seeds, _protocol(results, name, earlier)]
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def what_the_results_show(results: ResultSet) -> str:
    """For every experiment with finished rows, a table of the best row, the worst row and LGQ's place."""
    earlier, names = _earlier(results), [name for name in _names(results) if results.select(name)]
    parts = [_experiment(results, name, _protocol(results, name, earlier)) for name in names]
    return "\n\n".join(parts) or "No experiment has finished rows yet."


def _experiment(results: ResultSet, name: str, protocol: str) -> str:
    runs, found = results.select(name), placements(results, name)
    basis = [describe_settings(runs), *describe_bases(runs, [placement.column for placement in found])]
    basis += [f"{protocol} protocol"] if protocol != "present" else []
    head = f"### {results.plans[name].title} (`{name}`)\n\n"
    head += f"{words}.\n\n" if (words := "; ".join(filter(None, basis))) else ""
    if not found:
        return f"{head}No row has a value."
    if all(len(placement.ranked) == 1 for placement in found):
        values = (
            f"{_row(*p.ranked[0], p.column)} ({', '.join(filter(None, (p.group, p.column.title, p.seeds)))})"
            for p in found
        )
        return f"{head}There are no two rows to compare: {'; '.join(values)}."
    titles = ["", "best", "worst", "LGQ", "place of LGQ", "LGQ against the others", "seeds"]
    lines = [titles, ["---"] * len(titles)]
    for placement in found:
        column, ranked = placement.column, placement.ranked
        title = f"{placement.group}: {column.heading}" if placement.group else column.heading
        best, worst = (_row(*item, column) for item in (ranked[0], ranked[-1]))
        cells = [title, best, worst, _lgq(placement), placement.place, placement.against, placement.seeds]
        lines.append([cell.replace("|", r"\|").replace("<", "&lt;") for cell in cells])
    return head + "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _row(name: str, sample: Sample, column: Column) -> str:
    busy = ", timed on a busy machine" if sample.busy else ""
    return f"{name} {column.write_sample(sample)}{busy}"


def _lgq(placement: Placement) -> str:
    own, column, (_, best) = placement.own, placement.column, placement.ranked[0]
    if own is None:
        return "not run" if placement.lgq is None else "no value"
    name = "" if placement.lgq == "LGQ" else f"{placement.lgq} "
    text = f"{name}{column.write_sample(own)}"
    if column.metric in _AS_RATIO and best.mean > 0 and own.mean > 1.05 * best.mean:
        text += f" ({_times(own.mean / best.mean)} times the best)"
    return text


def _times(ratio: float) -> str:
    return f"{ratio:,.1f}" if ratio < 10 else f"{ratio:,.0f}"


def _earlier(results: ResultSet) -> set[str]:
    """Ids of the runs of an earlier protocol."""
    changes = changes_since(results)
    return set(changes.runs) if changes else set()


def _protocol(results: ResultSet, experiment: str, earlier: set[str]) -> str:
    """Whether the finished rows are of the present protocol, of an earlier one, or of both."""
    ids = {run.id for _, runs in results.rows(experiment) for run in runs}
    if not ids & earlier:
        return "present"
    return "earlier" if ids <= earlier else "partly an earlier"


def _names(results: ResultSet) -> Sequence[str]:
    """All experiments in the paper's order, then those that this version no longer has."""
    return list(dict.fromkeys((*EXPERIMENTS, *results.plans)))


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
