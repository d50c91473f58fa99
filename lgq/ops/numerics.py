"""Sums and softmax weights that keep their precision: half precision, empty batches, denormal numbers."""

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

_TILE_BYTES = 2**25
_FLOAT64_BYTES = 8
_PROCESSOR = Path("/proc/cpuinfo")
_BF16_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}  # the last one is ARM's


def at_least_float32(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Convert half precision to float32; float32 and float64 stay as they are."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def outside_autocast(x: Tensor) -> AbstractContextManager[None]:
    """Context in which operations on the device of `x` keep the precision of their inputs."""
    device = x.device.type
    # Only where autocast is on: torch.export cannot save all regions that turn it off.
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        return torch.autocast(device, enabled=False)
    return nullcontext()


@contextmanager
def full_float32(x: Tensor) -> Iterator[None]:
    """Context in which matrix products of float32 are neither autocast nor computed in TF32 or bf16.

    The settings of `torch.set_float32_matmul_precision` and `fp32_precision` are global, so they are restored
    at the end. Use it in operators only: torch.compile would run traced products outside the context.
    """
    try:
        precision = torch.get_float32_matmul_precision()
    except RuntimeError:  # torch cannot say if only `fp32_precision` was set
        precision = "highest"
    matmuls: list[Any] = [getattr(b, "matmul", None) for b in (torch.backends.cuda, torch.backends.mkldnn)]
    before = {matmul: matmul.fp32_precision for matmul in matmuls if hasattr(matmul, "fp32_precision")}
    reduced = precision != "highest" or not {"none", "ieee"}.issuperset(before.values())
    try:
        if reduced:
            torch.set_float32_matmul_precision("highest")
        with outside_autocast(x):
            yield
    finally:
        if reduced:
            torch.set_float32_matmul_precision(precision)
            for matmul, fp32_precision in before.items():
                matmul.fp32_precision = "none"  # which follows `torch.backends.fp32_precision`
                if matmul.fp32_precision != fp32_precision:
                    matmul.fp32_precision = fp32_precision


def attend(
    query: Float[Tensor, "b h n c"],
    key: Float[Tensor, "b h n c"],
    value: Float[Tensor, "b h n c"],
    *,
    dropout: float = 0.0,
) -> Float[Tensor, "b h n c"]:
    """Attention of every position to every position, for h heads; on a CPU in float32 at least."""
    if query.device.type != "cpu":
        return F.scaled_dot_product_attention(query, key, value, dropout_p=dropout)
    # torch's backward pass in bf16 takes six times as long on a CPU as the one in float32.
    with outside_autocast(query):
        q, k, v = (at_least_float32(part) for part in (query, key, value))
        return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout).to(query.dtype)


def min_log_weight(dtype: torch.dtype) -> float:
    """Lower bound of log-weights relative to the largest of a softmax.

    A smaller weight vanishes in the rounding of the sum anyway, but denormal numbers make exp and GEMM
    very slow on a CPU.
    """
    return math.log(torch.finfo(dtype).tiny) / 2


def mean(x: Float[Tensor, "*shape"]) -> Float[Tensor, ""]:
    """Mean over all elements; 0 for an empty tensor."""
    return at_least_float32(x).sum() / max(x.numel(), 1)


def mse(a: Float[Tensor, "*shape"], b: Float[Tensor, "*shape"]) -> Float[Tensor, ""]:
    """Mean squared difference over all elements."""
    return mean((at_least_float32(a) - at_least_float32(b)).square())


def entropy(p: Float[Tensor, " k"], *, offset: float = 0.0) -> Float[Tensor, ""]:
    """Entropy -sum p log(p + offset) in nats, with 0 log 0 = 0 and a finite gradient there."""
    return -(p * (p + offset).clamp_min(torch.finfo(p.dtype).tiny).log()).sum()


def gaussian_distance(a: Float[Tensor, "n c"], b: Float[Tensor, "m c"]) -> Float[Tensor, ""]:
    """Wasserstein-2 distance between the Gaussians with the means and covariances of two sets of vectors.

    sqrt(|m_a - m_b|^2 + tr(A) + tr(B) - 2 tr((A^1/2 B A^1/2)^1/2)), with gradients for `b` alone, also where
    a set has fewer vectors than channels. 0 for sets of fewer than two vectors.
    """
    (mean, covariance), (other_mean, other_covariance) = _moments(a.detach()), _moments(b)
    values, vectors = torch.linalg.eigh(covariance)
    root = vectors * values.clamp_min(0).sqrt() @ vectors.T
    # What is rounding error has no root, and no gradient.
    squares = torch.linalg.eigvalsh(root @ other_covariance @ root)
    eps = torch.finfo(squares.dtype).eps
    least = squares.detach().amax() * len(squares) * eps + torch.finfo(squares.dtype).tiny
    cross = torch.where(squares > least, squares.clamp_min(least).sqrt(), 0).sum()
    squared = (mean - other_mean).square().sum() + covariance.trace() + other_covariance.trace() - 2 * cross
    # Counted by a tensor: the compiler does not know how many vectors a mask keeps.
    return torch.where(torch.minimum(_count(a), _count(b)) > 1, squared.clamp_min(eps).sqrt(), 0)


def _moments(x: Float[Tensor, "n c"]) -> tuple[Tensor, Tensor]:
    """Return the mean and the covariance; zeros where they do not exist."""
    count = _count(x)
    mean = x.sum(0) / count.clamp_min(1)
    centred = x - mean
    return mean, centred.T @ centred / (count - 1).clamp_min(1)


def _count(x: Float[Tensor, "n c"]) -> Float[Tensor, ""]:
    return x.new_ones(x.shape[0]).sum()


def row_tiles(rows: int, columns: int) -> Iterator[slice]:
    """Slices of the rows of a large matrix, each with at most 32 MiB of float64 values, or one row."""
    step = max(1, _TILE_BYTES // (_FLOAT64_BYTES * max(columns, 1)))
    return (slice(start, min(start + step, rows)) for start in range(0, rows, step))


def lacks_bf16(device: torch.device) -> bool:
    """Whether a device is a CPU known to have no instructions for bf16: it is several times slower there."""
    if device.type != "cpu" or not _PROCESSOR.exists():
        return False
    return not _BF16_FLAGS & set(_PROCESSOR.read_text().split())
