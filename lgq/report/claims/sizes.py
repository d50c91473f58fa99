"""Claims about codebook sizes (LGQ paper, abstract, contribution 1, tab:lgq_sweep and tab:ibq-kscale)."""

from collections.abc import Sequence

from lgq.report.claims.claim import FULL, Claim
from lgq.report.columns import LOSS, LPIPS, PSNR, RFID, SSIM, USED, Column
from lgq.report.contestants import IBQ, LGQ
from lgq.report.ledger import Ledger
from lgq.report.rules import (
    Contestant,
    Finding,
    Outcome,
    Rule,
    all_of,
    at_every_size,
    between,
    by_size,
    improves_with_size,
    leads,
)

_FIRST = Column("first_utilization", "Util. % at the first validation", "higher", 2, 100)
_LAST = Column("last_utilization", "Util. % at the last validation", "higher", 2, 100)
_SATURATION = Column("first_full_step", "First step at 100%", "higher", 0)
_HELD = Column("utilization_after_full", "Least util. % from the first 100% on", "higher", 2, 100)
_DIVERSITY = Column("least_diversity_term", "Least diversity term", None, 3)
_METRICS = (PSNR, SSIM, LPIPS, LOSS, RFID, USED)
SWEEP, SCALING = "codebook-size", "scaling"


def _at_least(column: Column, least: float) -> Rule:
    def part(rows: Sequence[Contestant]) -> Rule:
        return between(SWEEP, column, rows[0], least=least)

    return at_every_size(SWEEP, [LGQ], part, f"interval of {column.title} at least {column.write(least)}")


def _at_largest(pairs: Sequence[tuple[Column, Contestant, Contestant]], how: str) -> Rule:
    """The first of each pair ahead, at the largest codebook of both."""

    def decide(ledger: Ledger) -> list[Finding]:
        sizes = [
            {each.where["codebook_size"] for each in by_size(ledger, SCALING, who)} for who in (LGQ, IBQ)
        ]
        shared = sizes[0] & sizes[1]
        if not shared:
            return [Finding(Outcome.NOT_RUN, "LGQ and IBQ at one codebook size: not run")]
        rules = [
            leads(SCALING, [column], _at(one, max(shared)), [_at(other, max(shared))])
            for column, one, other in pairs
        ]
        return all_of(*rules).decide(ledger)

    return Rule(how, decide)


def _at(who: Contestant, size: int) -> Contestant:
    return Contestant(f"{who.name}, K = {size:,}", {**who.where, "codebook_size": size})


def _one_setting(ledger: Ledger) -> list[Finding]:
    runs = ledger.finished(SWEEP, LGQ.where)
    options = {str({**(run.setting("quantizer_options") or {}), "seed": None}) for run in runs}
    if not runs:
        return [Finding(Outcome.NOT_RUN, "LGQ over codebook sizes: not run")]
    outcome = Outcome.REPRODUCED if len(options) == 1 else Outcome.CONTRADICTED
    return [
        Finding(outcome, f"{len(options)} setting of LGQ's options over all K", tuple(run.id for run in runs))
    ]


SIZES = (
    Claim(
        "sweep-full-use",
        "abstract; contribution 1; tab:lgq_sweep",
        "LGQ uses its whole codebook at every size, under one setting.",
        "100% at K = 4,096 to 65,536",
        all_of(_at_least(USED, FULL), Rule("one setting at every K", _one_setting)),
    ),
    Claim(
        "sweep-rfid",
        "abstract; results; tab:lgq_sweep",
        "LGQ's rFID falls with every larger codebook.",
        "16.91, 14.59, 12.32, 11.90, 10.72",
        improves_with_size(SWEEP, [RFID], LGQ),
    ),
    Claim(
        "sweep-quality",
        "results; tab:lgq_sweep",
        "LGQ's PSNR, SSIM and LPIPS improve with every larger codebook.",
        "PSNR 21.353 to 22.183, SSIM 0.6080 to 0.6491, LPIPS 0.2751 to 0.2307",
        improves_with_size(SWEEP, [PSNR, SSIM, LPIPS], LGQ),
    ),
    Claim(
        "sweep-no-levelling",
        "results; sec:results-sweep",
        "The largest codebook still improves on the next smaller one in PSNR, SSIM, LPIPS and rFID.",
        "K = 32,768 to 65,536: rFID 11.90 to 10.72",
        improves_with_size(SWEEP, [PSNR, SSIM, LPIPS, RFID], LGQ, last_only=True),
    ),
    Claim(
        "saturation-later",
        "results; sec:results-sweep",
        "The larger the codebook, the later all its codes are in use.",
        "epochs 7, 10, 13, 22, 29",
        improves_with_size(SWEEP, [_SATURATION], LGQ),
    ),
    Claim(
        "saturation-held",
        "results; sec:results-sweep",
        "Once all codes are in use, they stay in use.",
        "100% at every later epoch",
        _at_least(_HELD, FULL),
    ),
    Claim(
        "diversity-floor",
        "theory; prop:div",
        "The diversity term is never below 1, whatever the codebook size.",
        "proved",
        _at_least(_DIVERSITY, 1 - 1e-3),
    ),
    Claim(
        "ahead-of-ibq",
        "results; tab:ibq-kscale",
        "At matched steps LGQ is ahead of IBQ in every metric at every codebook size.",
        "all of PSNR, SSIM, LPIPS, loss, rFID, utilization at three K",
        at_every_size(
            SCALING,
            [LGQ, IBQ],
            lambda rows: leads(SCALING, _METRICS, rows[0], rows[1:]),
            "LGQ better at every K, with intervals apart",
        ),
    ),
    Claim(
        "ibq-loses-codes",
        "contribution 1; tab:ibq-kscale",
        "At the largest codebook IBQ loses codes that LGQ keeps.",
        "55.07% against 96.84% at K = 65,536",
        _at_largest([(USED, LGQ, IBQ)], "LGQ's utilization higher at the largest K, with intervals apart"),
    ),
    Claim(
        "use-crosses",
        "results; appendix app:vs-ibq",
        "At the largest codebook IBQ begins with more codes in use than LGQ, and ends with fewer.",
        "IBQ 98.18% falls to 55.07%; LGQ 82.64% rises to 100%",
        _at_largest(
            [(_FIRST, IBQ, LGQ), (_LAST, LGQ, IBQ)],
            "IBQ higher at the first validation, LGQ at the last, with intervals apart",
        ),
    ),
)
