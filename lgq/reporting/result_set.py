"""A results directory as the report reads it: plans, finished runs, and metrics over training seeds.

RESULTS/experiments/NAME.json   plan of an experiment      RESULTS/rows/ID.json        record of a run
RESULTS/runs/ID/metrics.jsonl   its training curves        RESULTS/pictures/ID/*.png   its pictures
"""

import math
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Literal

from scipy.special import nctdtr, stdtrit  # type: ignore[import-untyped]

from lgq.errors import LGQError
from lgq.experiments.results_directory import Plan, PlannedRow, ResultsDirectory
from lgq.experiments.tables import BEST_LABEL, EXPERIMENTS
from lgq.experiments.tasks import BUSY_LOAD
from lgq.results import ResultsError
from lgq.training.journal import METRICS, read_records
from lgq.training.watch import WARNING

Better = Literal["higher", "lower"]
Settings = Mapping[str, Any]
"""Settings that a run must have, by their dotted names."""

_OF_A_SEED = re.compile(
    r"(tokenizer\.)?((quantizer_options\.|start\.)?seed|(validation_)?data\..*|start_from\..*|images|workers"
    r"|loop\.(log_every|checkpoint_every|keep|minutes|wandb))"
)
"""Settings in which the seeds of a row may differ: the seed, what only some records have (the images, which
are the same in a results directory), and what no number depends on."""

_MOST_SEEDS = 1_000
_ROUNDING = 1e-9
"""Deviation, relative to the largest value, up to which values are equal: differences are rounded."""
_POWER = 0.8
"""Probability with which the number of seeds that would decide finds the difference."""
TIMED = ("ms", "images_per_second", "share_of_step")
"""Metrics of `cost` that are timings; the others are memory."""
LEAST_TIMING_RATIO = 1.2
"""Ratio from which on two timings may differ; more where the records show more noise."""
_MEMORY_RATIO = 1.1
"""Ratio from which on the memory of two passes differs."""


@dataclass(frozen=True)
class Sample:
    """Values of one metric, one per training seed.

    Runs with the same seed start alike and see the same images. So a sample is ahead of another when the
    t-based 95% interval of their differences, seed by seed, excludes 0; where they share fewer than two
    seeds, when their own intervals do not touch. A single value has no interval, nor have values that are all
    equal, so nothing is ahead of them. Timings and memory have no seeds: they differ from a ratio on.
    """

    values: tuple[float, ...]
    runs: tuple[str, ...] = ()
    """Ids of the runs behind the values, in the same order."""
    timing: bool = False
    """Whether the values are time or memory of a quantizer, which have no seeds."""
    seeds: tuple[int | None, ...] = ()
    """Training seeds of the values, in the same order; empty where they are unknown."""
    ratio: float = 1.0
    """Ratio from which on timings or memory differ; 1 for values of seeds, which have intervals."""
    busy: bool = False
    """Whether a value was timed on a busy machine: it decides nothing."""

    def minus(self, other: "Sample") -> "Sample | None":
        """Return the differences to another sample, one per seed that both have; None for fewer than two."""
        ours, theirs = (dict(zip(sample.seeds, sample.values, strict=False)) for sample in (self, other))
        common = tuple(seed for seed in ours if seed is not None and seed in theirs)
        if len(common) < 2:
            return None
        return Sample(tuple(ours[seed] - theirs[seed] for seed in common), seeds=common)

    @property
    def effect(self) -> float | None:
        """Mean over standard deviation: the size of an effect, for differences; None without a deviation."""
        return self.mean / self.std if self.std and not self.is_constant else None

    @property
    def seeds_to_decide(self) -> int | None:
        """Number of seeds from which on the interval would exclude 0 with a probability of 80%, if mean and
        deviation stay as they are.

        None where it is above 1,000, or there is no deviation.
        """
        effect = abs(self.effect or 0.0)

        def power(n: int) -> float:
            return 1 - float(nctdtr(n - 1, effect * math.sqrt(n), stdtrit(n - 1, 0.975)))

        enough = (n for n in range(2, _MOST_SEEDS + 1) if power(n) >= _POWER)
        return next(enough, None) if effect else None

    @property
    def mean(self) -> float:
        return fmean(self.values)

    @property
    def std(self) -> float | None:
        """Sample standard deviation (n - 1); None for a single value."""
        return stdev(self.values) if len(self.values) > 1 else None

    @property
    def is_constant(self) -> bool:
        """Whether there are several values, all equal but for their rounding."""
        return self.std is not None and self.std <= _ROUNDING * max(map(abs, self.values))

    @property
    def interval(self) -> tuple[float, float] | None:
        """The t-based 95% interval of the mean; None for a single value, and for equal ones, whose deviation
        is unknown rather than 0. Of a timing, the values that do not differ from it by their ratio; None on a
        busy machine.
        """
        if self.busy:
            return None
        if self.timing:
            return self.mean / self.ratio**0.5, self.mean * self.ratio**0.5
        if self.std is None or self.is_constant:
            return None
        n = len(self.values)
        half = float(stdtrit(n - 1, 0.975)) * self.std / math.sqrt(n)
        return self.mean - half, self.mean + half


