"""Claims about the geometry of codebooks (LGQ paper, tab:geometry)."""

from lgq.report.claims.claim import Claim, by_eye
from lgq.report.columns import ENTROPY, INFORMATION, RFID, TOGETHER, TOP, Column
from lgq.report.contestants import FSQ, IBQ, LGQ, ROTVQ, SIMVQ, STUDIED
from lgq.report.curve_rules import goes_with
from lgq.report.rules import all_of, leads, trails

_GEOMETRY = "geometry"
_MEASURES = (ENTROPY, TOP, TOGETHER, INFORMATION)


def _leads(id: str, column: Column, what: str, paper: str) -> Claim:
    text = f"LGQ's codebook has {what} of five."
    return Claim(id, "results; tab:geometry", text, paper, leads(_GEOMETRY, [column], LGQ, STUDIED))


CODEBOOKS = (
    _leads("geometry-entropy", ENTROPY, "the most uniform usage", "0.997; IBQ 0.991, FSQ 0.977"),
    _leads("geometry-top", TOP, "the least mass in its most used 1%", "1.9%; IBQ 2.6%, FSQ 3.7%"),
    _leads("geometry-together", TOGETHER, "the most pairs of codes seen together", "13.1%; IBQ 12.9%"),
    _leads("geometry-information", INFORMATION, "the largest mutual information", "8.08; IBQ 8.01"),
    Claim(
        "geometry-second",
        "results; tab:geometry",
        "IBQ is second to LGQ in all four measures.",
        "0.991, 2.6%, 12.9%, 8.01",
        all_of(
            leads(_GEOMETRY, _MEASURES, LGQ, [IBQ]), leads(_GEOMETRY, _MEASURES, IBQ, [FSQ, SIMVQ, ROTVQ])
        ),
    ),
    Claim(
        "geometry-rotvq",
        "results; tab:geometry",
        "RotVQ's usage is the most concentrated of the five.",
        "43.4% in its top 1%, 23 times LGQ's",
        trails(_GEOMETRY, TOP, ROTVQ, (LGQ, IBQ, FSQ, SIMVQ)),
    ),
    Claim(
        "utilization-is-not-all",
        "results; sec:results-geometry",
        "FSQ and SimVQ use all codes too, yet combine them less freely than LGQ.",
        "co-occurrence 12.2% and 6.2%, MI 7.94 and 6.34",
        leads(_GEOMETRY, [TOGETHER, INFORMATION], LGQ, [FSQ, SIMVQ]),
    ),
    Claim(
        "uniformity-and-quality",
        "results; sec:results-geometry",
        "Over methods, uniform usage goes with better rFID, but not strictly.",
        "LGQ first in both; SimVQ good at rFID with moderate uniformity",
        goes_with(_GEOMETRY, ENTROPY, RFID, (LGQ, *STUDIED)),
    ),
    Claim(
        "codes-spread",
        "results; fig:umap",
        "In the plane, LGQ's codes spread over the latents, RotVQ's crowd in a part of them.",
        "a figure",
        by_eye("the codes among latents below"),
    ),
)
