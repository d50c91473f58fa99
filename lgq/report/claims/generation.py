"""Claims about generation on frozen tokenizers (LGQ paper, abstract, contribution 4 and tab:maskgit_gen)."""

from lgq.report.claims.claim import FULL, Claim, by_eye
from lgq.report.columns import GFID, INCEPTION, TOKENIZER_RFID, Column
from lgq.report.contestants import FSQ, IBQ, LGQ, ROTVQ, SIMVQ, STUDIED
from lgq.report.curve_rules import order_changes
from lgq.report.rules import all_of, between, leads, trails

_GENERATION = "generation"
_USED = Column("tokenizer.utilization", "Util. % of the tokenizer", "higher", 2, 100)

GENERATION = (
    Claim(
        "best-gfid",
        "abstract; contribution 4; tab:maskgit_gen",
        "Of generators trained alike on five frozen tokenizers, that on LGQ has the best gFID.",
        "57.69 ± 0.26; IBQ 59.47 ± 0.09, SimVQ 69.38, FSQ 70.16, RotVQ 92.99",
        leads(_GENERATION, [GFID], LGQ, STUDIED),
    ),
    Claim(
        "both-alike",
        "abstract",
        "LGQ leads on reconstruction and generation alike.",
        "rFID 12.32, gFID 57.69",
        leads(_GENERATION, [TOKENIZER_RFID, GFID], LGQ, STUDIED),
    ),
    Claim(
        "gfid-second",
        "results; tab:maskgit_gen",
        "IBQ is second by gFID.",
        "59.47",
        all_of(leads(_GENERATION, [GFID], LGQ, [IBQ]), leads(_GENERATION, [GFID], IBQ, [SIMVQ, FSQ, ROTVQ])),
    ),
    Claim(
        "ibq-inception",
        "results; tab:maskgit_gen",
        "IBQ has the best Inception Score.",
        "15.03; LGQ 14.80",
        leads(_GENERATION, [INCEPTION], IBQ, (LGQ, SIMVQ, FSQ, ROTVQ)),
    ),
    Claim(
        "gfid-rotvq",
        "results; tab:maskgit_gen",
        "RotVQ has the worst gFID.",
        "92.99",
        trails(_GENERATION, GFID, ROTVQ, (LGQ, IBQ, SIMVQ, FSQ)),
    ),
    Claim(
        "use-is-not-sufficient",
        "results; sec:results-maskgit",
        "FSQ, SimVQ and LGQ all use their whole codebooks, and yet LGQ's gFID is better than the others'.",
        "100% each; 70.16, 69.38, 57.69",
        all_of(
            *(between(_GENERATION, _USED, each, least=FULL) for each in (LGQ, FSQ, SIMVQ)),
            leads(_GENERATION, [GFID], LGQ, [FSQ, SIMVQ]),
        ),
    ),
    Claim(
        "order-not-kept",
        "discussion",
        "The order of the baselines by reconstruction is not their order by generation.",
        "SimVQ before IBQ by rFID, IBQ before SimVQ by gFID",
        order_changes(_GENERATION, TOKENIZER_RFID, GFID, (IBQ, SIMVQ, FSQ, ROTVQ)),
    ),
    Claim(
        "sharpest-samples",
        "results; sec:results-maskgit",
        "LGQ's samples are the sharpest and most of their class, RotVQ's the most blurred.",
        "figures; of unselected samples, only RotVQ's are told apart by eye",
        by_eye("the samples below"),
    ),
)
