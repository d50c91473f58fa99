"""Kernel Inception Distance (Bińkowski et al. 2018): MMD² of features, unbiased at any sample size.

n = images, m = images of the reference, d = features.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from lgq.checks import require_at_least
from lgq.errors import LGQError
from lgq.ops.numerics import row_tiles


class KernelDistances(NamedTuple):
    """Over the subsets."""

    mean: float
    std: float
    """Of single subsets, divided by their number: the error of the mean is smaller."""


def kernel_distance(features: Float[Tensor, "n d"], features_ref: Float[Tensor, "m d"]) -> float:
    """Unbiased estimate of MMD² from all images, with the kernel (x·y / d + 1)³; can fall below 0.

    Costs (n + m)² d multiplications: for some thousand images, less than subsets do.
    """
    if min(len(features), len(features_ref)) < 2 or features.shape[1] != features_ref.shape[1]:
        shapes = f"{tuple(features.shape)} and {tuple(features_ref.shape)}"
        raise LGQError(f"both sets need 2 images or more and the same features, got {shapes}.")
    x, y = features.double(), features_ref.to(features.device).double()
    n, m = len(x), len(y)
    within = _sum_of_others(x) / (n * (n - 1)) + _sum_of_others(y) / (m * (m - 1))
    return float(within - 2 * _kernel_sum(x, y) / (n * m))


def kernel_inception_distance(
    features: Float[Tensor, "n d"],
    features_ref: Float[Tensor, "m d"],
    *,
    subsets: int = 100,
    subset_size: int = 1000,
    seed: int = 0,
) -> KernelDistances:
    """KID as it is published: mean and spread over random subsets, each drawn without repetition."""
    require_at_least(1, subsets=subsets)
    require_at_least(2, subset_size=subset_size)
    smaller = min(len(features), len(features_ref))
    if subset_size > smaller:
        rule = f"subsets of {subset_size} need as many images of both sets"
        raise LGQError(f"{rule}, got {smaller}: set subset_size, or take kernel_distance of all.")
    generator = torch.Generator().manual_seed(seed)

    def draw(rows: Float[Tensor, "rows d"]) -> Float[Tensor, "size d"]:
        return rows[torch.randperm(len(rows), generator=generator)[:subset_size].to(rows.device)]

    each = [kernel_distance(draw(features), draw(features_ref)) for _ in range(subsets)]
    distances = torch.tensor(each, dtype=torch.float64)
    return KernelDistances(float(distances.mean()), float(distances.std(correction=0)))


def _sum_of_others(x: Float64[Tensor, "n d"]) -> Float64[Tensor, ""]:
    """Kernel over all pairs but those of an image with itself."""
    return _kernel_sum(x, x) - _kernel(x.square().sum(1), x.shape[1]).sum()


def _kernel_sum(x: Float64[Tensor, "n d"], y: Float64[Tensor, "m d"]) -> Float64[Tensor, ""]:
    sums = [_kernel(x[rows] @ y.T, x.shape[1]).sum() for rows in row_tiles(len(x), len(y))]
    return torch.stack(sums).sum()


def _kernel(products: Float64[Tensor, "*pairs"], dim: int) -> Float64[Tensor, "*pairs"]:
    base = products / dim + 1
    return base * base * base
