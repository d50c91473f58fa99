"""Every claim is decided by its rules: reproduced, contradicted, not separable, or not run."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from result_sets import FakeRow, Line, result_set_of

from lgq.experiments.tables import EXPERIMENTS
from lgq.reporting.claims import (
    Finding,
    Leads,
    Outcome,
    Selection,
    count_outcomes,
    decide,
    decide_claims,
    overall,
    paper_claims,
    rank_correlation,
)
from lgq.reporting.paper_tables import COLUMNS, TableSpec, read_paper, table_specs
from lgq.reporting.result_set import ResultSet

YES, NO = Outcome.REPRODUCED, Outcome.CONTRADICTED
UNCLEAR, NOT_RUN, BY_EYE = Outcome.NOT_SEPARABLE, Outcome.NOT_RUN, Outcome.BY_EYE
CLAIMS = paper_claims()
SEEN = {id for id, claim in CLAIMS.items() if claim.see}
COSTS = {id for id in CLAIMS if id.startswith("cost-")}
PROVED = {"diversity-floor"}
SEEDS = range(3)
Vary = Callable[[float, int], float]
"""Map from a value and a seed to the value of that seed."""
Change = Callable[[dict[str, list[FakeRow]]], None]
"""Change of the rows of each experiment, in place."""

TABLES = {
    "comparison": ("Table 2", "Table 4", "Appendix C"),
    "geometry": ("Table 2", "Table 4"),
    "codebook-size": ("Table 3", "Appendix C, over K"),
    "scaling": ("Table 11",),
    "logits": ("Table 1", "Table 10"),
    "regularizers": ("Table 6",),
    "temperature": ("Table 7",),
    "generation": ("Table 5",),
    "cost": ("Table 8",),
}
"""Tables of the paper whose figures make the runs of an experiment."""


def slightly(value: float, seed: int) -> float:
    """So little that intervals of different means lie apart."""
    return value * (1 + 1e-7 * (seed - 1))


def wildly(value: float, seed: int) -> float:
    return value * (1 + 0.9 * (seed - 1))


def figures(table: TableSpec, *, mirrored: bool) -> dict[str, dict[str, float]]:
    """Numbers of a table in our units, by row and metric; mirrored, the best of a column is its worst."""
    numbers: dict[str, dict[str, float]] = {row.name: {} for row in table.rows}
    for i, column in enumerate(table.columns):
        printed = {row.name: row.values[i] for row in table.rows}
        ours = {name: v / column.factor for name, v in printed.items() if not isinstance(v, str)}
        ends = max(ours.values(), default=0) + min(ours.values(), default=0)
        for name, value in ours.items():
            numbers[name][column.metric] = ends - value if mirrored else value
    return numbers


def nested(settings: dict[str, Any]) -> dict[str, Any]:
    options = {name.split(".")[1]: value for name, value in settings.items() if "." in name}
    plain = {name: value for name, value in settings.items() if "." not in name}
    return plain | {"quantizer_options": options}


def rows_of(experiment: str, vary: Vary, *, mirrored: bool = False) -> list[FakeRow]:
    """The figures of all tables of an experiment, each row with three seeds."""
    rows: dict[str, FakeRow] = {}
    for label in TABLES[experiment]:
        table = table_specs()[label]
        numbers = figures(table, mirrored=mirrored)
        for printed in table.rows:
            settings = {**table.only, **printed.settings}
            row = rows.setdefault(str(settings), FakeRow(printed.name, nested(settings), [{}, {}, {}]))
            row.values = [
                {**old, **{name: vary(value, seed) for name, value in numbers[printed.name].items()}}
                for seed, old in enumerate(row.values)
            ]
            row.journals = [journal(row, vary, seed, mirrored=mirrored) for seed in SEEDS]
    return list(rows.values())


def journal(row: FakeRow, vary: Vary, seed: int, *, mirrored: bool) -> list[Line]:
    """Four validations: what the paper says about its curves, in short, or the opposite."""
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
    # Seeds are full at different steps: equal ones would have no interval.
    full = steps[used.index(1.0)]
    lines.append((full - full * seed // 1000, "validation", {"utilization": vary(1.0, seed)}))
    lines.sort(key=lambda line: line[0])
    terms = {"quantizer/peak": vary(peak, seed), "quantizer/diversity": vary(0.5 if mirrored else 1.2, seed)}
    return [*lines, (steps[-1], "train", terms)]


def world(vary: Vary, *, mirrored: bool = False, change: Change = lambda _: None) -> ResultSet:
    experiments = {name: rows_of(name, vary, mirrored=mirrored) for name in TABLES}
    change(experiments)
    makers = {row.config["quantizer"]: row.ids("comparison") for row in experiments["comparison"]}
    for row in experiments["generation"]:
        row.kind, row.tokenizers = "generator", makers[row.config["quantizer"]]
    for row in experiments["cost"]:
        row.kind, row.values = "cost", row.values[1:2]
    return result_set_of(experiments)


def outcomes(results: ResultSet) -> dict[str, Outcome]:
    return {verdict.claim.id: verdict.outcome for verdict in decide_claims(results)}


def put(experiment: str, label: str, metric: str, *values: float) -> Change:
    """Set a metric in every row whose label contains the words: one value for all seeds, or one for each."""

    def change(experiments: dict[str, list[FakeRow]]) -> None:
        for row in (row for row in experiments[experiment] if label in row.label):
            per_seed = values if len(values) > 1 else values * 3
            row.values = [{**old, metric: new} for old, new in zip(row.values, per_seed, strict=True)]

    return change


def keep_order(experiments: dict[str, list[FakeRow]]) -> None:
    """Put generators in the order of their tokenizers."""
    rfid = {row.label: row.values for row in experiments["comparison"]}
    for row in experiments["generation"]:
        row.values = [
            {**old, "gfid": made["rfid"]} for old, made in zip(row.values, rfid[row.label], strict=True)
        ]


def reverse_quality(seeds: Sequence[int]) -> Change:
    """Reverse the order by rFID in these seeds."""

    def change(experiments: dict[str, list[FakeRow]]) -> None:
        for row in experiments["geometry"]:
            row.values = [
                {**old, "rfid": 100 - old["rfid"]} if seed in seeds else old
                for seed, old in enumerate(row.values)
            ]

    return change


def recover_codes(experiments: dict[str, list[FakeRow]]) -> None:
    """Recover dead codes in one seed of the dot product."""
    for row in experiments["logits"]:
        first, *rest = row.journals
        recovered = [(step, split, {**v, "dead_codes": 10**6 // step}) for step, split, v in first]
        row.journals = [recovered, *rest]


CONTRADICTED_BY = {
    "sweep-full-use": put("codebook-size", "LGQ", "utilization", 0.5),
    "uniformity-and-quality": reverse_quality(SEEDS),
    "order-not-kept": keep_order,
    "cost-limit": put("cost", "IBQ, K = 262,144", "ms", 700.0),
    "cost-of-training": put("comparison", "LGQ", "seconds_per_step", 50.0),
    "cost-of-size": put("codebook-size", "K = 65,536", "seconds_per_step", 50.0),
    "norms-disjoint": put("logits", "<z, e>", "geometry.live_norm_min", 0.1),
    "peakedness-not-needed": put("regularizers", "no peakedness", "utilization", 0.01),
    "flat-weights": put("regularizers", "twice the default", "rfid", 90.0),
    "warm-is-flat": put("temperature", "cosine", "rfid", 90.0),
}
"""Changes to the paper's figures, for claims that mirrored figures do not contradict."""
UNCLEAR_BY = {
    "uniformity-and-quality": reverse_quality([0]),
    "logit-dead-stay-dead": recover_codes,
    "norms-disjoint": put("logits", "<z, e>", "geometry.live_norm_min", 0.3, 0.6, 5.0),
    "norms-free": put("logits", "-|z - e|²", "geometry.norm_correlation", -0.5, 0.1, 0.6),
    "neither": put("regularizers", "neither", "utilization", 0.0, 0.1, 0.4),
}
"""Changes to the paper's figures, for claims that noise in all figures does not make unclear."""


