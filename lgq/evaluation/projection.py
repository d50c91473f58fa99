"""Codes among latents in the plane: UMAP (McInnes et al. 2018) where it is installed, else PCA.

n = latents, k = codes, d = channels.
"""

import importlib
import warnings
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from lgq.checks import require_at_least, require_one_of

Used = Literal["umap", "pca"]
Method = Literal["auto", "umap", "pca"]


@dataclass(frozen=True)
class Projection:
    """Points of a picture, and how they were made."""

    latents: Float64[Tensor, "n 2"]
    codes: Float64[Tensor, "k 2"]
    method: Used


def project(
    latents: Float[Tensor, "n d"],
    codes: Float[Tensor, "k d"],
    *,
    method: Method = "auto",
    seed: int = 0,
) -> Projection:
    """Latents and codes in one plane; the same for the same seed.

    method: "auto" takes UMAP where the package umap-learn is there, else PCA, and the result says which.
    """
    require_one_of(get_args(Method), method=method)
    require_at_least(2, latents=len(latents), channels=latents.shape[1])
    if latents.shape[1] != codes.shape[1]:
        sizes = f"{latents.shape[1]} and {codes.shape[1]}"
        raise ValueError(f"latents and codes need the same channels to share a plane, got {sizes}.")
    x, y = latents.detach().cpu().double(), codes.detach().cpu().double()
    umap = None if method == "pca" else _import_umap()
    if umap is not None:
        return Projection(*_by_umap(umap, x, y, seed), "umap")
    if method == "umap":
        raise ValueError("UMAP needs the package umap-learn: install lgq[umap], or choose 'pca'.")
    return Projection(*_by_pca(x, y), "pca")


def _import_umap() -> Any:
    """The package, or None where it is not there."""
    try:
        # It warns of a missing TensorFlow, which nothing here needs.
        with warnings.catch_warnings(action="ignore", category=ImportWarning):
            return importlib.import_module("umap")
    except ImportError:
        return None


def _by_pca(
    x: Float64[Tensor, "n d"], y: Float64[Tensor, "k d"]
) -> tuple[Float64[Tensor, "n 2"], Float64[Tensor, "k 2"]]:
    """On the two directions in which the latents vary most."""
    centre = x.mean(0)
    _, vectors = torch.linalg.eigh((x - centre).T @ (x - centre))
    plane = vectors[:, -2:].flip(1)
    # Directions have no sign of their own: without a rule, machines would mirror each other's pictures.
    largest = plane.gather(0, plane.abs().argmax(0, keepdim=True))
    plane = plane * largest.sign()
    return (x - centre) @ plane, (y - centre) @ plane


def _by_umap(
    umap: Any, x: Float64[Tensor, "n d"], y: Float64[Tensor, "k d"], seed: int
) -> tuple[Float64[Tensor, "n 2"], Float64[Tensor, "k 2"]]:
    """Of latents and codes together, so that neither is squeezed into the other's picture."""
    points = torch.cat([x, y]).numpy()
    neighbours = min(15, len(points) - 1)
    # One thread, as threads race and the seed would not decide.
    plane = umap.UMAP(n_neighbors=neighbours, random_state=seed, n_jobs=1).fit_transform(points)
    both = torch.from_numpy(plane).double()
    return both[: len(x)], both[len(x) :]
