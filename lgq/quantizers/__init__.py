"""Quantizers of one contract, by class and by name."""

import difflib
import inspect
from functools import partial
from typing import Any

from lgq.errors import LGQError
from lgq.quantizers.base import Quantized, Quantizer
from lgq.quantizers.fsq import FSQ
from lgq.quantizers.ibq import IBQ
from lgq.quantizers.lfq import LFQ
from lgq.quantizers.lgq import LGQ
from lgq.quantizers.residual import Residual
from lgq.quantizers.simvq import SimVQ
from lgq.quantizers.vq import VQ

__all__ = [
    "FSQ", "IBQ", "LFQ", "LGQ", "QUANTIZERS", "ROTVQ", "VQ", "Quantized", "Quantizer", "Residual", "SimVQ",
    "build_quantizer",
]  # fmt: skip

ROTVQ: dict[str, Any] = {"gradient": "rotation", "decay": 0.8, "commitment_weight": 1.0}
"""What makes VQ the paper's RotVQ."""

QUANTIZERS: dict[str, Any] = {
    "lgq": LGQ,
    "ibq": IBQ,
    "vq": VQ,
    "rotvq": partial(VQ, **ROTVQ),
    "fsq": FSQ,
    "lfq": LFQ,
    "simvq": SimVQ,
}
"""Name to constructor, each with the settings of the LGQ paper's comparison."""


def build_quantizer(name: str, dim: int, codebook_size: int, **options: Any) -> Quantizer:
    """The quantizer of that name; options are its constructor's keyword arguments."""
    if name not in QUANTIZERS:
        raise LGQError(f"unknown quantizer {name!r}{_hint(name, list(QUANTIZERS))}.")
    known = [p for p in inspect.signature(QUANTIZERS[name]).parameters if p not in ("dim", "codebook_size")]
    for option in options:
        if option not in known:
            raise LGQError(f"quantizer {name!r} has no option {option!r}{_hint(option, known)}.")
    quantizer: Quantizer = QUANTIZERS[name](dim, codebook_size, **options)
    return quantizer


def _hint(word: str, known: list[str]) -> str:
    close = difflib.get_close_matches(word, known, n=1)
    return f": did you mean {close[0]!r}?" if close else f": choose from {', '.join(known)}"
