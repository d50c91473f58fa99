"""The pictures of the page.

They come from the data set of the command line, or from the browser as bytes: a browser names a picture by
its number, never by a path.
"""

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import numpy as np
from PIL import Image

from lgq.data import ImageDataset
from lgq.data.images import BrokenImage, StoredImage
from lgq.data.loader import evenly_spread
from lgq.data.photographs import PHOTOGRAPHS, photograph_pixels
from lgq.data.transforms import cropped_to_multiple
from lgq.viewer import NoSuchThing

SIZES = (128, 256, 384, 512, 768)
"""Longest side of a picture in pixels, by choice of the user."""
_MOST_UPLOADS, _MOST_PICTURES, _THUMBNAIL = 16, 24, 96
_FIRST = "chelsea.png"
_CHECK_SHRINK = 8.0  # a JPEG decoded at an eighth of its sides is read to its last byte, in less time

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Picture:
    """A picture to look at; its pixels are read when they are asked for."""

    name: str
    read: Callable[[], Image.Image]


class Album:
    """Pictures by their numbers; those of a data set stay, and of uploads the last ones.

    data: images to begin with; None for the embedded photographs.
    multiple: number of pixels that divides the sides of every picture, once it has its size.
    """

    def __init__(self, data: ImageDataset | None, *, multiple: int):
        self.pictures: OrderedDict[int, Picture] = OrderedDict(enumerate(_pictures_of(data)))
        self._multiple, self._next, self._lock = multiple, len(self.pictures), threading.Lock()
        self._uploads: list[int] = []

    def add(self, data: bytes, name: str) -> int:
        """Take a picture from the browser and return its number; the oldest upload makes room."""
        pixels = _reduced(StoredImage(data, name))
        with self._lock:
            number, self._next = self._next, self._next + 1
            self.pictures[number] = Picture(name, lambda: pixels)
            self._uploads.append(number)
            if len(self._uploads) > _MOST_UPLOADS:
                del self.pictures[self._uploads.pop(0)]
        return number

    def __getitem__(self, number: int) -> Picture:
        picture = self.pictures.get(number)
        if picture is None:
            raise NoSuchThing(f"there is no picture {number} any more: open it again.")
        return picture

    def thumbnail(self, number: int) -> Image.Image:
        """Return a small copy of a picture."""
        image = self[number].read().copy()
        image.thumbnail((_THUMBNAIL, _THUMBNAIL), Image.Resampling.LANCZOS)
        return image

    def fitted(self, picture: Picture, size: int) -> Image.Image:
        """Return a picture reduced to `size` pixels along its longest side."""
        return _fit(picture.read(), size, self._multiple, picture.name)


def _fit(image: Image.Image, size: int, multiple: int, name: str) -> Image.Image:
    """Reduce a picture to `size` pixels along its longest side; a smaller one keeps its size.

    Of a picture with less than a token along a side, the last row or column is repeated.
    """
    scale = min(1.0, size / max(image.size))
    width, height = (max(1, round(side * scale)) for side in image.size)
    resized = image if scale == 1 else image.resize((width, height), Image.Resampling.LANCZOS)
    missing = [max(0, multiple - side) for side in resized.size]
    if any(missing):
        margins = ((0, missing[1]), (0, missing[0]), (0, 0))
        resized = Image.fromarray(np.pad(np.asarray(resized), margins, mode="edge"))
    return cropped_to_multiple(resized, multiple, name)


def _pictures_of(data: ImageDataset | None) -> list[Picture]:
    if data is None:
        names = [name for part in ("held-out", "train") for name in PHOTOGRAPHS[part]]
        names = [name for name in names if not name.endswith("_right.png")]
        names.sort(key=lambda name: name != _FIRST)
        return [Picture(_subject(name), partial(photograph_pixels, name)) for name in names]

    pictures = []
    for index in evenly_spread(len(data), min(len(data), _MOST_PICTURES)):
        try:
            item = data[index]
            # The pixels too, as a truncated file has a header; of a copy, as a JPEG shrinks only once.
            StoredImage(item.data, item.name).rgb(shrink=_CHECK_SHRINK)
        except BrokenImage as error:
            _log.warning("broken image is left out: %s", error)
        else:
            stored = StoredImage(item.data, item.name)
            pictures.append(Picture(item.name, cache(partial(_reduced, stored))))
    return pictures


def _reduced(stored: StoredImage) -> Image.Image:
    """Return the pixels of an image, at most twice as large as the largest choice."""
    pixels = stored.rgb(shrink=max(stored.size) / (2 * SIZES[-1]))
    pixels.thumbnail((2 * SIZES[-1], 2 * SIZES[-1]), Image.Resampling.LANCZOS)
    return pixels


def _subject(photograph: str) -> str:
    return Path(photograph).stem.removesuffix("_left").replace("_", " ")
