"""Precision and recall of images (Kynkäänniemi et al. 2019): fidelity and variety as two numbers.

n = images, m = reference images, d = features, t = images per tile.

The manifold of a set is the union of balls around its images. The radius of a ball is the distance to the
k-th nearest neighbour within the set.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from lgq.checks import require_at_least
from lgq.ops.numerics import row_tiles


class PrecisionRecall(NamedTuple):
    precision: float
    """Share of the images on the manifold of the reference."""
    recall: float
    """Share of the reference images on the manifold of the images."""


def precision_recall(
    features: Float[Tensor, "n d"], features_ref: Float[Tensor, "m d"], *, neighbours: int = 3
) -> PrecisionRecall:
    """Costs (n + m)² d multiplications; only the distances of one tile of images are in memory."""
    require_at_least(1, neighbours=neighbours)
    smaller = min(len(features), len(features_ref))
    if smaller <= neighbours:
        rule = f"{neighbours} neighbours need {neighbours + 1} images or more of both sets"
        raise ValueError(f"{rule}, got {smaller}.")
    if features.shape[1] != features_ref.shape[1]:
        sizes = f"{features.shape[1]} and {features_ref.shape[1]}"
        raise ValueError(f"both sets need features of the same network, got {sizes} features.")
    x, y = features.double(), features_ref.to(features.device).double()
    # Distances do not change, and lose fewer digits where all features share a large offset.
    centre = y.mean(0)
    x, y = x - centre, y - centre
    x_radii, y_radii = _squared_radii(x, neighbours), _squared_radii(y, neighbours)
    precise, recalled = [], torch.zeros(len(y), dtype=torch.bool, device=y.device)
    for rows in row_tiles(len(x), len(y)):
        distances = _squared_distances(x[rows], y)
        precise.append((distances <= y_radii).any(1))
        recalled |= (distances <= x_radii[rows, None]).any(0)
    return PrecisionRecall(float(torch.cat(precise).double().mean()), float(recalled.double().mean()))


def _squared_radii(x: Float64[Tensor, "n d"], neighbours: int) -> Float64[Tensor, " n"]:
    """Squared distance of each image to its k-th nearest neighbour."""
    radii = []
    for rows in row_tiles(len(x), len(x)):
        distances = _squared_distances(x[rows], x)
        distances[:, rows].fill_diagonal_(torch.inf)
        radii.append(distances.topk(neighbours, largest=False).values[:, -1])
    return torch.cat(radii)


def _squared_distances(a: Float64[Tensor, "t d"], b: Float64[Tensor, "m d"]) -> Float64[Tensor, "t m"]:
    norms = a.square().sum(1)[:, None] + b.square().sum(1)
    return norms.addmm_(a, b.T, alpha=-2).clamp_min_(0)
