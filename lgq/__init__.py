"""Discrete image tokenizers: LGQ and its baselines, exact and memory-light."""

from lgq.quantizers import FSQ, IBQ, LFQ, LGQ, VQ, Residual, SimVQ, build_quantizer
from lgq.tokenizer import Tokenizer

__all__ = ["FSQ", "IBQ", "LFQ", "LGQ", "VQ", "Residual", "SimVQ", "Tokenizer", "build_quantizer"]
