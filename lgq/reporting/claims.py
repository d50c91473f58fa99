"""Claims of the LGQ paper, read from paper.toml, and whether our records reproduce them.

Each claim has rules of six kinds (`KINDS`), which decide it from the records alone. A rule compares
samples over training seeds, and counts a difference only where its interval excludes 0 (`Sample`). A claim
that needs another scale than ours says so in paper.toml, with the reason, and is not counted with the rest.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from itertools import combinations, product
from statistics import correlation
from typing import Any, Literal, NamedTuple

from lgq.reporting.paper_tables import COLUMNS, Column, read_paper
from lgq.reporting.result_set import (
    TIMED,
    Better,
    ResultSet,
    Sample,
    Settings,
    compare_samples,
    curve_of,
    flat_settings,
)

_PAPER_SCALE = "imagenet256"
_TRIAL_SCALE = "smoke"
_APART = "with intervals of the differences that exclude 0"
_APART_IN_TIME = "by more than the same work varies over the rows of one K, and by a fifth at least"
_APART_IN_MEMORY = "by a tenth at least"


class Outcome(StrEnum):
    """What our records say about a claim."""

    REPRODUCED = "reproduced"
    CONTRADICTED = "contradicted"
    NOT_SEPARABLE = "not separable at this scale"
    TOO_SMALL = "too small a scale to judge"
    OTHER_SCALE = "needs another scale"
    NOT_RUN = "not run"
    BY_EYE = "to be judged by eye"


_BY_SIGN = {1: Outcome.REPRODUCED, 0: Outcome.NOT_SEPARABLE, -1: Outcome.CONTRADICTED}
"""Outcomes by the sign of a comparison."""


class Selection(NamedTuple):
    """Runs that have the same settings but for their seeds, with a name."""

    name: str
    settings: Settings

    def at(self, codebook_size: int | None) -> "Selection":
        """The same runs at one codebook size; None leaves all."""
        if codebook_size is None:
            return self
        settings = {**self.settings, "codebook_size": codebook_size}
        return Selection(f"{self.name} (K = {codebook_size:,})", settings)


class Finding(NamedTuple):
    """One comparison: its outcome, its numbers in words, and the ids of the runs behind them."""

    outcome: Outcome
    text: str
    runs: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Rule(ABC):
    """A way to decide a claim from the records of one experiment."""

    experiment: str

    @property
    @abstractmethod
    def text(self) -> str:
        """The rule in words."""

    @abstractmethod
    def compare(self, results: ResultSet) -> list[Finding]:
        """All comparisons of the rule."""

    def decide(self, results: ResultSet) -> list[Finding]:
        """All comparisons. Trials, which take seconds, decide nothing."""
        findings, plan = [*self.compare(results), *self._waiting(results)], results.plans.get(self.experiment)
        if plan and plan.scale == _TRIAL_SCALE:
            return [
                finding._replace(outcome=Outcome.TOO_SMALL)
                if finding.outcome is not Outcome.NOT_RUN
                else finding
                for finding in findings
            ]
        return findings

    def sample(self, results: ResultSet, column: Column, row: Selection) -> Sample | None:
        return results.sample(self.experiment, column.metric, row.settings)

    def sizes(self, results: ResultSet, rows: Iterable[Selection]) -> list[int]:
        """Codebook sizes at which all rows were run, in ascending order."""
        selected = [results.select(self.experiment, row.settings) for row in rows]
        by_row = [{run.setting("codebook_size") for run in runs} for runs in selected]
        return sorted(size for size in set.intersection(*by_row) if isinstance(size, int))

    def over_sizes(self) -> tuple[Selection, ...]:
        """Rows that the rule compares at all codebook sizes of the plan; none for other rules."""
        return ()

    def _waiting(self, results: ResultSet) -> list[Finding]:
        """The finding that sizes which the plan has for all rows of `over_sizes` are not all run."""
        selections = self.over_sizes()
        if not selections or self.experiment not in results.plans:
            return []
        planned = results.rows(self.experiment)
        labels = [
            {row.label for row, runs in planned if any(run.has(selection.settings) for run in runs)}
            for selection in selections
        ]
        sizes: dict[str, dict[str, bool]] = {}
        for row, runs in planned:
            sizes.setdefault(row.group, {})[row.label] = bool(runs)
        waiting = [
            size
            for size, finished in sizes.items()
            if all(of_row & finished.keys() for of_row in labels)
            and not all(any(finished[label] for label in of_row & finished.keys()) for of_row in labels)
        ]
        return [Finding(Outcome.NOT_RUN, f"not run yet at {', '.join(waiting)}")] if waiting else []

    def missing(self, results: ResultSet, column: Column, rows: Sequence[Selection]) -> Finding:
        """The finding for rows without a value: were they not run, or not measured?"""
        measured = [row.name for row in rows if results.select(self.experiment, row.settings)]
        not_run = [row.name for row in rows if row.name not in measured]
        parts = [f"not run: {', '.join(not_run)}"] if not_run else []
        parts += [f"not measured for {', '.join(measured)}"] if measured else []
        return Finding(Outcome.NOT_RUN, f"{column.title}: {'; '.join(parts)}")

    def compare_pair(self, results: ResultSet, column: Column, row: Selection, rival: Selection) -> Finding:
        """Is `row` better than `rival`, by their intervals?"""
        first, second = (self.sample(results, column, selection) for selection in (row, rival))
        if first is None or second is None:
            without = [name for name, sample in ((row, first), (rival, second)) if sample is None]
            return self.missing(results, column, without)
        sign = compare_samples(first, second, column.better)
        state = _describe_difference(first, second, column, sign)
        if first.timing and first.mean:
            state = f"ratio {second.mean / first.mean:.2f}, {_describe_noise(first, second)}"
        numbers = f"{_describe(row, first, column)} against {_describe(rival, second, column)}"
        return Finding(_BY_SIGN[sign], f"{column.heading}: {numbers}, {state}", first.runs + second.runs)


@dataclass(frozen=True, kw_only=True)
class Leads(Rule):
    """Every row of `rows` is better than every row of `over`, in every column."""

    columns: tuple[Column, ...]
    rows: tuple[Selection, ...]
    over: tuple[Selection, ...]
    at: Literal["", "every size", "largest size", "every validation"] = ""
    """Where: by default at the checkpoint that was evaluated. Sizes are those at which all rows were run. At
    every validation, the first column that was measured during training counts."""
    skip_missing: bool = False
    """Whether to skip sizes at which a row has no value, as it did not fit into memory."""
    times: float = 1.0
    """How many times better the mean must be; a smaller lead contradicts the claim."""

    @property
    def text(self) -> str:
        joint = " or " if self.at == "every validation" else ", "
        columns = joint.join(column.title for column in self.columns)
        place = self.at.replace("every size", "every K").replace("largest size", "the largest K")
        relation = f"{_names(self.rows)} better than {_names(self.over)} in {columns}"
        factor = f"at least {self.times:g} times " if self.times > 1 else ""
        where = f"{' at ' if place else ''}{place}"
        return f"{relation.replace('better', f'{factor}better', 1)}{where}, {_apart(self.columns)}"

    def over_sizes(self) -> tuple[Selection, ...]:
        return (*self.rows, *self.over) if self.at in ("every size", "largest size") else ()

    def compare(self, results: ResultSet) -> list[Finding]:
        pairs = list(product(self.rows, self.over))
        if self.at == "every validation":
            taken = [column for column in self.columns if self._curve(results, column, self.rows[0])]
            return [self._compare_curves(results, column, *pair) for column in taken[:1] for pair in pairs]
        sizes: Sequence[int | None] = [None]
        if self.at:
            sizes = self.sizes(results, (*self.rows, *self.over))[-1 if self.at == "largest size" else 0 :]
        if not sizes:
            names = _names((*self.rows, *self.over))
            return [Finding(Outcome.NOT_RUN, f"{names} at the same codebook size: not run")]
        findings = [
            self._compare_means(results, column, row.at(size), rival.at(size))
            for size, column, (row, rival) in product(sizes, self.columns, pairs)
        ]
        measured = [finding for finding in findings if finding.outcome is not Outcome.NOT_RUN]
        return measured if self.skip_missing and measured else findings

    def _compare_means(self, results: ResultSet, column: Column, row: Selection, rival: Selection) -> Finding:
        finding = self.compare_pair(results, column, row, rival)
        if self.times == 1 or finding.outcome is not Outcome.REPRODUCED:
            return finding
        first, second = (self.sample(results, column, selection) for selection in (row, rival))
        if not first or not second or not first.mean or not second.mean:
            return finding
        lead = first.mean / second.mean if column.better == "higher" else second.mean / first.mean
        noise = first.ratio if first.timing else 1.0
        if lead >= self.times * noise:
            return finding
        if lead * noise > self.times:
            text = f"{finding.text}, not separable from the claimed {self.times:g}"
            return finding._replace(outcome=Outcome.NOT_SEPARABLE, text=text)
        text = f"{finding.text}, less than the claimed {self.times:g}"
        return finding._replace(outcome=Outcome.CONTRADICTED, text=text)

    def _compare_curves(
        self, results: ResultSet, column: Column, row: Selection, rival: Selection
    ) -> Finding:
        first, second = (self._curve(results, column, selection) for selection in (row, rival))
        steps = sorted(first.keys() & second.keys())
        if not steps:
            names = f"{row.name} and {rival.name}"
            return Finding(Outcome.NOT_RUN, f"{column.title} of {names}: no common validation")
        signs = [compare_samples(first[step], second[step], column.better) for step in steps]
        wins = f"ahead of {rival.name} at {signs.count(1)} of {len(steps)} validations"
        text = f"{column.title}: {row.name} {wins}, behind at {signs.count(-1)}"
        return Finding(_BY_SIGN[min(signs)], text, first[steps[0]].runs + second[steps[0]].runs)

    def _curve(self, results: ResultSet, column: Column, row: Selection) -> dict[int, Sample]:
        return curve_of(results.select(self.experiment, row.settings), column.metric)


@dataclass(frozen=True, kw_only=True)
class Between(Rule):
    """The interval of a column lies within bounds, for every row."""

    column: Column
    rows: tuple[Selection, ...]
    least: float = float("-inf")
    most: float = float("inf")
    share_of: Selection | None = None
    """Row whose mean the bounds are multiples of; None for absolute bounds."""
    at: Literal["", "every size"] = ""
    proved: bool = False
    """Whether the bound is a theorem: single runs decide it, without intervals."""

    @property
    def text(self) -> str:
        place = ", at every K" if self.at else ""
        subject = "each run's" if self.proved else "interval of"
        return f"{_names(self.rows)}: {subject} {self.column.title} {self._bounds}{place}"

    @property
    def _bounds(self) -> str:
        sides = [("at least", self.least), ("at most", self.most)]
        unit = f" times {self.share_of.name}" if self.share_of else ""
        return " and ".join(
            f"{side} {bound:g}{unit}" if unit else f"{side} {self._write(bound)}"
            for side, bound in sides
            if abs(bound) < float("inf")
        )

    def _write(self, bound: float) -> str:
        space = "" if self.column.unit == "%" else " "
        return f"{self.column.write(bound)}{space}{self.column.unit}".rstrip()

    def over_sizes(self) -> tuple[Selection, ...]:
        return self.rows if self.at else ()

    def compare(self, results: ResultSet) -> list[Finding]:
        rows = [row.at(size) for row in self.rows for size in self.sizes(results, [row])]
        if self.at and not rows:
            return [Finding(Outcome.NOT_RUN, f"{_names(self.rows)} at any codebook size: not run")]
        return [self._place(results, row) for row in (rows if self.at else self.rows)]

    def _place(self, results: ResultSet, row: Selection) -> Finding:
        sample, unit = self.sample(results, self.column, row), Sample((1.0,))
        if sample is None:
            return self.missing(results, self.column, [row])
        text = f"{self.column.label}: {_describe(row, sample, self.column)}, bound {self._bounds}"
        if self.share_of:
            reference = self.sample(results, self.column, self.share_of)
            if reference is None:
                return self.missing(results, self.column, [self.share_of])
            unit, text = reference, f"{text} ({_describe(self.share_of, reference, self.column)})"
        interval = (min(sample.values), max(sample.values)) if self.proved else _interval(sample)
        outcome = _place(interval, self.least * unit.mean, self.most * unit.mean)
        if self.proved and outcome is Outcome.NOT_SEPARABLE:  # one run breaks it
            outcome = Outcome.CONTRADICTED
        return Finding(outcome, text, sample.runs + unit.runs)


@dataclass(frozen=True, kw_only=True)
class Monotone(Rule):
    """Every larger codebook is better than the next smaller one, in every column."""

    columns: tuple[Column, ...]
    row: Selection
    better: Better | None = None
    """Direction that counts as better; None for that of the column."""
    largest_only: bool = False
    """Whether to compare only the two largest codebooks."""

    @property
    def text(self) -> str:
        subject = "the largest codebook" if self.largest_only else "each larger codebook"
        relation = self.better or "better"
        columns = ", ".join(column.title for column in self.columns)
        return f"{columns} of {subject} {relation} than of the next smaller one, {_APART}"

    def over_sizes(self) -> tuple[Selection, ...]:
        return (self.row,)

    def compare(self, results: ResultSet) -> list[Finding]:
        sizes = self.sizes(results, [self.row])
        if len(sizes) < 2:
            return [Finding(Outcome.NOT_RUN, f"{self.row.name} at two codebook sizes or more: not run")]
        pairs = list(zip(sizes[1:], sizes, strict=False))[-1 if self.largest_only else 0 :]
        columns = [replace(column, better=self.better or column.better) for column in self.columns]
        return [
            self.compare_pair(results, column, self.row.at(larger), self.row.at(smaller))
            for column, (larger, smaller) in product(columns, pairs)
        ]


@dataclass(frozen=True, kw_only=True)
class Ratio(Rule):
    """The largest mean of a column over the smallest lies within bounds."""

    column: Column
    rows: tuple[Selection, ...]
    most: float
    least: float = 1.0
    at: Literal["", "every size"] = ""
    """"every size" compares the largest codebook of the one row with the smallest."""
    linear: bool = False
    """Whether bounds are multiples of the growth of the codebook."""

    @property
    def text(self) -> str:
        bounds = f"{self.least:g} to {self.most:g} times{' the growth of K times' if self.linear else ''}"
        noise = ", beyond what timings vary" if self.column.metric in TIMED else ""
        if not self.at:
            return f"the largest {self.column.title} {bounds} the smallest{noise}"
        return f"{self.column.title} at the largest K {bounds} that at the smallest{noise}"

    def over_sizes(self) -> tuple[Selection, ...]:
        return self.rows if self.at else ()

    def compare(self, results: ResultSet) -> list[Finding]:
        sizes = self.sizes(results, self.rows) if self.at else []
        rows = {size: self.rows[0].at(size) for size in sizes} or dict(enumerate(self.rows))
        samples = {key: self.sample(results, self.column, row) for key, row in rows.items()}
        measured = {key: sample for key, sample in samples.items() if sample and sample.mean}
        if self.at and len(sizes) < 2:
            names = _names(self.rows)
            return [Finding(Outcome.NOT_RUN, f"{names} at two codebook sizes or more: not run")]
        if len(measured) < 2:
            return [self.missing(results, self.column, self.rows)]
        means = {key: sample.mean for key, sample in measured.items()}
        ordered = list(means.values()) if self.at else sorted(means.values())
        ratio, growth = ordered[-1] / ordered[0], max(means) / min(means) if self.linear else 1.0
        listed = ", ".join(f"{rows[key].name} {self.column.write(mean)}" for key, mean in means.items())
        runs = tuple(run for sample in measured.values() for run in sample.runs)
        text = f"{self.column.label}: {listed}; ratio {ratio:.2f}"
        timed = [sample for sample in measured.values() if sample.timing]
        noise = max((sample.ratio for sample in timed), default=1.0)
        text += f", {_describe_noise(*timed)}" if timed else ""
        interval = None if any(sample.busy for sample in timed) else (ratio / noise, ratio * noise)
        return [Finding(_place(interval, self.least * growth, self.most * growth), text, runs)]


@dataclass(frozen=True, kw_only=True)
class Order(Rule):
    """The orders of the rows by two columns agree, though not fully; or some pair changes places."""

    first: Column
    second: Column
    rows: tuple[Selection, ...]
    relation: Literal["agree", "differ"]

    @property
    def text(self) -> str:
        columns = f"{self.first.title} and {self.second.title}"
        if self.relation == "agree":
            return f"interval over seeds of the rank correlation of {columns} above 0, its mean below 1"
        return f"two rows in opposite orders by {columns}, {_APART}"

    def compare(self, results: ResultSet) -> list[Finding]:
        if self.relation == "agree":
            return [self._correlation(results)]
        findings = [self._exchange(results, *pair) for pair in combinations(self.rows, 2)]
        measured = [finding for finding in findings if finding.outcome is not Outcome.NOT_RUN]
        exchanged = [finding for finding in measured if finding.outcome is Outcome.REPRODUCED]
        return exchanged or measured or findings[:1]

    def _correlation(self, results: ResultSet) -> Finding:
        by_seed: dict[int | None, list[tuple[float, float]]] = {}
        runs = [run for row in self.rows for run in results.select(self.experiment, row.settings)]
        for run in runs:
            first, second = run.value(self.first.metric), run.value(self.second.metric)
            if first is not None and second is not None:
                by_seed.setdefault(run.seed, []).append((first, second))
        ranked = [pairs for pairs in by_seed.values() if len(pairs) >= 3]
        if not ranked:
            columns = f"{self.first.title} and {self.second.title}"
            return Finding(Outcome.NOT_RUN, f"{columns} of three rows: not run")
        sign = 1 if self.first.better == self.second.better else -1
        agreement = Sample(tuple(sign * rank_correlation(*zip(*pairs, strict=True)) for pairs in ranked))
        outcome = _place(_interval(agreement), 0.0, 1.0) if agreement.mean < 1 else Outcome.CONTRADICTED
        listed = ", ".join(f"{value:+.2f}" for value in agreement.values)
        columns = f"{self.first.title} with quality by {self.second.title}"
        text = f"rank correlation of {columns}, per seed: {listed}"
        return Finding(outcome, text, tuple(run.id for run in runs))

    def _exchange(self, results: ResultSet, *pair: Selection) -> Finding:
        names, runs = [row.name for row in pair], tuple[str, ...]()
        sign, places = -1, []
        for column in (self.first, self.second):
            first, second = (self.sample(results, column, row) for row in pair)
            if first is None or second is None:
                return Finding(Outcome.NOT_RUN, f"{column.title} of {' and '.join(names)}: not run")
            lead = compare_samples(first, second, column.better)
            state = ("not separable", f"{names[0]} ahead", f"{names[1]} ahead")[lead]
            places.append(f"{state} by {column.title}")
            sign, runs = sign * lead, first.runs + second.runs
        return Finding(_BY_SIGN[sign], f"{' and '.join(names)}: {', '.join(places)}", runs)


@dataclass(frozen=True, kw_only=True)
class Fits(Rule):
    """At the largest codebook that both rows were tried at, `row` runs and `rival` does not fit."""

    column: Column
    """Column that a row has where it fits."""
    row: Selection
    rival: Selection

    @property
    def text(self) -> str:
        return f"at the largest K of both, {self.row.name} runs and {self.rival.name} does not fit"

    def compare(self, results: ResultSet) -> list[Finding]:
        sizes = self.sizes(results, (self.row, self.rival))
        if not sizes:
            return [self.missing(results, self.column, (self.row, self.rival))]
        rows = [row.at(sizes[-1]) for row in (self.row, self.rival)]
        samples = [self.sample(results, self.column, row) for row in rows]
        words = ["did not fit" if sample is None else self.column.write(sample.mean) for sample in samples]
        text = f"{self.column.label}: {rows[0].name} {words[0]}, {rows[1].name} {words[1]}"
        holds = samples[0] is not None and samples[1] is None
        runs = tuple(run for sample in samples if sample for run in sample.runs)
        return [Finding(Outcome.REPRODUCED if holds else Outcome.CONTRADICTED, text, runs)]


KINDS: dict[str, type[Rule]] = {
    kind.__name__.lower(): kind for kind in (Leads, Between, Monotone, Ratio, Order, Fits)
}
"""Kinds of rule in paper.toml."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A claim of the LGQ paper, in our words."""

    id: str
    source: str
    """Part of the paper that makes the claim, and its table, figure or section."""
    text: str
    printed: str
    """The paper's own numbers."""
    rules: tuple[Rule, ...] = ()
    scale: str = ""
    """Why the claim needs the paper's scale, said before any run; empty where others can decide it."""
    see: str = ""
    """Pictures to look at, for a claim that no number decides: the stem of their files."""

    @property
    def rule_text(self) -> str:
        """The rules in words."""
        return "; and ".join(dict.fromkeys(rule.text for rule in self.rules)) or Outcome.BY_EYE