FIGURES = {
    "the paper's": (lambda: world(slightly), YES, {"best-perplexity": NO}),  # by its own table, LFQ's is best
    "mirrored": (lambda: world(slightly, mirrored=True), NO, dict.fromkeys(CONTRADICTED_BY)),
    "noisy": (lambda: world(wildly), UNCLEAR, dict.fromkeys({*COSTS, *UNCLEAR_BY, *PROVED})),
}
"""Figures, what they decide about claims, and claims about which they decide something else, or anything."""


@pytest.mark.parametrize(("figures", "outcome", "others"), FIGURES.values(), ids=FIGURES)
def test_the_papers_figures_reproduce_its_claims_mirrored_ones_contradict_them_noise_decides_none(
    figures, outcome, others
):
    decided = outcomes(figures())
    expected = dict.fromkeys(CLAIMS, outcome) | dict.fromkeys(SEEN, BY_EYE) | others
    compared = [claim for claim in CLAIMS if expected[claim]]
    assert {claim: decided[claim] for claim in compared} == {claim: expected[claim] for claim in compared}


@pytest.mark.parametrize(
    ("claim", "change", "outcome"),
    [
        *((claim, change, NO) for claim, change in CONTRADICTED_BY.items()),
        *((claim, change, UNCLEAR) for claim, change in UNCLEAR_BY.items()),
    ],
)
def test_one_figure_contradicts_a_claim_or_leaves_it_open(claim, change, outcome):
    assert decide(CLAIMS[claim], world(slightly, change=change)).outcome is outcome