def compare_samples(a: Sample, b: Sample, better: Better | None) -> int:
    """1 where `a` is better than `b` by their intervals, -1 where it is worse, 0 where neither is seen."""
    if better is None:
        return 0
    if (difference := a.minus(b)) is not None:
        return compare_with_zero(difference, better)
    if a.interval is None or b.interval is None:
        return 0
    sign = (a.interval[0] > b.interval[1]) - (a.interval[1] < b.interval[0])
    return sign if better == "higher" else -sign


def compare_with_zero(difference: Sample, better: Better | None) -> int:
    """1 where differences are better than 0 by their interval, -1 where they are worse, 0 where neither is
    seen.
    """
    if better is None or difference.interval is None:
        return 0
    low, high = difference.interval
    sign = (low > 0) - (high < 0)
    return sign if better == "higher" else -sign


@dataclass(frozen=True)
class RunRecord:
    """Record of a finished run: its settings, metrics and training curves."""

    record: dict[str, Any]
    journal: tuple[dict[str, Any], ...] = ()
    """Lines of its metrics.jsonl."""
    tokenizer: "RunRecord | None" = None
    """The run whose tokens a generator learned; None for other runs."""

    @property
    def id(self) -> str:
        return str(self.record["id"])

    @property
    def kind(self) -> str:
        """tokenizer, generator or cost."""
        return str(self.record["kind"])

    @property
    def seed(self) -> int | None:
        """Training seed; None for a timing, which trains nothing."""
        seed = self.record.get("seed")
        return seed if isinstance(seed, int) and self.kind != "cost" else None

    @property
    def busy(self) -> bool:
        """Whether a timing was taken while the machine was busy with other work."""
        load, cores = self.value("load"), self.value("cores")
        return load is not None and load > BUSY_LOAD * (cores or 1)

    @property
    def floor_ms(self) -> list[float]:
        """Times of the matrix products of a step, which are the same work for every quantizer of one K."""
        others = self.record.get("others")
        rows = [self.record["metrics"], *(others if isinstance(others, list) else ())]
        return [ms for row in rows if (ms := _finite(_lookup(row, "floor_ms")))]

    @property
    def failed(self) -> str:
        """Why training diverged; empty where it did not."""
        return str(self.record.get("failed") or "")

    @property
    def warnings(self) -> list[str]:
        """What training warned of, such as a collapse of the codebook."""
        return [str(line.get("message")) for line in self.journal if line["split"] == WARNING]

    def setting(self, name: str) -> Any:
        """A setting by its dotted name; a generator also has the settings of its tokenizer."""
        own = _lookup(self.record, f"config.{name}")
        return self.tokenizer.setting(name) if own is None and self.tokenizer else own

    def has(self, settings: Settings) -> bool:
        return all(self.setting(name) == value for name, value in settings.items())

    @property
    def protocol(self) -> dict[str, Any]:
        """Settings that all seeds of a row share, by their dotted names; None is as good as no setting."""
        settings = flat_settings(self.record.get("config"))
        return {
            name: value for name, value in settings.items() if value is not None and not is_of_a_seed(name)
        }

    @property
    def evaluated_on_training_images(self) -> bool:
        """Whether validation and evaluation took the training images, for lack of others."""
        if self.tokenizer:
            return self.tokenizer.evaluated_on_training_images
        training, validation = (self.setting(f"{name}.source") for name in ("data", "validation_data"))
        # Experiments validate on a part of their validation images, which names the whole.
        return training is not None and str(validation).endswith(training)

    def value(self, name: str) -> float | None:
        """A finite number by name: a metric, `geometry.NAME`, `tokenizer.NAME`, or one of `DERIVED`."""
        if name in DERIVED:
            return DERIVED[name](self)
        group, _, metric = name.rpartition(".")
        if group == "tokenizer":
            return self.tokenizer.value(metric) if self.tokenizer else None
        return _finite(_lookup(self.record, f"{group or 'metrics'}.{metric}"))

    @property
    def use_images(self) -> int | None:
        """Number of images behind the use of codes; records from before it was named have that of their
        study."""
        record = self.record
        return record.get("use_images") or record.get("geometry_images") or record.get("images")

    def validation_images(self, metric: str = "") -> int | None:
        """Number of images behind a metric of a validation during training; None where it is not recorded."""
        asked = _finite(self.setting("rfid_images")) if metric == "rfid" else None
        asked = _finite(self.setting("validation_images")) if asked is None else asked
        there = _finite(self.setting("validation_data.images"))
        return None if asked is None else int(asked if there is None else min(asked, there))

    def curve(self, metric: str, split: str = "validation") -> dict[int, float]:
        """Values of a metric during training, by step."""
        lines = [line for line in self.journal if line["split"] == split]
        values = {line["step"]: _finite(line["values"].get(metric)) for line in lines}
        return {step: value for step, value in values.items() if value is not None}