class Verdict(NamedTuple):
    """The outcome of a claim, with the comparisons that decided it."""

    claim: Claim
    outcome: Outcome
    findings: tuple[Finding, ...]


@cache
def paper_claims() -> dict[str, Claim]:
    """Claims of the paper by id, in its order."""
    entries: list[dict[str, Any]] = read_paper()["claims"]
    rules = {entry["id"]: tuple(_rule(**rule) for rule in entry.get("rules", ())) for entry in entries}
    return {entry["id"]: Claim(**entry | {"rules": rules[entry["id"]]}) for entry in entries}


def _rule(kind: str, **arguments: Any) -> Rule:
    return KINDS[kind](**{name: _argument(name, value) for name, value in arguments.items()})


def _argument(name: str, value: Any) -> Any:
    """Metrics become columns and names of rows become selections."""
    if name in ("columns", "rows", "over"):
        return tuple(_argument(name[:-1] if name != "over" else "row", item) for item in value)
    if name in ("column", "first", "second"):
        return COLUMNS[value]
    if name in ("row", "rival", "share_of"):
        return Selection(value, flat_settings(read_paper()["rows"][value]))
    return value


def decide_claims(results: ResultSet) -> list[Verdict]:
    """Every claim with its outcome, in the paper's order."""
    return [decide(claim, results) for claim in paper_claims().values()]