def test_without_runs_no_claim_is_decided_and_each_is_counted_once():
    verdicts = decide_claims(result_set_of({}))
    assert {verdict.outcome for verdict in verdicts} == {NOT_RUN, BY_EYE, Outcome.OTHER_SCALE}
    counts = count_outcomes(verdicts)
    assert (sum(counts.values()), counts[BY_EYE]) == (len(CLAIMS), len(SEEN))


def test_one_seed_decides_no_claim_that_compares_seeds():
    def keep_one_seed(experiments: dict[str, list[FakeRow]]) -> None:
        for row in (row for rows in experiments.values() for row in rows):
            row.values = row.values[:1]

    single = outcomes(world(slightly, change=keep_one_seed))
    decided = {claim for claim, outcome in single.items() if outcome in (YES, NO)}
    assert decided <= COSTS | PROVED


def test_claims_that_need_another_scale_are_not_decided_at_ours_and_say_why():
    results, marked = world(slightly), {id for id, claim in CLAIMS.items() if claim.scale}
    small = {name: replace(plan, scale="pocket") for name, plan in results.plans.items()}
    verdicts = decide_claims(replace(results, plans=small))
    elsewhere = [verdict for verdict in verdicts if verdict.outcome is Outcome.OTHER_SCALE]
    assert {verdict.claim.id for verdict in elsewhere} == marked
    assert {"cost-share", "cost-of-training", "cost-of-size", "ibq-inception"} <= marked
    assert all(verdict.findings[0].text == verdict.claim.scale for verdict in elsewhere)
    assert Outcome.OTHER_SCALE not in outcomes(results).values()


def test_seeds_are_compared_in_pairs_and_the_number_that_would_decide_is_named():
    # The luck of a seed, shared by both, is larger than their difference.
    luck = (0.0, 5.0, 10.0)
    lgq = [{"psnr": 20.0 + shared + own} for shared, own in zip(luck, (0.9, 1.0, 1.1), strict=True)]
    fsq = [{"psnr": 20.0 + shared} for shared in luck]
    rule = Leads(
        experiment="comparison",
        columns=(COLUMNS["psnr"],),
        rows=(Selection("LGQ", {"quantizer": "lgq"}),),
        over=(Selection("FSQ", {"quantizer": "fsq"}),),
    )

    def finding(ours: list[dict[str, float]]) -> Finding:
        rows = [FakeRow("LGQ", {"quantizer": "lgq"}, ours), FakeRow("FSQ", {"quantizer": "fsq"}, fsq)]
        (only,) = rule.decide(result_set_of({"comparison": rows}))
        return only

    clear = finding(lgq)
    assert clear.outcome is YES
    assert "difference by seed +1.000 (+0.752 to +1.248, +10.0 deviations)" in clear.text
    open_ = finding([{"psnr": row["psnr"] + noise} for row, noise in zip(fsq, (0.0, 1.0, 2.0), strict=True)])
    assert open_.outcome is UNCLEAR
    # Mean 1 and deviation 1: the paired t-test of an effect of 1 has a power of 80% from 10 pairs on.
    assert open_.text.endswith("; if it stays, 10 seeds would decide with a probability of 80%")
    none = finding([{"psnr": row["psnr"] + noise} for row, noise in zip(fsq, (-1.0, 1.0, 0.0), strict=True)])
    assert "more than 1,000 seeds would decide" in none.text


