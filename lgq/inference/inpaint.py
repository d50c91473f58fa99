"""Parts of an image drawn anew by a generator (MaskGIT, Chang et al. 2022): from pixels to tokens and back.

s = side of the generator's images in pixels, h w = height and width in pixels or tokens, c = results.

    image, mask = read_image("cat.jpg", 256), read_mask("mask.png", "cat.jpg", 256)
    result = inpaint_image(maskgit, image, mask, label=281, count=4, seed=1)
    result.images, result.tokens, result.mask

An image is cut and resized as an evaluation does it. A token is drawn anew where any pixel of its patch is;
every other token stays as it is.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from lgq.checks import require_at_least
from lgq.data.images import BrokenImage, StoredImage
from lgq.data.transforms import centre_crop, render
from lgq.errors import LGQError
from lgq.maskgit import MaskGIT
from lgq.models.sampling import Sampling
from lgq.progress import Progress, unwatched
from lgq.random import batch_seed

Box = tuple[int, int, int, int]
"""Left, top, right, bottom, in pixels; the last two are the first ones outside."""

_BRIGHT = 128
_DEFAULT = Sampling()


class Inpainted(NamedTuple):
    """Results of `inpaint_image`, on the CPU."""

    images: Float[Tensor, "c 3 s s"]
    tokens: Int64[Tensor, "c *token_shape"]
    """Of the results."""
    original_tokens: Int64[Tensor, " *token_shape"]
    mask: Bool[Tensor, "s s"]
    """All pixels of the tokens that were drawn anew."""


def inpaint_image(
    maskgit: MaskGIT,
    image: Float[Tensor, "3 s s"],
    mask: Bool[Tensor, "s s"],
    sampling: Sampling = _DEFAULT,
    *,
    label: int,
    count: int = 1,
    seed: int = 0,
    batch_size: int = 32,
    on_progress: Progress = unwatched,
) -> Inpainted:
    """The image with its masked part drawn anew, `count` times, as one of class `label`.

    The same seed and batch size give the same results.
    """
    require_at_least(1, count=count, batch_size=batch_size)
    if mask.shape != image.shape[1:]:
        found, wanted = (" x ".join(map(str, shape)) for shape in (mask.shape, image.shape[1:]))
        raise LGQError(f"the mask has {found} pixels, and the image {wanted}: make them of one size.")
    maskgit.require_classes([label])
    factor = maskgit.tokenizer.factor
    hidden = token_mask(mask, factor)
    if not hidden.any():
        raise LGQError("the mask is empty: there is nothing to draw anew.")
    device = maskgit.transformer.positions.device
    original = maskgit.tokenizer.encode(image[None].to(device))
    tokens, images = [], []
    for first in range(0, count, batch_size):
        size = min(batch_size, count - first)
        asked = original.expand(size, *original.shape[1:]), hidden.expand(size, *hidden.shape)
        labels = torch.full((size,), label)
        drawn = maskgit.inpaint(*asked, labels, sampling, seed=batch_seed(seed, first))
        tokens.append(drawn.cpu())
        images.append(maskgit.tokenizer.decode(drawn).cpu())
        on_progress(first + size, count)
    return Inpainted(torch.cat(images), torch.cat(tokens), original[0].cpu(), pixel_mask(hidden, factor))


def token_mask(pixels: Bool[Tensor, "h w"], factor: int) -> Bool[Tensor, "h//{factor} w//{factor}"]:
    """True for a token of which any pixel is masked."""
    return pixels.unfold(0, factor, factor).unfold(1, factor, factor).flatten(2).any(2)


def pixel_mask(tokens: Bool[Tensor, "h w"], factor: int) -> Bool[Tensor, "h*{factor} w*{factor}"]:
    """True for all pixels of a masked token."""
    return tokens.repeat_interleave(factor, 0).repeat_interleave(factor, 1)


def read_image(path: str | Path, side: int) -> Float[Tensor, "3 {side} {side}"]:
    """The largest square in the middle of an image file, resized, with values in [-1, 1]."""
    stored = _open(path)
    return render(stored, centre_crop(stored.size), side)


def read_mask(path: str | Path, image: str | Path, side: int) -> Bool[Tensor, "{side} {side}"]:
    """True where any pixel of a file, of the size of the image's file and cut as it is, is bright."""
    stored, beside = _open(path), _open(image)
    if stored.size != beside.size:
        raise LGQError(
            f"the mask {path} has {_pixels(stored)}, and the image {image} has {_pixels(beside)}: "
            "paint the mask at the size of the image."
        )
    left, top, width, height, *_ = centre_crop(stored.size)
    bright = np.asarray(stored.rgb().convert("L")) >= _BRIGHT
    square = torch.from_numpy(bright[top : top + height, left : left + width].astype(np.float32))
    mask = F.adaptive_max_pool2d(square[None, None], side)[0, 0] > 0
    if not mask.any():
        raise LGQError(
            f"{path} has no bright pixel in the square in its middle: paint white what is to be drawn anew."
        )
    return mask


def box_mask(box: Box, side: int) -> Bool[Tensor, "{side} {side}"]:
    """True within a box."""
    left, top, right, bottom = box
    if not (0 <= left < right <= side and 0 <= top < bottom <= side):
        raise LGQError(
            f"the box {left} {top} {right} {bottom} (left, top, right, bottom) must have an area, and lie "
            f"within the generator's images of {side} x {side} pixels."
        )
    mask = torch.zeros(side, side, dtype=torch.bool)
    mask[top:bottom, left:right] = True
    return mask


def _open(path: str | Path) -> StoredImage:
    try:
        return StoredImage(Path(path).read_bytes(), str(path))
    except OSError as error:
        raise BrokenImage(str(path), error.strerror or str(error)) from error


def _pixels(stored: StoredImage) -> str:
    return f"{stored.size[0]} x {stored.size[1]} pixels"
