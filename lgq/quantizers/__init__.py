"""Quantizers with one contract, and the registry of their names."""

import inspect
from typing import Any

from lgq.checks import require_known
from lgq.errors import LGQError
from lgq.quantizers.base import Quantizer
from lgq.quantizers.fsq import FSQ
from lgq.quantizers.ibq import IBQ
from lgq.quantizers.lfq import LFQ
from lgq.quantizers.lgq import LGQ
from lgq.quantizers.quantized import Quantized
from lgq.quantizers.residual import Residual
from lgq.quantizers.simvq import SimVQ
from lgq.quantizers.vq import VQ, RotVQ

__all__ = [
    "FSQ", "IBQ", "LFQ", "LGQ", "QUANTIZERS", "VQ", "Quantized", "Quantizer", "Residual", "RotVQ", "SimVQ",
    "build_quantizer", "register",
]  # fmt: skip

QUANTIZERS: dict[str, type[Quantizer]] = {
    "lgq": LGQ,
    "ibq": IBQ,
    "vq": VQ,
    "rotvq": RotVQ,
    "fsq": FSQ,
    "lfq": LFQ,
    "simvq": SimVQ,
}
"""Quantizer classes by name: the only list, for runs, experiments and benchmarks alike."""


def register(name: str, quantizer: type[Quantizer]) -> None:
    """Add a quantizer class to `QUANTIZERS`: with the name `mine`, `pocket-mine` is a run."""
    if not getattr(quantizer, "label", ""):
        raise LGQError(f"quantizer {name!r} has no label: set {quantizer.__name__}.label for tables.")
    if QUANTIZERS.get(name, quantizer) is not quantizer:
        raise LGQError(f"quantizer {name!r} is {QUANTIZERS[name].__name__} already: choose another name.")
    QUANTIZERS[name] = quantizer


def build_quantizer(name: str, dim: int, codebook_size: int, **options: Any) -> Quantizer:
    """Build the quantizer of that name; options are its constructor's keyword arguments."""
    require_known("quantizer", name, QUANTIZERS)
    known = [p for p in inspect.signature(QUANTIZERS[name]).parameters if p not in ("dim", "codebook_size")]
    for option in options:
        require_known(f"{name} option", option, known)
    return QUANTIZERS[name](dim, codebook_size, **options)
