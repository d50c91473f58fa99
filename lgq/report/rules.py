"""Rules that decide a claim from records: reproduced, contradicted, not separable at this scale, or not run.

A rule compares samples over training seeds, and trusts a difference only where 95% intervals lie apart
(`intervals.py`). A rule of several parts is contradicted if one part is, and reproduced only if all are.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from lgq.report.columns import Column
from lgq.report.finished import Where
from lgq.report.intervals import Sample, ahead, separated
from lgq.report.ledger import Ledger
from lgq.report.tables import written


class Outcome(StrEnum):
    REPRODUCED = "reproduced"
    CONTRADICTED = "contradicted"
    NOT_SEPARABLE = "not separable at this scale"
    NOT_RUN = "not run"


class Contestant(NamedTuple):
    """Runs of one row, by a name and their settings."""

    name: str
    where: Where


class Finding(NamedTuple):
    """One comparison: what it says, in numbers, and the runs that these are of."""

    outcome: Outcome
    text: str
    runs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Rule:
    how: str
    """The rule in words."""
    decide: Callable[[Ledger], list[Finding]]


def overall(findings: Sequence[Finding]) -> Outcome:
    """One contradiction decides, and so does one thing that is missing; else the weakest part does."""
    found = {finding.outcome for finding in findings}
    order = (Outcome.CONTRADICTED, Outcome.NOT_RUN, Outcome.NOT_SEPARABLE, Outcome.REPRODUCED)
    return next((outcome for outcome in order if outcome in found), Outcome.NOT_RUN)


def all_of(*rules: Rule) -> Rule:
    how = "; and ".join(dict.fromkeys(rule.how for rule in rules))
    return Rule(how, lambda ledger: [finding for rule in rules for finding in rule.decide(ledger)])


def leads(experiment: str, columns: Iterable[Column], one: Contestant, others: Iterable[Contestant]) -> Rule:
    """One is ahead of each other in every column."""
    pairs = [(column, other) for column in columns for other in others]

    def decide(ledger: Ledger) -> list[Finding]:
        return [compared(ledger, experiment, column, one, other) for column, other in pairs]

    return Rule(f"{one.name} better, with intervals apart from each other row's", decide)


def trails(experiment: str, column: Column, one: Contestant, others: Iterable[Contestant]) -> Rule:
    """Each other is ahead of one."""
    parts = all_of(*(leads(experiment, [column], other, [one]) for other in others))
    return Rule(f"each other row better than {one.name}, with intervals apart", parts.decide)


def compared(ledger: Ledger, experiment: str, column: Column, one: Contestant, other: Contestant) -> Finding:
    """Is the first better?"""
    samples = [ledger.sample(experiment, column.metric, each.where) for each in (one, other)]
    first, second = samples
    if first is None or second is None:
        lacking = [each for each, sample in zip((one, other), samples, strict=True) if sample is None]
        return _missing(ledger, experiment, column, lacking)
    assert column.better is not None
    verdict = Outcome.NOT_SEPARABLE
    if separated(first, second):
        is_ahead = ahead(first, second, column.better)
        verdict = Outcome.REPRODUCED if is_ahead else Outcome.CONTRADICTED
    state = "apart" if separated(first, second) else _why_not(first, second)
    text = (
        f"{column.heading}: {_of(one, first, column)} against {_of(other, second, column)}, intervals {state}"
    )
    return Finding(verdict, text, first.runs + second.runs)


def improves_with_size(
    experiment: str, columns: Iterable[Column], who: Contestant, *, last_only: bool = False
) -> Rule:
    """Each larger codebook is ahead of the next smaller one."""

    def decide(ledger: Ledger) -> list[Finding]:
        rows = by_size(ledger, experiment, who)
        if len(rows) < 2:
            return [Finding(Outcome.NOT_RUN, f"{who.name} at two codebook sizes or more: not run")]
        pairs = list(zip(rows[1:], rows, strict=False))[-1 if last_only else 0 :]
        return [compared(ledger, experiment, column, *pair) for column in columns for pair in pairs]

    which = "the largest codebook better than the next" if last_only else "each larger codebook better"
    return Rule(f"{which}, with intervals apart", decide)


def by_size(ledger: Ledger, experiment: str, who: Contestant) -> list[Contestant]:
    """One contestant for each codebook size that was run, the smallest first."""
    found = {run.setting("codebook_size") for run in ledger.finished(experiment, who.where)}
    sizes = sorted(size for size in found if isinstance(size, int))
    return [Contestant(f"{who.name}, K = {size:,}", {**who.where, "codebook_size": size}) for size in sizes]


def at_every_size(
    experiment: str, who: Sequence[Contestant], part: Callable[[Sequence[Contestant]], Rule], how: str
) -> Rule:
    """A rule, once for each codebook size at which all of these were run."""

    def decide(ledger: Ledger) -> list[Finding]:
        rows = [
            {each.where["codebook_size"]: each for each in by_size(ledger, experiment, one)} for one in who
        ]
        shared = sorted(set.intersection(*(set(row) for row in rows)))
        if not shared:
            names = " and ".join(each.name for each in who)
            return [Finding(Outcome.NOT_RUN, f"{names} at one codebook size: not run")]
        return [finding for size in shared for finding in part([row[size] for row in rows]).decide(ledger)]

    return Rule(how, decide)


def between(
    experiment: str,
    column: Column,
    who: Contestant,
    *,
    least: float = float("-inf"),
    most: float = float("inf"),
    share_of: Contestant | None = None,
) -> Rule:
    """The interval lies within bounds, which may be shares of another row's mean."""
    bounds = " and ".join(
        f"{side} {column.write(bound) if share_of is None else f'{bound:g} times {share_of.name}'}"
        for side, bound in (("at least", least), ("at most", most))
        if abs(bound) < float("inf")
    )

    def decide(ledger: Ledger) -> list[Finding]:
        sample = ledger.sample(experiment, column.metric, who.where)
        scale = ledger.sample(experiment, column.metric, share_of.where) if share_of else Sample((1.0,))
        if sample is None or scale is None:
            lacking = who if sample is None else share_of
            return [_missing(ledger, experiment, column, [lacking] if lacking else [])]
        text = f"{column.title}: {_of(who, sample, column)}, bound {bounds}"
        if share_of:
            text += f" ({_of(share_of, scale, column)})"
        outcome = placed(sample, least * scale.mean, most * scale.mean)
        return [Finding(outcome, text, sample.runs + (scale.runs if share_of else ()))]

    return Rule(f"{who.name}: interval of {column.title} {bounds}", decide)


