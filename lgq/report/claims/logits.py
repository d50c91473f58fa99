"""Claims about what the softmax scores (LGQ paper, contribution 3, tab:logit and tab:normbias)."""

from lgq.report.claims.claim import Claim, fully_used
from lgq.report.columns import CORRELATION, RFID, USED, Column
from lgq.report.contestants import DOT, SQUARED
from lgq.report.rules import between, leads

_LOGITS = "logits"
_GAP = Column("norm_gap", "Least live norm over greatest dead norm", None, 2)
_RECOVERED = Column("recovered_codes", "Dead codes regained in the second half", None, 0)

LOGITS = (
    Claim(
        "logit-rfid",
        "contribution 3; tab:logit",
        "With all else the same, the squared distance gives better rFID than the dot product.",
        "12.26 against 13.62",
        leads(_LOGITS, [RFID], SQUARED, [DOT]),
    ),
    Claim(
        "logit-use",
        "contribution 3; tab:logit",
        "With all else the same, the squared distance puts more codes in use than the dot product.",
        "100% against 79.86%",
        leads(_LOGITS, [USED], SQUARED, [DOT]),
    ),
    Claim(
        "logit-full",
        "results; tab:logit",
        "The squared distance comes to use all codes.",
        "100%",
        fully_used(_LOGITS, SQUARED),
    ),
    Claim(
        "logit-dead-stay-dead",
        "results; sec:vs-ibq",
        "Codes that the dot product has lost are never regained.",
        "the same 3,300 at every checkpoint",
        between(_LOGITS, _RECOVERED, DOT, most=0),
    ),
    Claim(
        "norms-disjoint",
        "results; tab:normbias",
        "Under the dot product every dead code is shorter than every live one.",
        "dead 0.511 to 0.634, live 5.198 to 5.848",
        between(_LOGITS, _GAP, DOT, least=1),
    ),
    Claim(
        "norms-correlate",
        "results; tab:normbias",
        "Under the dot product a code's norm goes with its use.",
        "correlation 0.997",
        between(_LOGITS, CORRELATION, DOT, least=0.9),
    ),
    Claim(
        "norms-free",
        "results; appendix app:vs-ibq",
        "Under the squared distance a code's norm says little about its use.",
        "correlation 0.08",
        between(_LOGITS, CORRELATION, SQUARED, least=-0.3, most=0.3),
    ),
)
