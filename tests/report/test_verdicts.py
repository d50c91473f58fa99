"""Each claim is decided by its rule: reproduced, contradicted, not separable, or not run."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from result_sets import FakeRow, Line, ledger_of

from lgq.report import paper
from lgq.report.claims import CLAIMS
from lgq.report.columns import PSNR, RFID, Column
from lgq.report.cost_rules import cheaper
from lgq.report.curve_rules import rank_correlation
from lgq.report.ledger import Ledger
from lgq.report.printed import PaperTable
from lgq.report.rules import Contestant, Finding, Outcome, leads, overall
from lgq.report.verdicts import counts, judge

YES, NO = Outcome.REPRODUCED, Outcome.CONTRADICTED
UNCLEAR, NOT_RUN = Outcome.NOT_SEPARABLE, Outcome.NOT_RUN
BY_EYE = {"finest-texture", "codes-spread", "sharpest-samples"}
COSTS = {claim.id for claim in CLAIMS if claim.id.startswith("cost-")}
SEEDS = range(3)
Vary = Callable[[float, int], float]
"""A value and a seed to the value of that seed."""
Change = Callable[[dict[str, list[FakeRow]]], None]
"""Of the rows of each experiment, in place."""

TABLES = {
    "comparison": (paper.COMPARISON, paper.STUDY, paper.STEPS),
    "geometry": (paper.COMPARISON, paper.STUDY),
    "codebook-size": (paper.SWEEP, paper.STEPS_BY_SIZE),
    "scaling": (paper.SCALING,),
    "logits": (paper.LOGITS, paper.NORM_BIAS),
    "regularizers": (paper.REGULARIZERS,),
    "temperature": (paper.TEMPERATURE,),
    "generation": (paper.GENERATION,),
    "cost": (paper.COST,),
}
"""The tables whose figures make the runs of an experiment."""


def slightly(value: float, seed: int) -> float:
    """So little that intervals of different means lie apart."""
    return value * (1 + 1e-7 * (seed - 1))


def wildly(value: float, seed: int) -> float:
    return value * (1 + 0.9 * (seed - 1))


def figures(table: PaperTable, *, mirrored: bool) -> dict[str, dict[str, float]]:
    """Numbers of a table in our units, by row and metric; mirrored, the best of a column is its worst."""
    found: dict[str, dict[str, float]] = {row.name: {} for row in table.rows}
    for i, column in enumerate(table.columns):
        numbers = {row.name: row.values[i] for row in table.rows}
        ours = {name: v / column.factor for name, v in numbers.items() if isinstance(v, int | float)}
        ends = max(ours.values()) + min(ours.values())
        for name, value in ours.items():
            found[name][column.metric] = ends - value if mirrored else value
    return found


def settings(where: dict[str, Any]) -> dict[str, Any]:
    options = {name.split(".")[1]: value for name, value in where.items() if "." in name}
    return {name: value for name, value in where.items() if "." not in name} | {"quantizer_options": options}


def rows_of(experiment: str, vary: Vary, *, mirrored: bool = False) -> list[FakeRow]:
    """The figures of all tables of an experiment, each row with three seeds."""
    rows: dict[str, FakeRow] = {}
    for table in TABLES[experiment]:
        numbers = figures(table, mirrored=mirrored)
        for printed in table.rows:
            where = {**table.only, **printed.where}
            row = rows.setdefault(str(where), FakeRow(printed.name, settings(where), [{}, {}, {}]))
            row.values = [
                {**old, **{name: vary(value, seed) for name, value in numbers[printed.name].items()}}
                for seed, old in enumerate(row.values)
            ]
            row.journals = [journal(row, vary, seed, mirrored=mirrored) for seed in SEEDS]
    return list(rows.values())


def journal(row: FakeRow, vary: Vary, seed: int, *, mirrored: bool) -> list[Line]:
    """Four validations: what the paper says of its curves, in short, or the opposite."""
    name, size = row.config.get("quantizer"), row.config.get("codebook_size", 16_384)
    options = row.config["quantizer_options"]
    rising = (name == "lgq") != mirrored
    used = [0.8, 0.9, 1.0, 1.0] if rising else [1.0, 1.0, 0.9, 0.8]
    # The larger the codebook, the later it is full.
    steps = [10**9 // size * i if mirrored else size * i for i in (1, 2, 3, 4)]
    better = row.values[0].get("rfid", 1.0)
    dead = [3300 - 100 * i if mirrored else 3300 for i in range(4)]
    peak = 0.9 if (options.get("peak_weight") == 0) != mirrored else 0.5
    lines: list[Line] = [
        (step, "validation", {"utilization": vary(u, seed), "rfid": vary(better, seed), "dead_codes": d})
        for step, u, d in zip(steps, used, dead, strict=True)
    ]
    terms = {"quantizer/peak": vary(peak, seed), "quantizer/diversity": vary(0.5 if mirrored else 1.2, seed)}
    return [*lines, (steps[-1], "train", terms)]


def world(vary: Vary, *, mirrored: bool = False, change: Change = lambda _: None) -> Ledger:
    experiments = {name: rows_of(name, vary, mirrored=mirrored) for name in TABLES}
    change(experiments)
    makers = {row.config["quantizer"]: row.ids("comparison") for row in experiments["comparison"]}
    for row in experiments["generation"]:
        row.kind, row.tokenizers = "generator", makers[row.config["quantizer"]]
    for row in experiments["cost"]:
        row.kind, row.values = "cost", row.values[1:2]
    return ledger_of(experiments)


def outcomes(ledger: Ledger) -> dict[str, Outcome]:
    return {verdict.claim.id: verdict.outcome for verdict in judge(ledger)}


def outcome_of(claim: str, ledger: Ledger) -> Outcome:
    return overall(next(each for each in CLAIMS if each.id == claim).rule.decide(ledger))


def put(experiment: str, label: str, metric: str, *values: float) -> Change:
    """One value for all seeds, or one for each, in every row whose label has these words."""

    def change(experiments: dict[str, list[FakeRow]]) -> None:
        for row in (row for row in experiments[experiment] if label in row.label):
            each = values if len(values) > 1 else values * 3
            row.values = [{**old, metric: new} for old, new in zip(row.values, each, strict=True)]

    return change


def keep_order(experiments: dict[str, list[FakeRow]]) -> None:
    """Generators stand in the order of their tokenizers."""
    rfid = {row.label: row.values for row in experiments["comparison"]}
    for row in experiments["generation"]:
        row.values = [
            {**old, "gfid": made["rfid"]} for old, made in zip(row.values, rfid[row.label], strict=True)
        ]


def turn_quality(seeds: Sequence[int]) -> Change:
    """In these seeds, the better by rFID is the worse."""

    def change(experiments: dict[str, list[FakeRow]]) -> None:
        for row in experiments["geometry"]:
            row.values = [
                {**old, "rfid": 100 - old["rfid"]} if seed in seeds else old
                for seed, old in enumerate(row.values)
            ]

    return change


def regain_codes(experiments: dict[str, list[FakeRow]]) -> None:
    """In one seed of the dot product."""
    for row in experiments["logits"]:
        first, *others = row.journals
        regained = [(step, split, {**v, "dead_codes": 10**6 // step}) for step, split, v in first]
        row.journals = [regained, *others]


CONTRADICTED_BY = {
    "sweep-full-use": put("codebook-size", "LGQ", "utilization", 0.5),
    "uniformity-and-quality": turn_quality(SEEDS),
    "order-not-kept": keep_order,
    "cost-limit": put("cost", "IBQ, K = 262,144", "ms", 700.0),
    "cost-of-training": put("comparison", "LGQ", "seconds_a_step", 50.0),
    "cost-of-size": put("codebook-size", "K = 65,536", "seconds_a_step", 50.0),
    "norms-disjoint": put("logits", "<z, e>", "geometry.live_norm_min", 0.1),
    "peakedness-not-needed": put("regularizers", "no peakedness", "utilization", 0.01),
    "flat-weights": put("regularizers", "twice the default", "rfid", 90.0),
    "warm-is-flat": put("temperature", "cosine", "rfid", 90.0),
}
"""One change to the paper's figures, where turning all of them round does not contradict a claim."""
UNCLEAR_BY = {
    "uniformity-and-quality": turn_quality([0]),
    "logit-dead-stay-dead": regain_codes,
    "norms-disjoint": put("logits", "<z, e>", "geometry.live_norm_min", 0.3, 0.6, 5.0),
    "norms-free": put("logits", "-|z - e|²", "geometry.norm_correlation", -0.5, 0.1, 0.6),
    "neither": put("regularizers", "neither", "utilization", 0.0, 0.1, 0.4),
}
"""Likewise where seeds that differ in everything alike decide a claim still."""


