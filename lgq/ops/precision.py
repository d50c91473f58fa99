"""Enough precision to tell neighbouring codes apart, and none spent on denormal numbers."""

import math
from contextlib import AbstractContextManager, nullcontext

import torch
from jaxtyping import Float
from torch import Tensor


def at_least_float32(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def outside_autocast(x: Tensor) -> AbstractContextManager[None]:
    """A context in which operations keep the precision of their inputs."""
    device = x.device.type
    return torch.autocast(device, enabled=False) if torch.amp.is_autocast_available(device) else nullcontext()


def least_log_weight(dtype: torch.dtype) -> float:
    """A softmax weight below exp(this), relative to the largest, may be raised to it: it vanishes in
    the rounding of the sum, while the denormal numbers below make exp and GEMM crawl on a CPU."""
    return math.log(torch.finfo(dtype).tiny) / 2