def decide(claim: Claim, results: ResultSet) -> Verdict:
    findings = [finding for rule in claim.rules for finding in rule.decide(results)]
    if claim.scale and not all(_is_paper_scale(results, rule) for rule in claim.rules):
        return Verdict(claim, Outcome.OTHER_SCALE, (Finding(Outcome.OTHER_SCALE, claim.scale),))
    if claim.see:
        findings = [Finding(Outcome.BY_EYE, "look at the pictures")]
    return Verdict(claim, overall(findings), tuple(findings))


def _is_paper_scale(results: ResultSet, rule: Rule) -> bool:
    plan = results.plans.get(rule.experiment)
    return plan is not None and plan.scale == _PAPER_SCALE


def overall(findings: Sequence[Finding]) -> Outcome:
    """One contradiction decides, then one missing run; otherwise the weakest comparison does."""
    outcomes = {finding.outcome for finding in findings}
    order = (
        Outcome.BY_EYE,
        Outcome.CONTRADICTED,
        Outcome.TOO_SMALL,
        Outcome.NOT_RUN,
        Outcome.NOT_SEPARABLE,
        Outcome.REPRODUCED,
    )
    return next((outcome for outcome in order if outcome in outcomes), Outcome.NOT_RUN)


def count_outcomes(verdicts: Iterable[Verdict]) -> dict[Outcome, int]:
    """Number of claims with each outcome."""
    outcomes = [verdict.outcome for verdict in verdicts]
    return {outcome: outcomes.count(outcome) for outcome in Outcome}


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float:
    """Spearman's rank correlation; 0 where all values of one sequence are equal."""
    constant = len(set(first)) == 1 or len(set(second)) == 1
    return 0.0 if constant else correlation(_ranks(first), _ranks(second))