@pytest.fixture(scope="module")
def of_the_paper() -> dict[str, Outcome]:
    return outcomes(world(slightly))


@pytest.fixture(scope="module")
def turned_round() -> dict[str, Outcome]:
    return outcomes(world(slightly, mirrored=True))


@pytest.fixture(scope="module")
def noisy() -> dict[str, Outcome]:
    return outcomes(world(wildly))


IDS = [claim.id for claim in CLAIMS]


@pytest.mark.parametrize("claim", IDS)
def test_the_papers_own_figures_reproduce_its_claims(claim, of_the_paper):
    expected = NOT_RUN if claim in BY_EYE else NO if claim == "best-perplexity" else YES
    assert of_the_paper[claim] is expected


@pytest.mark.parametrize("claim", [claim for claim in IDS if claim not in CONTRADICTED_BY])
def test_figures_the_other_way_round_contradict_them(claim, turned_round):
    assert turned_round[claim] is (NOT_RUN if claim in BY_EYE else NO)


@pytest.mark.parametrize("claim", CONTRADICTED_BY)
def test_one_figure_contradicts_a_claim(claim):
    assert outcome_of(claim, world(slightly, change=CONTRADICTED_BY[claim])) is NO


@pytest.mark.parametrize("claim", [claim for claim in IDS if claim not in {*COSTS, *UNCLEAR_BY}])
def test_seeds_that_differ_more_than_methods_decide_nothing(claim, noisy):
    assert noisy[claim] is (NOT_RUN if claim in BY_EYE else UNCLEAR)


