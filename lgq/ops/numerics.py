"""Enough precision to tell neighbouring codes apart, and none spent on denormal numbers.

Sums and means that survive an empty batch and half precision.   k = outcomes.

Rows of a matrix that is too large to keep, a few at a time.
"""

import math
from collections.abc import Iterator
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


def mean(x: Float[Tensor, "*shape"]) -> Float[Tensor, ""]:
    """Mean over all elements; 0 of none."""
    return at_least_float32(x).sum() / max(x.numel(), 1)


def mse(a: Float[Tensor, "*shape"], b: Float[Tensor, "*shape"]) -> Float[Tensor, ""]:
    """Mean squared difference over all elements."""
    return mean((at_least_float32(a) - at_least_float32(b)).square())


def entropy(p: Float[Tensor, " k"], *, offset: float = 0.0) -> Float[Tensor, ""]:
    """-sum p log(p + offset) in nats, with 0 log 0 = 0 and a finite gradient there."""
    return -(p * (p + offset).clamp_min(torch.finfo(p.dtype).tiny).log()).sum()


_TILE_BYTES = 2**25
_BYTES_A_VALUE = 8


def row_tiles(rows: int, columns: int) -> Iterator[slice]:
    """All rows, in slices whose float64 values take 32 MiB at most, or are one row."""
    step = max(1, _TILE_BYTES // (_BYTES_A_VALUE * max(columns, 1)))
    return (slice(start, min(start + step, rows)) for start in range(0, rows, step))
