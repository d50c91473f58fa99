"""Models of other packages as models of this one."""

from lgq.interop.peer import from_vector_quantize_pytorch

__all__ = ["from_vector_quantize_pytorch"]