@pytest.mark.parametrize("claim", UNCLEAR_BY)
def test_one_uncertain_figure_decides_nothing(claim):
    assert outcome_of(claim, world(slightly, change=UNCLEAR_BY[claim])) is UNCLEAR


def test_without_runs_no_claim_is_decided():
    assert set(outcomes(ledger_of({})).values()) == {NOT_RUN}


def test_one_seed_decides_no_claim_that_compares_seeds():
    def one(experiments: dict[str, list[FakeRow]]) -> None:
        for row in (row for rows in experiments.values() for row in rows):
            row.values = row.values[:1] if row.values else row.values

    single = outcomes(world(slightly, change=one))
    decided = {claim for claim, outcome in single.items() if outcome in (YES, NO)}
    assert decided <= COSTS


def test_times_beside_other_networks_than_the_papers_decide_nothing():
    ledger = world(slightly)
    small = {name: replace(plan, scale="pocket") for name, plan in ledger.plans.items()}
    found = outcomes(replace(ledger, plans=small))
    assert {claim for claim in COSTS if found[claim] is UNCLEAR} == {
        "cost-share", "cost-of-training", "cost-of-size",
    }  # fmt: skip


def test_every_claim_says_where_and_how_it_is_decided():
    assert len({claim.id for claim in CLAIMS}) == len(CLAIMS)
    assert all(claim.text and claim.where and claim.paper and claim.rule.how for claim in CLAIMS)
    places = " ".join(claim.where for claim in CLAIMS)
    assert all(part in places for part in ("abstract", "results", "ablations", "discussion"))
    assert all(f"contribution {number}" in places for number in (1, 2, 3, 4))
    labels = [table.label for table in paper.TABLES if table.label.startswith("tab:")]
    assert all(label in places for label in labels)


def test_a_verdict_carries_the_numbers_and_runs_that_decided_it(tmp_path):
    rows = [
        FakeRow(name, {"quantizer": name.lower()}, [{"psnr": p}] * 2) for name, p in (("LGQ", 2), ("FSQ", 1))
    ]
    ledger = ledger_of({"comparison": rows})
    (finding,) = leads("comparison", [PSNR], LGQ, [FSQ]).decide(ledger)
    assert finding.outcome is YES
    assert "LGQ 2.000 ± 0.000 (2 seeds) against FSQ 1.000 ± 0.000 (2 seeds)" in finding.text
    assert set(finding.runs) == set(ledger.runs)


LGQ, FSQ = Contestant("LGQ", {"quantizer": "lgq"}), Contestant("FSQ", {"quantizer": "fsq"})


def test_a_metric_that_was_not_taken_is_named():
    ledger = ledger_of({"comparison": [FakeRow("LGQ", {"quantizer": "lgq"}, [{"psnr": 1.0}] * 2)]})
    (finding,) = leads("comparison", [RFID], LGQ, [FSQ]).decide(ledger)
    assert finding.outcome is NOT_RUN
    assert finding.text == "rFID: not run: FSQ; rFID not taken of LGQ"


@pytest.mark.parametrize(
    ("parts", "whole"),
    [
        ((YES, YES), YES),
        ((YES, UNCLEAR), UNCLEAR),
        ((UNCLEAR, NOT_RUN, YES), NOT_RUN),
        ((YES, NOT_RUN, NO), NO),
        ((), NOT_RUN),
    ],
)
def test_the_weakest_part_decides_the_whole_and_a_contradiction_always(parts, whole):
    assert overall([Finding(part, "") for part in parts]) is whole


@pytest.mark.parametrize(("other", "outcome"), [(1.2, YES), (1.05, UNCLEAR), (0.8, NO)])
def test_timings_differ_from_a_tenth_on(other, outcome):
    rows = [
        FakeRow(who.name, {**who.where, "codebook_size": 8}, [{"ms": ms}], kind="cost")
        for who, ms in ((LGQ, 1.0), (FSQ, other))
    ]
    rule = cheaper("cost", Column("ms", "ms", "lower"), LGQ, FSQ)
    assert overall(rule.decide(ledger_of({"cost": rows}))) is outcome


def test_rank_correlation_is_spearmans():
    from scipy.stats import spearmanr

    one, other = [0.1, 0.5, 0.5, 0.9, 0.2], [3.0, 1.0, 2.0, 2.0, 5.0]
    assert rank_correlation(one, other) == pytest.approx(spearmanr(one, other).statistic)


def test_every_claim_is_counted_once():
    verdicts = judge(ledger_of({}))
    assert sum(counts(verdicts).values()) == len(CLAIMS)
