"""Rules over more than two numbers: whole curves, orders of methods, and how two metrics go together."""

from collections.abc import Iterable, Sequence
from itertools import combinations
from statistics import fmean

from lgq.report.columns import Column
from lgq.report.intervals import Sample, ahead
from lgq.report.ledger import Ledger
from lgq.report.rules import Contestant, Finding, Outcome, Rule, placed


def leads_throughout(
    experiment: str, columns: Sequence[Column], one: Contestant, others: Sequence[Contestant]
) -> Rule:
    """Ahead at every validation, by the first column that was taken during training."""

    def decide(ledger: Ledger) -> list[Finding]:
        taken = [column for column in columns if curves(ledger, experiment, column, one)]
        return [_along(ledger, experiment, column, one, other) for column in taken[:1] for other in others]

    names = " or ".join(column.title for column in columns)
    return Rule(f"{one.name} better in {names} at every validation, with intervals apart", decide)


def curves(ledger: Ledger, experiment: str, column: Column, who: Contestant) -> dict[int, Sample]:
    """A metric over seeds at every step at which all runs took it."""
    runs = ledger.finished(experiment, who.where)
    found = [(run, curve) for run in runs if (curve := run.curve(column.metric))]
    steps = sorted(set.intersection(*(set(curve) for _, curve in found))) if found else []
    ids = tuple(run.id for run, _ in found)
    return {step: Sample(tuple(curve[step] for _, curve in found), ids) for step in steps}


def _along(ledger: Ledger, experiment: str, column: Column, one: Contestant, other: Contestant) -> Finding:
    first, second = (curves(ledger, experiment, column, each) for each in (one, other))
    steps = sorted(first.keys() & second.keys())
    if not steps:
        return Finding(
            Outcome.NOT_RUN, f"{column.title} of {one.name} and {other.name}: no common validation"
        )
    assert column.better is not None
    wins = sum(ahead(first[step], second[step], column.better) for step in steps)
    losses = sum(ahead(second[step], first[step], column.better) for step in steps)
    outcome = Outcome.REPRODUCED if wins == len(steps) else Outcome.NOT_SEPARABLE
    text = (
        f"{column.title}: {one.name} ahead of {other.name} at {wins} of {len(steps)} validations, behind at "
    )
    runs = first[steps[0]].runs + second[steps[0]].runs
    return Finding(Outcome.CONTRADICTED if losses else outcome, f"{text}{losses}", runs)


def goes_with(experiment: str, one: Column, other: Column, who: Sequence[Contestant]) -> Rule:
    """Over methods, ranks by two metrics agree more than by chance, in every seed; but not wholly."""

    def decide(ledger: Ledger) -> list[Finding]:
        table = _by_seed(ledger, experiment, (one, other), who)
        if not table:
            return [Finding(Outcome.NOT_RUN, f"{one.title} and {other.title} of three rows: not run")]
        sample = Sample(tuple(rank_correlation(*zip(*pairs, strict=True)) for pairs in table.values()))
        sign = 1 if one.better == other.better else -1
        agreement = Sample(tuple(sign * value for value in sample.values))
        outcome = placed(agreement, 0.0, 1.0) if agreement.mean < 1 else Outcome.CONTRADICTED
        listed = ", ".join(f"{value:+.2f}" for value in agreement.values)
        text = f"rank correlation of {one.title} with quality by {other.title}, a seed each: {listed}"
        runs = [run.id for each in who for run in ledger.finished(experiment, each.where)]
        return [Finding(outcome, text, tuple(runs))]

    return Rule("interval over seeds of the rank correlation above 0, its mean below 1", decide)


def _by_seed(
    ledger: Ledger, experiment: str, columns: tuple[Column, Column], who: Sequence[Contestant]
) -> dict[int | None, list[tuple[float, float]]]:
    """Both metrics of every method that has them, for seeds with three methods at least."""
    found: dict[int | None, list[tuple[float, float]]] = {}
    for each in who:
        for run in ledger.finished(experiment, each.where):
            one, other = (run.value(column.metric) for column in columns)
            if one is not None and other is not None:
                found.setdefault(run.seed, []).append((one, other))
    return {seed: pairs for seed, pairs in found.items() if len(pairs) >= 3}


def rank_correlation(one: Sequence[float], other: Sequence[float]) -> float:
    """Spearman's; 0 where all values of one are equal."""
    first, second = _ranks(one), _ranks(other)
    centre = fmean(first)
    product = sum((a - centre) * (b - centre) for a, b in zip(first, second, strict=True))
    sizes = [sum((rank - centre) ** 2 for rank in ranks) for ranks in (first, second)]
    return product / (sizes[0] * sizes[1]) ** 0.5 if all(sizes) else 0.0


def _ranks(values: Sequence[float]) -> list[float]:
    """From 0 on; equal values share the mean of their ranks."""
    return [
        sum(other < value for other in values) + (sum(other == value for other in values) - 1) / 2
        for value in values
    ]


def order_changes(experiment: str, one: Column, other: Column, who: Iterable[Contestant]) -> Rule:
    """Some pair stands one way by the first metric and the other way by the second, clearly by both."""
    pairs = list(combinations(who, 2))

    def decide(ledger: Ledger) -> list[Finding]:
        findings = [_exchanged(ledger, experiment, one, other, pair) for pair in pairs]
        compared = [finding for finding in findings if finding.outcome is not Outcome.NOT_RUN]
        changed = [finding for finding in compared if finding.outcome is Outcome.REPRODUCED]
        return changed or compared or findings[:1]

    return Rule(
        "two rows in one order by the first metric, in the other by the second, intervals apart", decide
    )


def _exchanged(
    ledger: Ledger, experiment: str, one: Column, other: Column, pair: tuple[Contestant, Contestant]
) -> Finding:
    name, signs = f"{pair[0].name} and {pair[1].name}", list[int]()
    runs: tuple[str, ...] = ()
    for column in (one, other):
        first, second = (ledger.sample(experiment, column.metric, each.where) for each in pair)
        if first is None or second is None or column.better is None:
            return Finding(Outcome.NOT_RUN, f"{column.title} of {name}: not run")
        signs.append(ahead(first, second, column.better) - ahead(second, first, column.better))
        runs = first.runs + second.runs
    words = {1: f"{pair[0].name} ahead", -1: f"{pair[1].name} ahead", 0: "not separable"}
    text = f"{name}: by {one.title} {words[signs[0]]}, by {other.title} {words[signs[1]]}"
    if not all(signs):
        return Finding(Outcome.NOT_SEPARABLE, text, runs)
    return Finding(Outcome.CONTRADICTED if signs[0] == signs[1] else Outcome.REPRODUCED, text, runs)
