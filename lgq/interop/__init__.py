"""Tokens, data sets and trained models of other libraries, in and out."""

from lgq.interop.peer import from_vector_quantize_pytorch

__all__ = ["from_vector_quantize_pytorch"]
