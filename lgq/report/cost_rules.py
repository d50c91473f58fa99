"""Rules about time and memory, which have no seeds: a difference counts from a tenth on."""

from collections.abc import Sequence
from typing import NamedTuple

from lgq.report.columns import Column
from lgq.report.ledger import Ledger, sample_of
from lgq.report.rules import Contestant, Finding, Outcome, Rule, by_size

_PAPERS_SCALE = "imagenet256"
TELLING = 1.1
"""Ratio from which on a difference between two timings counts."""


class Cost(NamedTuple):
    value: float
    runs: tuple[str, ...]


def cheaper(experiment: str, column: Column, one: Contestant, other: Contestant) -> Rule:
    """At every codebook size that both were measured at."""

    def decide(ledger: Ledger) -> list[Finding]:
        costs = [_by_size(ledger, experiment, column, each) for each in (one, other)]
        shared = sorted(costs[0].keys() & costs[1].keys())
        if not shared:
            return [_not_run(column, one, other)]
        return [_ratio(column, one, other, size, *(cost[size] for cost in costs)) for size in shared]

    return Rule(f"{one.name} cheaper than {other.name} by a tenth or more at every K", decide)


def grows(
    experiment: str, column: Column, who: Contestant, *, least: float, most: float, linear: bool = False
) -> Rule:
    """From the smallest codebook to the largest by a factor, or by one in proportion to the codebook."""

    def decide(ledger: Ledger) -> list[Finding]:
        costs = _by_size(ledger, experiment, column, who)
        if len(costs) < 2:
            return [_not_run(column, who)]
        small, large = min(costs), max(costs)
        growth = costs[large].value / costs[small].value
        measured = growth / (large / small) if linear else growth
        text = (
            f"{column.title} of {who.name}: {column.write(costs[small].value)} at K = {small:,}, "
            f"{column.write(costs[large].value)} at K = {large:,}, {growth:.2f} times as much"
        )
        fits = least <= measured <= most
        runs = costs[small].runs + costs[large].runs
        return [Finding(Outcome.REPRODUCED if fits else Outcome.CONTRADICTED, text, runs)]

    relation = " times the growth of K" if linear else ""
    return Rule(f"grows by {least:g} to {most:g}{relation} from the smallest K to the largest", decide)


def alike(experiment: str, column: Column, who: Sequence[Contestant], *, most: float) -> Rule:
    """The dearest of those that were run costs little more than the cheapest."""

    def decide(ledger: Ledger) -> list[Finding]:
        samples = {each.name: ledger.sample(experiment, column.metric, each.where) for each in who}
        found = {name: sample for name, sample in samples.items() if sample is not None}
        if len(found) < 2:
            return [_not_run(column, *who)]
        means = {name: sample.mean for name, sample in found.items()}
        ratio = max(means.values()) / min(means.values())
        listed = ", ".join(f"{name} {column.write(mean)}" for name, mean in means.items())
        outcome = Outcome.REPRODUCED if ratio <= most else Outcome.CONTRADICTED
        runs = tuple(run for sample in found.values() for run in sample.runs)
        return [Finding(outcome, f"{column.title}: {listed}; largest over least {ratio:.2f}", runs)]

    return Rule(f"the largest at most {most:g} times the least", decide)


def beside_the_papers_networks(experiment: str, rule: Rule) -> Rule:
    """What a quantizer costs beside its networks says something only where these are the paper's."""

    def decide(ledger: Ledger) -> list[Finding]:
        plan = ledger.plans.get(experiment)
        findings = rule.decide(ledger)
        return findings if plan and plan.scale == _PAPERS_SCALE else list(map(_beside_others, findings))

    return Rule(f"{rule.how}, beside networks of the paper's size", decide)


def _beside_others(finding: Finding) -> Finding:
    if finding.outcome is Outcome.NOT_RUN:
        return finding
    return finding._replace(outcome=Outcome.NOT_SEPARABLE, text=f"{finding.text}; the networks are smaller")


def share_at(
    experiment: str, column: Column, who: Contestant, size: int, *, least: float, most: float
) -> Rule:
    """A share within bounds, at one codebook size."""

    def decide(ledger: Ledger) -> list[Finding]:
        cost = _by_size(ledger, experiment, column, who).get(size)
        if cost is None:
            return [_not_run(column, who)]
        outcome = Outcome.REPRODUCED if least <= cost.value <= most else Outcome.CONTRADICTED
        text = f"{column.title} of {who.name} at K = {size:,}: {column.write(cost.value)}"
        return [Finding(outcome, text, cost.runs)]

    return Rule(f"between {column.write(least)} and {column.write(most)} at K = {size:,}", decide)


def outlasts(experiment: str, column: Column, one: Contestant, other: Contestant) -> Rule:
    """At the largest codebook that both were tried at, one ran and the other did not fit."""

    def decide(ledger: Ledger) -> list[Finding]:
        tried = [
            {each.where["codebook_size"] for each in by_size(ledger, experiment, who)} for who in (one, other)
        ]
        shared = tried[0] & tried[1]
        if not shared:
            return [_not_run(column, one, other)]
        size = max(shared)
        costs = [_by_size(ledger, experiment, column, each).get(size) for each in (one, other)]
        words = ["did not fit" if cost is None else column.write(cost.value) for cost in costs]
        text = f"{column.title} at K = {size:,}: {one.name} {words[0]}, {other.name} {words[1]}"
        fits = costs[0] is not None and costs[1] is None
        runs = tuple(run for cost in costs if cost for run in cost.runs)
        return [Finding(Outcome.REPRODUCED if fits else Outcome.CONTRADICTED, text, runs)]

    return Rule(f"at the largest K of both, {one.name} runs and {other.name} does not fit", decide)


def _ratio(
    column: Column, one: Contestant, other: Contestant, size: int, first: Cost, second: Cost
) -> Finding:
    ratio = second.value / first.value
    text = (
        f"{column.title} at K = {size:,}: {one.name} {column.write(first.value)}, {other.name} "
        f"{column.write(second.value)}, {ratio:.2f} times as much"
    )
    outcome = Outcome.REPRODUCED if ratio >= TELLING else Outcome.NOT_SEPARABLE
    return Finding(Outcome.CONTRADICTED if ratio <= 1 / TELLING else outcome, text, first.runs + second.runs)


def _by_size(ledger: Ledger, experiment: str, column: Column, who: Contestant) -> dict[int, Cost]:
    """The mean cost at each codebook size; nothing where it is 0 or did not fit."""
    rows = {each.where["codebook_size"]: each.where for each in by_size(ledger, experiment, who)}
    samples = {
        size: sample_of(ledger.finished(experiment, where), column.metric) for size, where in rows.items()
    }
    return {
        size: Cost(sample.mean, sample.runs) for size, sample in samples.items() if sample and sample.mean
    }


def _not_run(column: Column, *who: Contestant) -> Finding:
    return Finding(Outcome.NOT_RUN, f"{column.title} of {', '.join(each.name for each in who)}: not run")
