"""How good is a tokenizer by now? Quality of reconstructions, use of codes, and a picture of some.

b = images, s = their side.
"""

from collections.abc import Iterable
from typing import NamedTuple

import torch
from jaxtyping import Float, Int, Int64
from torch import Tensor

from lgq.data import to_png
from lgq.metrics.code_usage import CodeUsage, learned_codebook
from lgq.metrics.features import FeatureSet
from lgq.metrics.metric_networks import MetricNetworks
from lgq.metrics.quality import TokenizerQuality, through
from lgq.tokenizer import Tokenizer

Numbered = tuple[Float[Tensor, "b 3 s s"], Int[Tensor, " b"]]
"""Images, and the place of each in its data set."""

_GRID_COLUMNS = 8


class Measured(NamedTuple):
    """Result of `measure`."""

    values: dict[str, float]
    """All that `TokenizerQuality` takes with these judges, over all ranks, and norms of learned codes."""
    grid: bytes | None
    """A PNG of this rank's first images above their reconstructions; none if it had no image."""
    originals: FeatureSet | None
    """Features of the images of all ranks, for the next validation on them; none without Inception."""


def measure(
    tokenizer: Tokenizer,
    batches: Iterable[Numbered],
    judges: MetricNetworks,
    *,
    images: int,
    known: FeatureSet | None = None,
    inspected: Int64[Tensor, " n"] | None = None,
) -> Measured:
    """Take the images of this rank through the tokenizer, which is in eval mode.

    images: that are to come at most, over all ranks.
    known: their features, from an earlier validation, which has half of Inception's work then.
    inspected: numbers of the images that pass Inception; None for all.
    """
    size = tokenizer.codebook_size * tokenizer.stages
    quality = TokenizerQuality.of(judges, size, images=images, known=known, inspected=inspected)
    reconstruct, grid = through(tokenizer), None
    for originals, numbers in batches:
        reconstruction, codes = reconstruct(originals)
        grid = grid or grid_png(originals, reconstruction)
        quality.update(originals, reconstruction, codes, numbers)
    everywhere = quality.over_ranks()
    values = everywhere.metrics() | _norms(tokenizer, everywhere.usage)
    return Measured(values, grid, everywhere.originals)


def grid_png(images: Float[Tensor, "b 3 s s"], reconstructions: Float[Tensor, "b 3 s s"]) -> bytes:
    """Up to eight images in a row, each above its reconstruction."""
    rows = [torch.cat(list(row[:_GRID_COLUMNS]), dim=2) for row in (images, reconstructions)]
    return to_png(torch.cat(rows, dim=1))


def _norms(tokenizer: Tokenizer, usage: CodeUsage) -> dict[str, float]:
    codebook = learned_codebook(tokenizer.quantizer)
    return {} if codebook is None else usage.norm_summary(codebook)