def _active_codes(run: RunRecord) -> float | None:
    share, codes = run.value("utilization"), _finite(run.setting("codebook_size"))
    return None if share is None or codes is None else round(share * codes)


def _seconds_per_step(run: RunRecord) -> float | None:
    seconds, steps = _finite(run.record.get("seconds")), _finite(run.record.get("steps"))
    return seconds / steps if seconds and steps else None


def _first_full_step(run: RunRecord) -> float | None:
    return next((float(step) for step, used in run.curve("utilization").items() if used >= 1), None)


def _utilization_after_full(run: RunRecord) -> float | None:
    """The lowest utilization from the first validation on at which it was 100%."""
    full, curve = _first_full_step(run), run.curve("utilization")
    return None if full is None else min(used for step, used in curve.items() if step >= full)


def _norm_gap(run: RunRecord) -> float | None:
    """Above 1 where every live code is longer than every dead one; None where no code is dead."""
    live, dead = run.value("geometry.live_norm_min"), run.value("geometry.dead_norm_max")
    return live / dead if live is not None and dead else None


def _recovered_codes(run: RunRecord) -> float | None:
    """The largest fall of the number of dead codes between two validations of the second half."""
    dead = list(run.curve("dead_codes").values())
    late = dead[len(dead) // 2 :]
    if len(late) < 2 or not any(late):
        return None
    return max(before - after for i, before in enumerate(late) for after in late[i:])


def _images_per_second(run: RunRecord) -> float | None:
    """Speed of a timed quantizer, with the paper's 256 tokens per image."""
    ms, tokens = run.value("ms"), _finite(run.setting("tokens"))
    return tokens / 256 / ms * 1e3 if ms and tokens else None


def _first(values: Iterable[float]) -> float | None:
    return next(iter(values), None)


DERIVED: dict[str, Callable[[RunRecord], float | None]] = {
    "active_codes": _active_codes,
    "seconds_per_step": _seconds_per_step,
    "first_full_step": _first_full_step,
    "first_utilization": lambda run: _first(run.curve("utilization").values()),
    "last_utilization": lambda run: _first(reversed(run.curve("utilization").values())),
    "utilization_after_full": _utilization_after_full,
    "last_peak_term": lambda run: _first(reversed(run.curve("quantizer/peak", "train").values())),
    "least_diversity_term": lambda run: min(run.curve("quantizer/diversity", "train").values(), default=None),
    "norm_gap": _norm_gap,
    "recovered_codes": _recovered_codes,
    "images_per_second": _images_per_second,
}
"""Metrics that follow from a record and its curves."""


def _lookup(content: Any, name: str) -> Any:
    """The value under a dotted name; None where there is none."""
    for part in name.split("."):
        content = content.get(part) if isinstance(content, dict) else None
    return content


def is_of_a_seed(setting: str) -> bool:
    """Whether seeds of a row may differ in a setting."""
    return _OF_A_SEED.fullmatch(setting) is not None


def flat_settings(settings: Any, prefix: str = "") -> dict[str, Any]:
    """Nested settings by their dotted names."""
    flat: dict[str, Any] = {}
    for name, value in settings.items() if isinstance(settings, dict) else ():
        nested = isinstance(value, dict) and value
        flat |= flat_settings(value, f"{prefix}{name}.") if nested else {f"{prefix}{name}": value}
    return flat


def _finite(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) else None


@dataclass(frozen=True)
class ResultSet:
    """Contents of a results directory."""

    directory: ResultsDirectory
    plans: dict[str, Plan]
    """Plans by experiment."""
    runs: dict[str, RunRecord]
    """Finished runs by id."""
    damaged: dict[str, str] = field(default_factory=dict)
    """Files that were left out, with the reason."""

    @property
    def quantizers(self) -> set[str]:
        """Names of the quantizers of all runs."""
        return {str(name) for run in self.runs.values() if (name := run.setting("quantizer"))}

    def select(self, experiment: str, settings: Settings | None = None) -> list[RunRecord]:
        """Finished runs of an experiment that have these settings, in the order of its plan.

        Rows with the best options of the search are left out: claims are about quantizers as published.
        """
        rows = [(row, runs) for row, runs in self.rows(experiment) if not row.label.endswith(BEST_LABEL)]
        runs = {run.id: run for _, of_row in rows for run in of_row}
        return [run for run in runs.values() if run.has(settings or {})]

    def rows(self, experiment: str) -> list[tuple[PlannedRow, list[RunRecord]]]:
        """Rows of an experiment in the order of its plan, each with the finished runs of its seeds.

        Runs of a row that differ in more than the seed are no sample: those are left out that are not made
        like the run with the smallest seed, which is the newest, as every call plans seeds from 0 on.
        """
        return [
            (row, [run for run in runs if run.protocol == runs[0].protocol])
            for row, runs in self._planned(experiment)
        ]

    @property
    def mixed(self) -> dict[str, list[str]]:
        """Runs that are left out of their rows, by id, with the settings in which they differ."""
        return {
            run.id: [
                name for name in sorted(run.protocol.keys() | new) if run.protocol.get(name) != new.get(name)
            ]
            for experiment in self.plans
            for _, runs in self._planned(experiment)
            for run in runs
            if run.protocol != (new := runs[0].protocol)
        }

    def _planned(self, experiment: str) -> list[tuple[PlannedRow, list[RunRecord]]]:
        """Rows of an experiment, each with all its finished runs, by seed."""
        rows: dict[str, tuple[PlannedRow, list[RunRecord]]] = {}
        for row in self.plans[experiment].rows if experiment in self.plans else ():
            _, runs = rows.setdefault(row.row, (row, []))
            runs += [self.runs[row.id]] if row.id in self.runs else []
        for _, runs in rows.values():
            runs.sort(key=lambda run: run.seed or 0)
        return list(rows.values())

    def sample(self, experiment: str, metric: str, settings: Settings | None = None) -> Sample | None:
        """A metric over the seeds of the runs with these settings; None where no run has it."""
        return sample_of(self.select(experiment, settings), metric, self.timing_ratio)

    @cached_property
    def timing_ratio(self) -> float:
        """Ratio from which on timings differ: that of the same work over the rows of one K, or 1.2."""
        floors: dict[Any, list[float]] = {}
        for run in self.runs.values():
            if run.kind == "cost" and not run.busy:
                floors.setdefault(run.setting("codebook_size"), []).extend(run.floor_ms)
        return max([LEAST_TIMING_RATIO, *(max(ms) / min(ms) for ms in floors.values() if ms)])

    def command(self, run: RunRecord) -> str:
        """The command that made the run, quoted for a shell; empty where none is recorded."""
        recorded = run.record.get("command")
        words = [str(word) for word in recorded] if isinstance(recorded, list) else []
        # An experiment may have been renamed since: its plan has the name of now.
        if words[:2] == ["lgq", "experiment"] and words[2:] and words[2] not in EXPERIMENTS:
            plans = [name for name, plan in self.plans.items() if run.id in {row.id for row in plan.rows}]
            words[2] = next((name for name in plans if name in EXPERIMENTS), words[2])
        return shlex.join(words)

    @contextmanager
    def noting_damage(self, path: Path) -> Iterator[None]:
        """Leave out a file that cannot be read, and note why, by its path within the directory."""
        try:
            yield
        except (OSError, LGQError) as error:
            # The page must not show where the directory lies on this machine.
            self.damaged[str(path.relative_to(self.directory.root))] = str(error).replace(str(path), "it")


def sample_of(
    runs: Iterable[RunRecord], metric: str, timing_ratio: float = LEAST_TIMING_RATIO
) -> Sample | None:
    """A metric over runs that differ only in their seeds; None where no run has it.

    timing_ratio: ratio from which on timings differ.
    """
    measured = [(run, value) for run in runs if (value := run.value(metric)) is not None]
    if not measured:
        return None
    timing = all(run.kind == "cost" for run, _ in measured)
    values, seeds = tuple(value for _, value in measured), tuple(run.seed for run, _ in measured)
    timed = timing and metric in TIMED
    return Sample(
        values,
        tuple(run.id for run, _ in measured),
        timing,
        seeds,
        ratio=(timing_ratio if timed else _MEMORY_RATIO) if timing else 1.0,
        busy=timed and any(run.busy for run, _ in measured),
    )


def curve_of(runs: Iterable[RunRecord], metric: str) -> dict[int, Sample]:
    """A metric over seeds, at every step at which all runs that have it took it."""
    taken = [(run, curve) for run in runs if (curve := run.curve(metric))]
    steps: Sequence[int] = sorted(set.intersection(*(set(curve) for _, curve in taken))) if taken else []
    ids, seeds = tuple(run.id for run, _ in taken), tuple(run.seed for run, _ in taken)
    return {step: Sample(tuple(curve[step] for _, curve in taken), ids, seeds=seeds) for step in steps}


def read_result_set(directory: str | Path) -> ResultSet:
    """Read a results directory; damaged files are left out and named in `damaged`."""
    files = ResultsDirectory(directory)
    if not files.root.is_dir():
        raise ResultsError(f"there is no directory {directory}: give the one that `lgq experiment` filled.")
    results = ResultSet(files, plans={}, runs={})
    for path in sorted(files.root.glob("rows/*.json")):
        with results.noting_damage(path):
            record = files.record(path.stem) or {}
            for name, kind in {"id": str, "kind": str, "metrics": dict}.items():
                if not isinstance(record.get(name), kind):
                    raise ResultsError(f"{name!r} is missing or not of type {kind.__name__}")
            if record["id"] != path.stem:
                raise ResultsError(f"it is the record of {record['id']!r}")
            results.runs[path.stem] = RunRecord(record, _journal(results, path.stem))
    for path in sorted(files.root.glob("experiments/*.json")):
        with results.noting_damage(path):
            if plan := files.plan(path.stem):
                results.plans[path.stem] = plan
    if not results.runs and not results.plans:
        hint = f"; damaged: {', '.join(results.damaged)}" if results.damaged else ""
        raise ResultsError(f"{directory} holds no results{hint}: run `lgq experiment` into it first.")
    tokenizers = {id: results.runs.get(str(run.record.get("tokenizer"))) for id, run in results.runs.items()}
    linked = {id: replace(run, tokenizer=tokenizers[id]) for id, run in results.runs.items()}
    return replace(results, runs=linked)


def _journal(results: ResultSet, id: str) -> tuple[dict[str, Any], ...]:
    run, kinds = results.directory.run(id), {"split": str, "values": dict}
    with results.noting_damage(run / METRICS):
        lines = read_records(run)
        if all(isinstance(line.get(name), kind) for line in lines for name, kind in kinds.items()):
            return tuple(lines)
        raise ResultsError("a line is not the record of a step")
    return ()
