"""Precision and recall of images (Kynkäänniemi et al. 2019): fidelity and variety as two numbers.

n = images, m = reference images, d = features, t = images per tile.

The manifold of a set is the union of balls around its images. The radius of a ball is the distance to the
k-th nearest neighbour within the set.
"""

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from lgq.ops.numerics import row_tiles


def precision_recall(
    features: Float[Tensor, "n d"], features_ref: Float[Tensor, "m d"], *, neighbours: int = 3
) -> dict[str, float]:
    """Return the share of the images on the manifold of the reference, and the reverse.

    Costs (n + m)² d multiplications; only the distances of one tile of images are in memory.
    """
    if min(len(features), len(features_ref)) <= neighbours or features.shape[1] != features_ref.shape[1]:
        shapes = f"{tuple(features.shape)} and {tuple(features_ref.shape)}"
        raise ValueError(f"both sets need more than {neighbours} images and the same features, got {shapes}.")
    x, y = features.cpu().double(), features_ref.cpu().double()
    # Distances do not change, and lose fewer digits where all features share a large offset.
    centre = y.mean(0)
    x, y = x - centre, y - centre
    x_radii, y_radii = _squared_radii(x, neighbours), _squared_radii(y, neighbours)
    precise, recalled = [], torch.zeros(len(y), dtype=torch.bool)
    for rows in row_tiles(len(x), len(y)):
        distances = _squared_distances(x[rows], y)
        precise.append((distances <= y_radii).any(1))
        recalled |= (distances <= x_radii[rows, None]).any(0)
    shares = {"precision": torch.cat(precise), "recall": recalled}
    return {name: float(found.cpu().double().mean()) for name, found in shares.items()}


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
