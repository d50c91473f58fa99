"""Crops for training and evaluation, each a pure function of (seed, epoch, index).   s = output side."""

from dataclasses import dataclass
from io import BytesIO
from math import exp, log, sqrt
from os.path import expanduser
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, UInt8
from PIL import Image
from torch import Tensor

from lgq.data.images import BrokenImage, ImageSource, StoredImage, read_stored_image, to_rgb
from lgq.errors import LGQError
from lgq.random import Stream, random_fractions

_ATTEMPTS = 10
_DRAFT_MARGIN = 2.0  # decoding at twice the size or more leaves the filter enough to work with


class Crop(NamedTuple):
    """A rectangle in pixels of the upright image, and its augmentation."""

    left: int
    top: int
    width: int
    height: int
    flip: bool = False
    """Mirror left and right."""
    exchange: bool = False
    """Exchange red and blue."""


@dataclass(frozen=True, kw_only=True)
class RandomCrop:
    """Settings of the crop of training images: a random rectangle, stretched to a square, or a random square
    at the image's own resolution."""

    smallest_area: float = 0.08
    """Smallest share of the image that a crop covers; the largest is all of it."""
    widest_aspect: float = 4 / 3
    """Largest width over height of a crop; the smallest is its inverse."""
    own_resolution: bool = False
    """Cut squares of `image_size` pixels without resizing, in validations too, instead of shares of the
    image; smaller images are enlarged."""
    flip: float = 0.5
    """Probability of mirroring left and right."""
    exchange: float = 0.0
    """Probability of exchanging red and blue, which helps where few images have few colours."""

    def __post_init__(self) -> None:
        if not 0 < self.smallest_area <= 1:
            raise LGQError(f"`smallest_area` is a share in (0, 1], got {self.smallest_area}.")
        if not 1 <= self.widest_aspect < float("inf"):
            raise LGQError(f"`widest_aspect` is width over height, 1 or more, got {self.widest_aspect}.")
        for name in ("flip", "exchange"):
            if not 0 <= getattr(self, name) <= 1:
                raise LGQError(f"`{name}` is a probability in [0, 1], got {getattr(self, name)}.")


def random_crop(
    size: tuple[int, int], settings: RandomCrop, *, side: int, seed: int, epoch: int, index: int
) -> Crop:
    """Return the crop of image `index`, of (width, height) `size`, in an epoch, for an output of `side`."""
    draws = random_fractions(Stream.CROP, seed, epoch, index)
    flip = next(draws) < settings.flip
    exchange = next(random_fractions(Stream.COLOUR, seed, epoch, index)) < settings.exchange
    if settings.own_resolution:
        side = min(*size, side)
        left, top = (int(next(draws) * (length - side + 1)) for length in size)
        return Crop(left, top, side, side, flip, exchange)
    for _ in range(_ATTEMPTS):
        width, height = _random_shape(size, settings, next(draws), next(draws))
        if width <= size[0] and height <= size[1]:
            left = int(next(draws) * (size[0] - width + 1))
            top = int(next(draws) * (size[1] - height + 1))
            return Crop(left, top, width, height, flip, exchange)
    width = min(size[0], max(1, round(size[1] * settings.widest_aspect)))
    height = min(size[1], max(1, round(size[0] * settings.widest_aspect)))
    return _centred(size, width, height)._replace(flip=flip, exchange=exchange)


def centre_crop(size: tuple[int, int], most: int | None = None) -> Crop:
    """Return the largest centre square of an image of (width, height) `size`; at most of side `most`."""
    side = min(size) if most is None else min(*size, most)
    return _centred(size, side, side)


def render(stored: StoredImage, crop: Crop, side: int) -> Float[Tensor, "3 s s"]:
    """Decode a crop and resize it to a square, with values in [-1, 1]."""
    image = stored.rgb(shrink=min(crop.width, crop.height) / (_DRAFT_MARGIN * side))
    return _resized(image, stored.size, crop, side)


