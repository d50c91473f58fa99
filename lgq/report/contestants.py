"""Rows that the paper's claims speak of, by their settings."""

from lgq.report.rules import Contestant


def _quantizer(name: str, key: str) -> Contestant:
    return Contestant(name, {"quantizer": key})


LGQ, IBQ, FSQ = _quantizer("LGQ", "lgq"), _quantizer("IBQ", "ibq"), _quantizer("FSQ", "fsq")
LFQ, SIMVQ, ROTVQ = _quantizer("LFQ", "lfq"), _quantizer("SimVQ", "simvq"), _quantizer("RotVQ", "rotvq")
BASELINES = (ROTVQ, FSQ, LFQ, SIMVQ, IBQ)
"""Of the paper's comparison."""
STUDIED = (ROTVQ, FSQ, SIMVQ, IBQ)
"""Those whose codebooks it studies, and on which it trains generators."""


def _lgq(name: str, **options: float | str) -> Contestant:
    chosen = {f"quantizer_options.{option}": value for option, value in options.items()}
    return Contestant(name, {"quantizer": "lgq", **chosen})


SQUARED, DOT = _lgq("squared distance", score="l2"), _lgq("dot product", score="dot")

DEFAULT = _lgq("default", peak_weight=0.005, diversity_weight=0.005)
NO_PEAK = _lgq("no peakedness", peak_weight=0, diversity_weight=0.005)
NO_DIVERSITY = _lgq("no diversity", peak_weight=0.005, diversity_weight=0)
NEITHER = _lgq("neither", peak_weight=0, diversity_weight=0)
WEAK_DIVERSITY = _lgq("weak diversity", peak_weight=0.005, diversity_weight=0.001)
DIAGONAL = (
    DEFAULT,
    *(
        _lgq(f"both {weight:g}", peak_weight=weight, diversity_weight=weight)
        for weight in (0.001, 0.01, 0.05)
    ),
)

USUAL = _lgq("1 to 0.1", tau_start=1.0, tau_end=0.1, tau_shape="linear")
COOL = _lgq("0.5 to 0.1", tau_start=0.5, tau_end=0.1, tau_shape="linear")
HOT = _lgq("2 to 0.1", tau_start=2.0, tau_end=0.1, tau_shape="linear")
COLD = _lgq("constant 0.1", tau_start=0.1, tau_shape="constant")
WARM = (
    USUAL,
    _lgq("1 to 0.05", tau_start=1.0, tau_end=0.05, tau_shape="linear"),
    _lgq("1 to 0.3", tau_start=1.0, tau_end=0.3, tau_shape="linear"),
    _lgq("cosine", tau_start=1.0, tau_end=0.1, tau_shape="cosine"),
    _lgq("constant 1", tau_start=1.0, tau_shape="constant"),
)