@pytest.mark.parametrize("claim", CLAIMS.values(), ids=CLAIMS)
def test_every_entry_is_complete(claim):
    assert claim.text
    assert claim.source
    assert claim.printed
    assert bool(claim.rules) != bool(claim.see)
    assert all(rule.experiment in EXPERIMENTS and rule.text for rule in claim.rules)


def test_claims_cover_the_paper_and_every_row_is_used():
    entries = read_paper()["claims"]
    assert len(CLAIMS) == len(entries)
    sources = " ".join(claim.source for claim in CLAIMS.values())
    assert all(part in sources for part in ("abstract", "results", "ablations", "discussion"))
    assert all(f"contribution {number}" in sources for number in (1, 2, 3, 4))
    assert all(label in sources for label in table_specs() if label.startswith("Table "))
    assert all(f'"{name}"' in str(entries).replace("'", '"') for name in read_paper()["rows"])


LGQ, FSQ = Selection("LGQ", {"quantizer": "lgq"}), Selection("FSQ", {"quantizer": "fsq"})


def leads(experiment: str, metric: str, **options: Any) -> Leads:
    return Leads(experiment=experiment, columns=(COLUMNS[metric],), rows=(LGQ,), over=(FSQ,), **options)


def test_a_finding_carries_its_numbers_and_runs():
    values = ((LGQ, (2.0, 2.002)), (FSQ, (1.0, 1.0)))
    rows = [FakeRow(row.name, row.settings, [{"psnr": psnr} for psnr in psnrs]) for row, psnrs in values]
    results = result_set_of({"comparison": rows})
    (finding,) = leads("comparison", "psnr").decide(results)
    assert finding.outcome is YES
    assert "LGQ 2.001 ± 0.001 (2 seeds) against FSQ 1.000 ± 0.000 (2 seeds)" in finding.text
    assert set(finding.runs) == set(results.runs)


def test_a_lead_that_is_the_same_for_all_seeds_has_no_interval_and_decides_nothing():
    rows = [FakeRow(row.name, row.settings, [{"psnr": psnr}] * 2) for row, psnr in ((LGQ, 2), (FSQ, 1))]
    (finding,) = leads("comparison", "psnr").decide(result_set_of({"comparison": rows}))
    assert finding.outcome is UNCLEAR
    assert finding.text.endswith("difference by seed +1.000, the same for all seeds: no interval")


def test_a_metric_that_was_not_measured_is_named():
    results = result_set_of({"comparison": [FakeRow("LGQ", LGQ.settings, [{"psnr": 1.0}] * 2)]})
    (finding,) = leads("comparison", "rfid").decide(results)
    assert finding.outcome is NOT_RUN
    assert finding.text == "rFID: not run: FSQ; not measured for LGQ"


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


@pytest.mark.parametrize(
    ("at", "unfinished", "outcome"),
    [
        ("every size", (), YES),
        ("every size", ("FSQ K = 64",), NOT_RUN),
        ("largest size", ("LGQ K = 64", "FSQ K = 64"), NOT_RUN),
        ("every size", ("LGQ K = 16",), YES),
    ],
    ids=["all", "one row", "a size", "of LGQ alone"],
)
def test_a_claim_about_all_sizes_waits_for_those_that_both_rows_are_planned_at(at, unfinished, outcome):
    rows = [
        FakeRow(
            name.upper(),
            {"quantizer": name, "codebook_size": size},
            [{"psnr": psnr + shift} for shift in shifts],
            group=f"K = {size}",
        )
        for size in (16, 32, 64)
        for name, psnr, shifts in (("lgq", 22.0, (0.0, 0.1, 0.2)), ("fsq", 20.0, (0.0, 0.2, 0.1)))
        if (name, size) != ("fsq", 16)
    ]
    missing = {id for row in rows if f"{row.label} {row.group}" in unfinished for id in row.ids("scaling")}
    results = result_set_of({"scaling": rows})
    results = replace(results, runs={id: run for id, run in results.runs.items() if id not in missing})
    findings = leads("scaling", "psnr", at=at).decide(results)
    assert overall(findings) is outcome
    assert (outcome is NOT_RUN) == any(finding.text == "not run yet at K = 64" for finding in findings)


