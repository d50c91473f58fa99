"""Parts of an image redrawn by a generator (MaskGIT, Chang et al. 2022): from pixels to tokens and back.

s = side of the generator's images in pixels, h w = height and width in pixels or tokens, c = results.

    result = inpaint("runs/generator", "cat.jpg", "strip.png", mask="mask.png", label=281, count=4, seed=1)
    result.images, result.tokens, result.mask

An image is cropped and resized as an evaluation does it. A token is redrawn where any pixel of its patch is
masked; all other tokens stay. The pixels of the image are then pasted back outside of the mask.
"""

import warnings
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from lgq.checks import require_at_least
from lgq.data.images import read_stored_image
from lgq.data.transforms import centre_crop, render, to_png
from lgq.distributed import rank
from lgq.errors import LGQError, LGQWarning
from lgq.files import WeightsChoice, write_file
from lgq.inference import Device, GeneratorSource, generator_on_device
from lgq.inference.sample import is_one_picture
from lgq.models.sampling import Sampling
from lgq.plots.pictures import inpainting_strip
from lgq.progress import Progress, unwatched
from lgq.random import SAMPLING_BATCH, batch_seed

Box = tuple[int, int, int, int]
"""Left, top, right, bottom, in pixels; right and bottom are the first ones outside."""

_BRIGHT, _NAMES_SHOWN = 128, 8
_DEFAULT = Sampling()


class Inpainted(NamedTuple):
    """Results of `inpaint`, on the CPU."""

    images: Float[Tensor, "c 3 s s"]
    tokens: Int64[Tensor, "c *token_shape"]
    """Tokens of the results."""
    original_tokens: Int64[Tensor, " *token_shape"]
    mask: Bool[Tensor, "s s"]
    """All pixels of the tokens that were redrawn."""

    def __repr__(self) -> str:
        count, _, height, width = self.images.shape
        area = f"{self.mask.float().mean():.0%} redrawn"
        return f"Inpainted({count} images of {width} x {height} pixels, {area})"


def inpaint(
    generator: GeneratorSource,
    image: str | Path | Float[Tensor, "3 s s"],
    out: str | Path | None = None,
    *,
    mask: str | Path | Bool[Tensor, "s s"] | None = None,
    box: Box | None = None,
    label: int | str | None = None,
    count: int = 4,
    sampling: Sampling = _DEFAULT,
    seed: int = 0,
    batch_size: int = SAMPLING_BATCH,
    keep_decoded: bool = False,
    weights: WeightsChoice = "best",
    device: Device = "auto",
    on_progress: Progress = unwatched,
) -> Inpainted:
    """Redraw the masked part of an image `count` times, as an image of class `label`.

    image: a file, whose centre square is resized to the generator's images, or such a square in [-1, 1].
    out: a name that ends in .png is one picture of the image, the masked image and the results. A name
        without ending is a directory of the results, result-00000.png and so on. None writes nothing.
    mask: a file in pixels of the image file, bright where it is redrawn, or a mask of the square.
    box: instead of a mask, a rectangle in pixels of the generator's square image.
    label: name or number of the class; None is enough for a generator of one class.
    keep_decoded: keep the decoder's pixels everywhere. By default the image's own pixels are pasted back
        where the mask is false, with a soft border of f pixels around the mask.

    The same seed and batch size give the same results.
    """
    is_picture = out is not None and is_one_picture(Path(out))
    if (mask is None) == (box is None):
        raise LGQError("give what to redraw as either `mask`, a file, or `box`, LEFT TOP RIGHT BOTTOM.")
    require_at_least(1, count=count, batch_size=batch_size)
    generator = generator_on_device(generator, weights, device)
    side, factor = generator.image_size, generator.tokenizer.factor
    if label is None and len(generator.classes) > 1:
        known = len(generator.classes)
        names = ", ".join(generator.classes) + "," if known <= _NAMES_SHOWN else "a name"
        raise LGQError(
            f"the generator knows {known:,} classes: give `label`: {names} or a number from 0 to {known - 1}."
        )
    (number,) = generator.class_numbers([0 if label is None else label])
    pixels = image
    if not isinstance(pixels, Tensor):
        stored = read_stored_image(pixels)
        pixels = render(stored, centre_crop(stored.size), side)
        _warn_if_enlarged(stored.size, image, side)
    masked = _resolve_mask(mask, box, image, side)
    hidden = _token_mask(masked, factor)
    if not hidden.any():
        raise LGQError("the mask is empty: there is nothing to redraw.")
    original = generator.tokenizer.encode(pixels[None].to(generator.transformer.positions.device))
    tokens, images = [], []
    for first in range(0, count, batch_size):
        size = min(batch_size, count - first)
        shown = original.expand(size, *original.shape[1:])
        labels, masks = [number] * size, hidden.expand(size, *hidden.shape)
        redrawn = generator.inpaint(shown, masks, labels, sampling, seed=batch_seed(seed, first))
        tokens.append(redrawn.cpu())
        decoded = generator.tokenizer.decode(redrawn).cpu()
        images.append(decoded if keep_decoded else paste_back(pixels, decoded, masked, factor))
        on_progress(first + size, count)
    area = hidden.repeat_interleave(factor, 0).repeat_interleave(factor, 1)
    result = Inpainted(torch.cat(images), torch.cat(tokens), original[0].cpu(), area)
    # All processes draw the same.
    if out is not None and rank() == 0:
        if is_picture:
            strip = inpainting_strip(pixels, area, result.images, name=generator.classes[number])
            write_file(Path(out), strip)
        else:
            for i, drawn in enumerate(result.images):
                write_file(Path(out, f"result-{i:05d}.png"), to_png(drawn))
    return result


