"""Claims of the ablations (LGQ paper, abstract, contribution 3, tab:abl_reg and tab:abl_tau)."""

from lgq.report.claims.claim import Claim
from lgq.report.columns import RFID, USED, Column
from lgq.report.contestants import (
    COLD,
    COOL,
    DEFAULT,
    DIAGONAL,
    HOT,
    NEITHER,
    NO_DIVERSITY,
    NO_PEAK,
    USUAL,
    WARM,
    WEAK_DIVERSITY,
)
from lgq.report.rules import Contestant, Rule, all_of, between, flat, leads

_WEIGHTS, _TAU = "regularizers", "temperature"
_COLLAPSE = 0.25
"""Share of the default's utilization below which a codebook counts as collapsed."""
_PEAK = Column("last_peak_term", "Peakedness term at the end", "lower", 3)


def _collapses(experiment: str, who: Contestant, usual: Contestant) -> Rule:
    return between(experiment, USED, who, most=_COLLAPSE, share_of=usual)


ABLATIONS = (
    Claim(
        "diversity-needed",
        "abstract; tab:abl_reg",
        "Without the diversity term the codebook collapses.",
        "0.12% in use against 47.66%, rFID 204.55 against 53.40",
        all_of(_collapses(_WEIGHTS, NO_DIVERSITY, DEFAULT), leads(_WEIGHTS, [RFID], DEFAULT, [NO_DIVERSITY])),
    ),
    Claim(
        "diversity-first",
        "abstract; ablations",
        "Diversity is the primary driver: dropping it costs more than dropping peakedness.",
        "0.12% and rFID 204.55 against 38.35% and 56.47",
        leads(_WEIGHTS, [USED, RFID], NO_PEAK, [NO_DIVERSITY]),
    ),
    Claim(
        "neither",
        "tab:abl_reg",
        "Without both terms the codebook collapses just as much.",
        "0.07% in use",
        _collapses(_WEIGHTS, NEITHER, DEFAULT),
    ),
    Claim(
        "neither-no-worse",
        "ablations",
        "Without both terms rFID is no worse than without diversity alone.",
        "174.19 against 204.55",
        leads(_WEIGHTS, [RFID], NEITHER, [NO_DIVERSITY]),
    ),
    Claim(
        "weak-diversity",
        "tab:abl_reg",
        "Weak diversity with full peakedness already loses most codes.",
        "5.32% in use against 47.66%",
        _collapses(_WEIGHTS, WEAK_DIVERSITY, DEFAULT),
    ),
    Claim(
        "peakedness-not-needed",
        "tab:abl_reg",
        "Without peakedness the codebook does not collapse.",
        "38.35% in use against 47.66%",
        between(_WEIGHTS, USED, NO_PEAK, least=_COLLAPSE, share_of=DEFAULT),
    ),
    Claim(
        "peakedness-helps",
        "abstract; tab:abl_reg",
        "Peakedness adds to utilization and rFID.",
        "38.35% to 47.66%, rFID 56.47 to 53.40",
        leads(_WEIGHTS, [USED, RFID], DEFAULT, [NO_PEAK]),
    ),
    Claim(
        "peakedness-sharpens",
        "abstract; ablations",
        "Without peakedness each token's assignment stays more diffuse.",
        "predicted, not measured",
        leads(_WEIGHTS, [_PEAK], DEFAULT, [NO_PEAK]),
    ),
    Claim(
        "flat-weights",
        "ablations; discussion",
        "With both weights alike, from 0.001 to 0.05, rFID stays in a narrow band.",
        "50.48 to 53.40, 5.5% of the default",
        flat(_WEIGHTS, RFID, DIAGONAL, share=0.1),
    ),
    Claim(
        "cold-collapses",
        "tab:abl_tau",
        "A constant cold temperature loses most codes.",
        "4.33% in use, rFID 113.80",
        all_of(_collapses(_TAU, COLD, USUAL), leads(_TAU, [RFID], USUAL, [COLD])),
    ),
    Claim(
        "cool-start",
        "tab:abl_tau",
        "A cooler start, 0.5, already loses most codes.",
        "8.37% in use, rFID 62.95",
        all_of(_collapses(_TAU, COOL, USUAL), leads(_TAU, [RFID], USUAL, [COOL])),
    ),
    Claim(
        "hot-start",
        "tab:abl_tau",
        "A hotter start, 2.0, has the best rFID and utilization of the schedules.",
        "rFID 36.00 against 53.40, 77.18% in use against 47.66%",
        leads(_TAU, [RFID, USED], HOT, (*WARM, COOL, COLD)),
    ),
    Claim(
        "warm-is-flat",
        "tab:abl_tau",
        "From a start of 1.0, the end of the schedule and its shape hardly matter.",
        "rFID 52.78 to 54.06, 2.4% of the default",
        flat(_TAU, RFID, WARM, share=0.05),
    ),
)
