"""What there is to know about each code: its use, its mean and most typical patches, its place in the plane.

k = codes, m = patches per code, f = side of a patch in pixels, c = channels, n = patches in all,
t = validations.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Float32, Int64, UInt8
from torch import Tensor

from lgq.data import ImageDataset, ImageLoader, LoaderSettings
from lgq.errors import LGQError
from lgq.progress import Progress, unwatched
from lgq.quantizers import Quantizer, Residual
from lgq.tokenizer import Tokenizer

MOST_CODES = 2**16
"""Largest codebook that the page shows code by code."""
TYPICAL = 8
"""Number of typical patches per code."""
_BATCH = 4
PlaneMethod = Literal["pca", "umap"]


@dataclass(frozen=True)
class CodeGallery:
    """Codes of one stage, counted over images."""

    counts: Int64[Tensor, " k"]
    """Number of patches of each code."""
    means: UInt8[Tensor, "k f f 3"]
    """Mean patch of each code; grey for a dead one."""
    typical: UInt8[Tensor, "k m f f 3"]
    """Patches nearest to the mean of their code, the nearest first."""
    images: int
    """Number of images that were read."""

    def typical_of(self, code: int) -> UInt8[Tensor, "kept f f 3"]:
        """Return the typical patches of a code; fewer than m where it occurred less often."""
        return self.typical[code, : int(self.counts[code].clamp(max=self.typical.shape[1]))]


def stage_quantizer(tokenizer: Tokenizer, stage: int) -> Quantizer:
    """Return the quantizer of a stage; a plain tokenizer has stage 0 alone."""
    if stage not in range(tokenizer.stages):
        raise LGQError(f"the stage must lie in 0..{tokenizer.stages - 1}, got {stage}.")
    quantizer: Any = tokenizer.quantizer
    chosen: Any = quantizer.stages[stage] if isinstance(quantizer, Residual) else quantizer
    return chosen


@torch.no_grad()
def codes_of(tokenizer: Tokenizer, stage: int) -> Float[Tensor, "k c"]:
    """Return the codes of a stage on the CPU; those of a fixed grid too."""
    codes: Any = stage_quantizer(tokenizer, stage).codebook
    return codes.detach().float().cpu()


def collect_codes(
    tokenizer: Tokenizer,
    data: ImageDataset,
    *,
    image_size: int,
    images: int,
    turn: Callable[[], AbstractContextManager[Any]],
    on_progress: Progress = unwatched,
) -> list[CodeGallery]:
    """Encode up to `images` centre squares, evenly spread over the data; return a gallery per stage.

    turn: context in which a batch is encoded, so that others can use the processor in between.
    """
    if tokenizer.codebook_size > MOST_CODES:
        raise LGQError(
            f"{tokenizer.codebook_size:,} codes are too many to show one by one: the page shows up to "
            f"{MOST_CODES:,}."
        )
    loader = ImageLoader(data, LoaderSettings(image_size=image_size, batch_size=_BATCH))
    patches, tokens, read = [], [], 0
    for batch in loader.one_pass(images):
        with turn():
            encoded = tokenizer.encode(batch.images.to(tokenizer.device)).cpu()
        patches.append(cut_patches(batch.images, tokenizer.factor))
        tokens.append(encoded.reshape(-1, tokenizer.stages))
        read += len(batch.images)
        on_progress(batch.position, min(images, len(data)))
    cut, codes = torch.cat(patches), torch.cat(tokens)
    return [
        gallery_of(cut, codes[:, stage], tokenizer.codebook_size, read) for stage in range(tokenizer.stages)
    ]


def cut_patches(images: Float[Tensor, "b 3 height width"], factor: int) -> UInt8[Tensor, "n f f 3"]:
    """Cut images in [-1, 1] into patches, in reading order."""
    levels = ((images.clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8)
    grid = levels.unflatten(3, (-1, factor)).unflatten(2, (-1, factor))
    return grid.permute(0, 2, 4, 3, 5, 1).flatten(0, 2)


def gallery_of(
    patches: UInt8[Tensor, "n f f 3"], codes: Int64[Tensor, " n"], codebook_size: int, images: int
) -> CodeGallery:
    """Sort patches by their codes, and by their distance to the mean patch of their code."""
    factor = patches.shape[1]
    counts = torch.bincount(codes, minlength=codebook_size)
    flat = patches.flatten(1).float()
    sums = flat.new_zeros(codebook_size, flat.shape[1]).index_add_(0, codes, flat)
    means = sums / counts.clamp_min(1)[:, None]
    distances = (flat - means[codes]).square().sum(1)
    order = distances.argsort(stable=True)
    order = order[codes[order].argsort(stable=True)]
    ranks = torch.arange(len(order)) - (counts.cumsum(0) - counts)[codes[order]]
    kept = ranks < TYPICAL
    typical = torch.full((codebook_size, TYPICAL, factor, factor, 3), 128, dtype=torch.uint8)
    typical[codes[order[kept]], ranks[kept]] = patches[order[kept]]
    means[counts == 0] = 128
    shown = means.round().to(torch.uint8).unflatten(1, (factor, factor, 3))
    return CodeGallery(counts, shown, typical, images)


def plane_of(codes: Float[Tensor, "k c"], method: PlaneMethod) -> Float32[np.ndarray, "k 2"]:
    """Return the codes in the plane."""
    if method == "pca":
        return planes_over_time([codes])[0]
    from lgq.plots.codebooks import project  # imports matplotlib

    # UMAP places all points together; it asks for two latents at least.
    return project(codes[:2], codes, method="umap").codes.numpy().astype(np.float32)


def planes_over_time(codes: Sequence[Float[Tensor, "k c"]]) -> Float32[np.ndarray, "t k 2"]:
    """Return codes in the plane in which the last of them vary most, so that their ways can be seen."""
    from lgq.plots.codebooks import project  # imports matplotlib

    if codes[-1].shape[1] < 2 or len(codes[-1]) < 2:
        flat = [torch.cat([code[:, :1], torch.zeros(len(code), 1)], dim=1) for code in codes]
    else:
        flat = [project(codes[-1], code, method="pca").codes for code in codes]
    return torch.stack(flat).numpy().astype(np.float32)


def colours_of(quantizer: str) -> list[str]:
    """Return the colours of a quantizer on a white and on a dark background."""
    from lgq.plots.palette import styles_of  # imports matplotlib

    style = styles_of([quantizer])[quantizer]
    return [style.light, style.dark]