def _warn_if_enlarged(size: tuple[int, int], image: object, side: int) -> None:
    if min(size) < side and rank() == 0:
        width, height = size
        warnings.warn(
            f"{image} has {width} x {height} pixels, and its centre square was enlarged to {side} x {side}: "
            "the results are as blurred as that is. Give a larger image.",
            LGQWarning,
            stacklevel=3,
        )


def _resolve_mask(
    mask: str | Path | Tensor | None, box: Box | None, image: str | Path | Tensor, side: int
) -> Bool[Tensor, "{side} {side}"]:
    if box is not None:
        return _box_mask(box, side)
    if not isinstance(mask, Tensor):
        assert mask is not None
        if isinstance(image, Tensor):
            raise LGQError("a mask from a file needs an image from a file: give the mask as a tensor.")
        return _read_mask(mask, image, side)
    if mask.shape != (side, side):
        size = " x ".join(map(str, mask.shape))
        raise LGQError(f"the mask has {size} pixels, and the image {side} x {side}: make them of one size.")
    return mask


def paste_back(
    image: Float[Tensor, "3 s s"], decoded: Float[Tensor, "c 3 s s"], mask: Bool[Tensor, "s s"], factor: int
) -> Float[Tensor, "c 3 s s"]:
    """Return decoded pixels where the mask is true, the image's own elsewhere, and a blend at the border.

    The share of a decoded pixel is 1 under the mask, and falls to 0 within `factor` pixels around it.
    """
    reach = factor // 2
    size = 2 * reach + 1
    widened = F.max_pool2d(mask.cpu().float()[None], size, 1, reach)
    share = F.avg_pool2d(widened, size, 1, reach, count_include_pad=False)
    original = image.cpu().to(decoded.dtype).expand_as(decoded)
    return torch.lerp(original, decoded, share.to(decoded.dtype).expand_as(decoded))


def _token_mask(pixels: Bool[Tensor, "h w"], factor: int) -> Bool[Tensor, "h//{factor} w//{factor}"]:
    """Mask each token of which any pixel is masked."""
    return pixels.unfold(0, factor, factor).unfold(1, factor, factor).flatten(2).any(2)


def _read_mask(path: str | Path, image: str | Path, side: int) -> Bool[Tensor, "{side} {side}"]:
    """Crop a mask file as the image is cropped; a pixel is masked where any pixel of the file is bright."""
    stored, original = read_stored_image(path), read_stored_image(image)
    if stored.size != original.size:
        size, expected = (f"{width} x {height} pixels" for width, height in (stored.size, original.size))
        raise LGQError(
            f"the mask {path} has {size}, and the image {image} has {expected}: "
            "paint the mask at the size of the image."
        )
    left, top, width, height, *_ = centre_crop(stored.size)
    bright = np.asarray(stored.rgb().convert("L")) >= _BRIGHT
    square = torch.from_numpy(bright[top : top + height, left : left + width].astype(np.float32))
    mask = F.adaptive_max_pool2d(square[None, None], side)[0, 0] > 0
    if not mask.any():
        raise LGQError(f"{path} has no bright pixel in its centre square: paint white what to redraw.")
    return mask


def _box_mask(box: Box, side: int) -> Bool[Tensor, "{side} {side}"]:
    left, top, right, bottom = box
    if not (0 <= left < right <= side and 0 <= top < bottom <= side):
        raise LGQError(
            f"the box {left} {top} {right} {bottom} (left, top, right, bottom) must have an area, and lie "
            f"within the generator's images of {side} x {side} pixels."
        )
    mask = torch.zeros(side, side, dtype=torch.bool)
    mask[top:bottom, left:right] = True
    return mask
