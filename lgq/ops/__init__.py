"""Mathematics as pure functions; modules elsewhere only hold state."""

from lgq.ops import fused as fused  # which registers its kernels with the operators