def centre_square(image: ImageSource, side: int) -> Float[Tensor, "3 s s"]:
    """Return the centre square of an image, resized and with values in [-1, 1], as of a data set."""
    if isinstance(image, str | Path):
        stored = read_stored_image(expanduser(image))
        return render(stored, centre_crop(stored.size), side)
    pixels = to_rgb(image)
    return _resized(pixels, pixels.size, centre_crop(pixels.size), side)


def _resized(image: Image.Image, size: tuple[int, int], crop: Crop, side: int) -> Float[Tensor, "3 s s"]:
    """Resize a crop, in pixels of an image of (width, height) `size`, that is perhaps decoded smaller."""
    # Products before quotients: they are exact, so no edge ends up outside the image.
    x0, x1 = (x * image.width / size[0] for x in (crop.left, crop.left + crop.width))
    y0, y1 = (y * image.height / size[1] for y in (crop.top, crop.top + crop.height))
    square = image.resize((side, side), Image.Resampling.BICUBIC, box=(x0, y0, x1, y1))
    result = to_tensor(square.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if crop.flip else square)
    return result.flip(0) if crop.exchange else result


def to_tensor(image: Image.Image) -> Float[Tensor, "3 height width"]:
    """Return the pixels of an RGB image, from [0, 255] to [-1, 1]."""
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)
    return pixels.to(torch.float32, memory_format=torch.contiguous_format).div_(127.5).sub_(1)


def cropped_to_multiple(image: Image.Image, factor: int, name: str) -> Image.Image:
    """Cut up to `factor` - 1 rows and columns off the borders, evenly, so that `factor` divides the sides."""
    width, height = (side - side % factor for side in image.size)
    if not width or not height:
        size = " x ".join(map(str, image.size))
        raise BrokenImage(name, f"{size} pixels hold no token of {factor} x {factor}")
    left, top, *_ = _centred(image.size, width, height)
    return image.crop((left, top, left + width, top + height))


def padded_to_multiple(images: Float[Tensor, "b 3 height width"], factor: int) -> Float[Tensor, "b 3 _ _"]:
    """Repeat the last row and column up to `factor` - 1 times, so that `factor` divides the sides."""
    height, width = images.shape[2:]
    margins = (0, -width % factor, 0, -height % factor)
    return F.pad(images, margins, mode="replicate") if any(margins) else images


def image_grid(images: Float[Tensor, "b 3 s s"], columns: int = 8) -> Float[Tensor, "3 height width"]:
    """Arrange images row by row; places left over are black."""
    columns = min(columns, len(images))
    blanks = images.new_full((-len(images) % columns, *images.shape[1:]), -1.0)
    rows = torch.cat([images, blanks]).split(columns)
    return torch.cat([torch.cat(list(row), dim=2) for row in rows], dim=1)


def to_pixels(image: Float[Tensor, "3 height width"]) -> UInt8[np.ndarray, "height width 3"]:
    """Return the pixels of an image in [-1, 1]; values outside are clamped."""
    # In place after the first: a photograph of a large camera takes hundreds of megabytes in float32.
    pixels = (image.detach().float() + 1).mul_(127.5).round_().clamp_(0, 255).to(torch.uint8)
    return pixels.permute(1, 2, 0).contiguous().cpu().numpy()


def to_picture(*images: Float[Tensor, "3 height _"]) -> Image.Image:
    """Return images in [-1, 1], side by side, as a PIL image; values outside are clamped."""
    return Image.fromarray(np.concatenate([to_pixels(image) for image in images], axis=1))


def to_png(*images: Float[Tensor, "3 height _"]) -> bytes:
    """Return images in [-1, 1], side by side, as a PNG file; values outside are clamped."""
    buffer = BytesIO()
    to_picture(*images).save(buffer, "PNG")
    return buffer.getvalue()


def _random_shape(size: tuple[int, int], settings: RandomCrop, u: float, v: float) -> tuple[int, int]:
    area = size[0] * size[1] * (settings.smallest_area + u * (1 - settings.smallest_area))
    aspect = exp((2 * v - 1) * log(settings.widest_aspect))
    return max(1, round(sqrt(area * aspect))), max(1, round(sqrt(area / aspect)))


def _centred(size: tuple[int, int], width: int, height: int) -> Crop:
    return Crop((size[0] - width) // 2, (size[1] - height) // 2, width, height)
