"""Kernel Inception Distance (Bińkowski et al. 2018): MMD² of features, unbiased at any sample size.

n = images, m = reference images, d = features.
"""

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from lgq.ops.numerics import row_tiles


def kernel_distance(features: Float[Tensor, "n d"], features_ref: Float[Tensor, "m d"]) -> float:
    """Return the unbiased estimate of MMD² with the kernel (x·y / d + 1)³; it can fall below 0.

    Costs (n + m)² d multiplications: for a few thousand images, less than the published mean over subsets.
    """
    if min(len(features), len(features_ref)) < 2 or features.shape[1] != features_ref.shape[1]:
        shapes = f"{tuple(features.shape)} and {tuple(features_ref.shape)}"
        raise ValueError(f"both sets need 2 images or more and the same features, got {shapes}.")
    x, y = features.cpu().double(), features_ref.cpu().double()
    n, m = len(x), len(y)
    within = _sum_without_diagonal(x) / (n * (n - 1)) + _sum_without_diagonal(y) / (m * (m - 1))
    return float(within - 2 * _kernel_sum(x, y) / (n * m))


def weighted_kernel_distance(
    xx: Float64[Tensor, "n n"],
    yy: Float64[Tensor, "n n"],
    xy: Float64[Tensor, "n n"],
    weights: Float64[Tensor, " n"],
    *,
    dim: int,
) -> float:
    """Return `kernel_distance` of images that count `weights` times, from the products of all features.

    Pairs of an image with itself are left out within each set, also where it counts twice.
    """
    pairs = weights.outer(weights)
    distinct = pairs.clone().fill_diagonal_(0)
    within = ((_kernel(xx, dim) + _kernel(yy, dim)) * distinct).sum() / distinct.sum()
    return float(within - 2 * (_kernel(xy, dim) * pairs).sum() / pairs.sum())


def _sum_without_diagonal(x: Float64[Tensor, "n d"]) -> Float64[Tensor, ""]:
    """Sum of the kernel over all pairs, except those of an image with itself."""
    return _kernel_sum(x, x) - _kernel(x.square().sum(1), x.shape[1]).sum()


def _kernel_sum(x: Float64[Tensor, "n d"], y: Float64[Tensor, "m d"]) -> Float64[Tensor, ""]:
    sums = [_kernel(x[rows] @ y.T, x.shape[1]).sum() for rows in row_tiles(len(x), len(y))]
    return torch.stack(sums).sum()


def _kernel(products: Float64[Tensor, "*pairs"], dim: int) -> Float64[Tensor, "*pairs"]:
    base = products / dim + 1
    return base * base * base