def timed(ms: dict[str, float], floors: Sequence[float] = (), **metrics: float) -> ResultSet:
    """Timings by quantizer, and further ones of the floor in the first record."""
    others = [{"floor_ms": floor} for floor in floors]
    rows = [
        FakeRow(
            name.upper(),
            {"quantizer": name, "codebook_size": 64},
            [{"ms": time, "extra_bytes": time} | metrics],
            kind="cost",
            extra={"others": others},
        )
        for name, time in ms.items()
    ]
    return result_set_of({"cost": rows})


@pytest.mark.parametrize(
    ("rival_ms", "floors", "outcome"),
    [
        (1.25, (), YES),
        (1.15, (), UNCLEAR),
        (0.8, (), NO),
        (1.25, (700.0, 910.0), UNCLEAR),
        (1.35, (700.0, 910.0), YES),
    ],
)
def test_timings_differ_from_a_fifth_on_or_from_what_the_same_work_varies(rival_ms, floors, outcome):
    results, rule = timed({"lgq": 1.0, "fsq": rival_ms}, floors), leads("cost", "ms", at="every size")
    assert overall(rule.decide(results)) is outcome
    assert results.timing_ratio == pytest.approx(1.3 if floors else 1.2)
    assert rule.text.endswith(
        "by more than the same work varies over the rows of one K, and by a fifth at least"
    )


def test_memory_differs_from_a_tenth_on():
    rule = leads("cost", "extra_bytes", at="every size")
    assert overall(rule.decide(timed({"lgq": 1.0, "fsq": 1.15}))) is YES
    assert overall(rule.decide(timed({"lgq": 1.0, "fsq": 1.05}))) is UNCLEAR
    assert rule.text.endswith("by a tenth at least")


@pytest.mark.parametrize("claim", ["cost-time", "cost-linear", "cost-fsq"])
def test_timings_of_a_busy_machine_decide_no_claim(claim):
    results = timed({"lgq": 1.0, "ibq": 9.0, "fsq": 0.1}, load=9.0, cores=2.0)
    verdict = decide(CLAIMS[claim], results)
    assert verdict.outcome in (UNCLEAR, NOT_RUN)
    assert any("busy machine" in finding.text for finding in verdict.findings) == (claim != "cost-linear")
    assert decide(CLAIMS["cost-memory"], results).outcome is YES


@pytest.mark.parametrize(("least", "outcome"), [((1.0, 1.1), YES), ((1.2,), YES), ((1.2, 0.5), NO)])
def test_single_runs_decide_a_proved_bound(least, outcome):
    journals = [[(1, "train", {"quantizer/diversity": value})] for value in least]
    row = FakeRow("LGQ", {"quantizer": "lgq", "codebook_size": 64}, [{}] * len(least), journals=journals)
    assert decide(CLAIMS["diversity-floor"], result_set_of({"codebook-size": [row]})).outcome is outcome


def test_rank_correlation_is_spearmans():
    from scipy.stats import spearmanr

    first, second = [0.1, 0.5, 0.5, 0.9, 0.2], [3.0, 1.0, 2.0, 2.0, 5.0]
    assert rank_correlation(first, second) == pytest.approx(spearmanr(first, second).statistic)


def test_a_trial_of_seconds_decides_no_claim():
    results = world(slightly)
    plans = {name: replace(plan, scale="smoke") for name, plan in results.plans.items()}
    undecided = {Outcome.TOO_SMALL, Outcome.OTHER_SCALE, BY_EYE}
    assert set(outcomes(replace(results, plans=plans)).values()) == undecided


@pytest.mark.parametrize(
    ("ms", "outcome"), [(2.5, YES), (2.1, UNCLEAR), (1.8, UNCLEAR), (1.5, NO), (0.5, NO)]
)
def test_several_times_as_fast_is_at_least_twice_beyond_what_timings_vary(ms, outcome):
    assert decide(CLAIMS["cost-time"], timed({"lgq": 1.0, "ibq": ms})).outcome is outcome
    assert "at least 2 times better" in paper_claims()["cost-time"].rule_text


def test_the_claims_on_norms_say_their_bounds():
    assert "0.9" in paper_claims()["norms-correlate"].text
    assert "0.3" in paper_claims()["norms-free"].text
