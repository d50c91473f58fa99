"""Discrete image tokenizers and generators on their tokens: LGQ and its baselines, exact and memory-light."""

from lgq.maskgit import MaskGIT
from lgq.quantizers import FSQ, IBQ, LFQ, LGQ, VQ, Residual, RotVQ, SimVQ, build_quantizer
from lgq.tokenizer import Tokenizer

__all__ = [
    "FSQ",
    "IBQ",
    "LFQ",
    "LGQ",
    "VQ",
    "MaskGIT",
    "Residual",
    "RotVQ",
    "SimVQ",
    "Tokenizer",
    "build_quantizer",
]
