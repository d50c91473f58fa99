"""Validation of a tokenizer in training: reconstruction quality, code usage, and a grid of images.

b = images, s = their side in pixels.
"""

from collections.abc import Iterable
from typing import NamedTuple

import torch
from jaxtyping import Float, Int, Int64
from torch import Tensor

from lgq.data import to_png
from lgq.metrics.code_usage import learned_codebook
from lgq.metrics.features import FeatureSet
from lgq.metrics.metric_networks import MetricNetworks
from lgq.metrics.quality import TokenizerQuality, reconstruct_with
from lgq.tokenizer import Tokenizer

Numbered = tuple[Float[Tensor, "b 3 s s"], Int[Tensor, " b"]]
"""Images, and the index of each in its data set."""

_GRID_COLUMNS = 8


class Measured(NamedTuple):
    """Result of `measure`."""

    values: dict[str, float]
    """Metrics over the images of all ranks, and norms of learned codes."""
    grid: bytes | None
    """PNG of this rank's first images above their reconstructions; None if it had no image."""
    reference: FeatureSet | None
    """Inception features of the images of all ranks, for the next validation; None without Inception."""


def measure(
    tokenizer: Tokenizer,
    batches: Iterable[Numbered],
    networks: MetricNetworks,
    *,
    images: int,
    reference: FeatureSet | None = None,
    feature_images: Int64[Tensor, " n"] | None = None,
) -> Measured:
    """Measure a tokenizer, which is in eval mode, on the images of this rank.

    images: largest number of images over all ranks.
    reference: features of the images from an earlier validation, which halve Inception's work.
    feature_images: indices of the images on which rFID is computed; None for all.
    """
    size = tokenizer.codebook_size * tokenizer.stages
    quality = TokenizerQuality.empty(
        networks, size, images=images, reference=reference, feature_images=feature_images
    )
    reconstruct, grid = reconstruct_with(tokenizer), None
    for originals, indices in batches:
        reconstruction, codes = reconstruct(originals)
        grid = grid or grid_png(originals, reconstruction)
        quality.update(originals, reconstruction, codes, indices)
    over_ranks = quality.over_ranks()
    codebook = learned_codebook(tokenizer.quantizer)
    norms = {} if codebook is None else over_ranks.usage.norm_summary(codebook)
    return Measured(over_ranks.metrics() | norms, grid, over_ranks.reference)


def grid_png(images: Float[Tensor, "b 3 s s"], reconstructions: Float[Tensor, "b 3 s s"]) -> bytes:
    """Draw up to eight images in a row, each above its reconstruction."""
    columns = min(_GRID_COLUMNS, len(images))
    return to_png(image_grid(torch.cat([images[:columns], reconstructions[:columns]]), columns))


def image_grid(
    images: Float[Tensor, "b 3 s s"], columns: int = _GRID_COLUMNS
) -> Float[Tensor, "3 height width"]:
    """Arrange images row by row; places left over are black."""
    columns = min(columns, len(images))
    blanks = images.new_full((-len(images) % columns, *images.shape[1:]), -1.0)
    rows = torch.cat([images, blanks]).split(columns)
    return torch.cat([torch.cat(list(row), dim=2) for row in rows], dim=1)