def _ranks(values: Sequence[float]) -> list[float]:
    """Ranks from 0 on; equal values share the mean of their ranks."""
    return [sum(v < value for v in values) + (sum(v == value for v in values) - 1) / 2 for value in values]


def _interval(sample: Sample) -> tuple[float, float] | None:
    """The interval that is held against bounds. Where all seeds have one value, it is this value: a share of
    100%, or a rank correlation of 1, has no deviation.
    """
    return (sample.mean, sample.mean) if sample.is_constant and not sample.timing else sample.interval


def _place(interval: tuple[float, float] | None, least: float, most: float) -> Outcome:
    """Whether an interval lies within the bounds, outside them, or across one."""
    if interval is None:
        return Outcome.NOT_SEPARABLE
    low, high = interval
    if least <= low and high <= most:
        return Outcome.REPRODUCED
    return Outcome.CONTRADICTED if high < least or low > most else Outcome.NOT_SEPARABLE


def _describe(row: Selection, sample: Sample, column: Column) -> str:
    seeds = f" ({len(sample.values)} seed{'s' if len(sample.values) > 1 else ''})"
    return f"{row.name} {column.write_sample(sample)}{'' if sample.timing else seeds}"


def _describe_difference(first: Sample, second: Sample, column: Column, sign: int) -> str:
    """Say how two samples differ, and how many seeds would decide where these do not."""
    difference = first.minus(second)
    if difference is None or difference.interval is None:
        if difference is not None:
            mean = column.write(difference.mean, "+")
            return f"difference by seed {mean}, the same for all seeds: no interval"
        if not first.timing and (first.is_constant or second.is_constant):
            return "intervals unknown where all seeds agree"
        known = first.interval and second.interval
        return f"intervals {'apart' if sign else 'touch' if known else 'unknown with one seed'}"
    low, high = (column.write(bound, "+") for bound in difference.interval)
    text = f"difference by seed {column.write(difference.mean, '+')} ({low} to {high}"
    text += f", {difference.effect:+.1f} deviations)" if difference.effect else ")"
    if sign:
        return text
    needed = difference.seeds_to_decide
    seeds = f"{needed:,} seeds" if needed else "more than 1,000 seeds"
    return f"{text}; if it stays, {seeds} would decide with a probability of 80%"


def _describe_noise(*timed: Sample) -> str:
    """Say from which ratio on timings or memory differ, or that they decide nothing."""
    if any(sample.busy for sample in timed):
        return "timed on a busy machine, which decides nothing"
    return f"apart from a ratio of {max(sample.ratio for sample in timed):.2f} on"


def _apart(columns: Iterable[Column]) -> str:
    """When two rows count as apart in these columns."""
    metrics = {column.metric for column in columns}
    if metrics & set(TIMED):
        return _APART_IN_TIME
    return _APART_IN_MEMORY if metrics & {"extra_bytes"} else _APART


def _names(rows: Iterable[Selection]) -> str:
    return ", ".join(row.name for row in rows)
