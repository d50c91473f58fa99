"""Sums and means that survive an empty batch and half precision.   k = outcomes."""

import torch
from jaxtyping import Float
from torch import Tensor

from lgq.ops.precision import at_least_float32


def mean(x: Float[Tensor, "*shape"]) -> Float[Tensor, ""]:
    """Mean over all elements; 0 of none."""
    return at_least_float32(x).sum() / max(x.numel(), 1)


def mse(a: Float[Tensor, "*shape"], b: Float[Tensor, "*shape"]) -> Float[Tensor, ""]:
    """Mean squared difference over all elements."""
    return mean((at_least_float32(a) - at_least_float32(b)).square())


def entropy(p: Float[Tensor, " k"], *, offset: float = 0.0) -> Float[Tensor, ""]:
    """-sum p log(p + offset) in nats, with 0 log 0 = 0 and a finite gradient there."""
    return -(p * (p + offset).clamp_min(torch.finfo(p.dtype).tiny).log()).sum()