def placed(sample: Sample, least: float, most: float) -> Outcome:
    """Is the interval within the bounds, outside of them, or across one?"""
    if sample.interval is None:
        return Outcome.NOT_SEPARABLE
    low, high = sample.interval
    if least <= low and high <= most:
        return Outcome.REPRODUCED
    return Outcome.CONTRADICTED if high < least or low > most else Outcome.NOT_SEPARABLE


def flat(experiment: str, column: Column, rows: Sequence[Contestant], *, share: float) -> Rule:
    """The intervals of all rows lie in a narrow band around the first one's mean."""
    first, *others = rows
    bounds = {"least": 1 - share, "most": 1 + share}
    parts = all_of(*(between(experiment, column, row, **bounds, share_of=first) for row in others))
    return Rule(f"intervals of {column.title} within {share:.0%} of the mean of {first.name}", parts.decide)


def _of(who: Contestant, sample: Sample, column: Column) -> str:
    seeds = "1 seed" if sample.count == 1 else f"{sample.count} seeds"
    return f"{who.name} {written(sample, column)} ({seeds})"


def _why_not(*samples: Sample) -> str:
    return "touch" if all(sample.interval for sample in samples) else "unknown with one seed"


def _missing(ledger: Ledger, experiment: str, column: Column, lacking: Sequence[Contestant]) -> Finding:
    ran = [each.name for each in lacking if ledger.finished(experiment, each.where)]
    not_run = [each.name for each in lacking if each.name not in ran]
    parts = [f"not run: {', '.join(not_run)}"] if not_run else []
    parts += [f"{column.title} not taken of {', '.join(ran)}"] if ran else []
    return Finding(Outcome.NOT_RUN, f"{column.title}: {'; '.join(parts)}")
