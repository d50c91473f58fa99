"""Claims about cost (LGQ paper, sec:cost and tab:quantizer_cost). Times are of this machine and our code."""

from lgq.report.claims.claim import Claim
from lgq.report.columns import COSTS, STEP_TIME
from lgq.report.contestants import BASELINES, FSQ, IBQ, LGQ
from lgq.report.cost_rules import alike, beside_the_papers_networks, cheaper, grows, outlasts, share_at
from lgq.report.rules import all_of

_, _TIME, _MEMORY, _SHARE = COSTS
_COST = "cost"

COST = (
    Claim(
        "cost-share",
        "results; tab:quantizer_cost",
        "At K = 16,384 LGQ's quantizer takes about a tenth of a training step.",
        "10.2%",
        beside_the_papers_networks(_COST, share_at(_COST, _SHARE, LGQ, 16_384, least=0.05, most=0.15)),
    ),
    Claim(
        "cost-time",
        "results; tab:quantizer_cost",
        "LGQ is several times as fast as IBQ.",
        "3.8 times, at every K",
        cheaper(_COST, _TIME, LGQ, IBQ),
    ),
    Claim(
        "cost-memory",
        "results; tab:quantizer_cost",
        "LGQ takes less memory than IBQ.",
        "1.5 times less, at every K",
        cheaper(_COST, _MEMORY, LGQ, IBQ),
    ),
    Claim(
        "cost-limit",
        "results; tab:quantizer_cost",
        "At the largest codebook IBQ exhausts memory where LGQ still trains.",
        "K = 262,144 on 80 GB; a property of the implementation as much as of the method",
        outlasts(_COST, _TIME, LGQ, IBQ),
    ),
    Claim(
        "cost-fsq",
        "results; tab:quantizer_cost",
        "FSQ is cheaper than both, and its cost does not depend on the codebook size.",
        "0.42 and 0.45 ms",
        all_of(
            cheaper(_COST, _TIME, FSQ, LGQ),
            cheaper(_COST, _TIME, FSQ, IBQ),
            grows(_COST, _TIME, FSQ, least=0.67, most=1.5),
        ),
    ),
    Claim(
        "cost-linear",
        "results; tab:quantizer_cost",
        "Costs of LGQ grow linearly with the codebook.",
        "3.59 ms at 4,096 to 190.33 ms at 262,144",
        grows(_COST, _TIME, LGQ, least=0.67, most=1.5, linear=True),
    ),
    Claim(
        "cost-of-training",
        "results; appendix app:cost",
        "End to end, training costs about the same with every quantizer.",
        "15.4 to 17.3 GPU-hours an epoch, a factor of 1.12",
        beside_the_papers_networks("comparison", alike("comparison", STEP_TIME, (LGQ, *BASELINES), most=1.2)),
    ),
    Claim(
        "cost-of-size",
        "results; appendix app:cost",
        "End to end, training LGQ costs little more with a 16 times larger codebook.",
        "15.9 to 17.3 GPU-hours an epoch, 8.9% more",
        beside_the_papers_networks(
            "codebook-size", grows("codebook-size", STEP_TIME, LGQ, least=0.8, most=1.2)
        ),
    ),
)
