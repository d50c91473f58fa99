"""The images that a tokenizer reconstructs best, middling and worst, to look at."""

from collections.abc import Iterable

import torch

from lgq.data import ImageDataset, ImageLoader, LoaderSettings
from lgq.data.images import Subset
from lgq.evaluation import ImageScore, best_median_worst
from lgq.plots.pictures import reconstruction_grid
from lgq.tokenizer import Tokenizer

_EACH = 8
_SHOWN_SIDE = 160
"""Pixels that the side of an image takes in the picture, or a little less."""


def extremes(
    scores: Iterable[ImageScore], tokenizer: Tokenizer, data: ImageDataset, image_size: int
) -> dict[str, bytes]:
    """A PNG of each kind: images above their reconstructions, with their PSNR."""
    chosen = best_median_worst(scores, _EACH)
    return {kind: _picture(kind, each, tokenizer, data, image_size) for kind, each in chosen.items()}


@torch.no_grad()
def _picture(
    kind: str, scores: list[ImageScore], tokenizer: Tokenizer, data: ImageDataset, image_size: int
) -> bytes:
    loading = LoaderSettings(image_size=image_size, batch_size=len(scores))
    subset = Subset(data, [score.number for score in scores])
    images = next(ImageLoader(subset, loading).one_pass()).images
    device = tokenizer.device
    reconstructions = tokenizer.decode(tokenizer.encode(images.to(device))).cpu()
    return reconstruction_grid(
        images,
        reconstructions,
        caption=f"{kind} by PSNR: images above their reconstructions",
        remarks=[f"{score.psnr:.1f} dB" for score in scores],
        scale=max(1, _SHOWN_SIDE // image_size),
    )
