"""The photographs inside scikit-image's wheel, as a data set that needs no download.

Nine photographs are few, so an item is a square tile of one: the largest square that fits, and squares of
half and of a quarter of its side, each overlapping its neighbours by half. A photograph is on one side of
the split with all of its tiles, and so are the two views of the motorcycle. `whole` has one item per
subject: the centre square.
"""

from functools import cache
from importlib.util import find_spec
from io import BytesIO
from math import ceil
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from lgq.data.images import DataError, EncodedImage, StoredImage
from lgq.data.transforms import centre_crop

PHOTOGRAPHS: dict[str, tuple[str, ...]] = {
    "train": (
        "astronaut.png",
        "coffee.png",
        "motorcycle_left.png",
        "motorcycle_right.png",
        "retina.jpg",
        "hubble_deep_field.jpg",
        "ihc.png",
    ),
    "held-out": ("chelsea.png", "rocket.jpg"),
}
TILE_SIDE = 128
"""Largest side of a tile; larger ones are reduced: four times the demo's images, twice the pocket scale's."""
_SCALES = (1, 2, 4)


class Tile(NamedTuple):
    """A square of a photograph, in pixels."""

    photograph: str
    left: int
    top: int
    side: int

    @property
    def subject(self) -> str:
        """Subject of the photograph; the motorcycle is on two."""
        return Path(self.photograph).stem.removesuffix("_left").removesuffix("_right").replace("_", " ")

    @property
    def name(self) -> str:
        """Name such as `coffee/side100-x150-y050.png`."""
        return f"{Path(self.photograph).stem}/side{self.side:03d}-x{self.left:03d}-y{self.top:03d}.png"


class SampleDataset:
    """Tiles of the embedded photographs of a split; the subject of the photograph is the class."""

    def __init__(self, split: str = "train"):
        if split not in (*PHOTOGRAPHS, "whole"):
            raise DataError(
                f"there is no sample:{split}: choose sample:train, sample:held-out or sample:whole."
            )
        self.split = split
        self.tiles = (
            _subjects() if split == "whole" else tuple(t for p in PHOTOGRAPHS[split] for t in _tiles(p))
        )
        self.classes = tuple(dict.fromkeys(tile.subject for tile in self.tiles))

    def __repr__(self) -> str:
        return f"SampleDataset({self.split!r})"

    def __str__(self) -> str:
        return f"sample:{self.split}"

    def __len__(self) -> int:
        return len(self.tiles)

    def __getitem__(self, index: int) -> EncodedImage:
        tile = self.tiles[index]
        return EncodedImage(_encode(tile), self.classes.index(tile.subject), tile.name)


def _subjects() -> tuple[Tile, ...]:
    """Return the centre square of one photograph per subject."""
    crops = {name: centre_crop(_stored(name).size) for split in PHOTOGRAPHS.values() for name in split}
    squares = [Tile(name, crop.left, crop.top, crop.width) for name, crop in crops.items()]
    return tuple({square.subject: square for square in squares}.values())


def _tiles(photograph: str) -> list[Tile]:
    width, height = _stored(photograph).size
    return [
        Tile(photograph, left, top, side)
        for side in (min(width, height) // scale for scale in _SCALES)
        for top in _starts(height, side)
        for left in _starts(width, side)
    ]


def _starts(length: int, side: int) -> list[int]:
    """Return where tiles begin along an edge: evenly from end to end, at most half a side apart."""
    count = 1 + ceil((length - side) / (side // 2))
    return np.linspace(0, length - side, count).round().astype(int).tolist()


@cache  # a few hundred tiles, 20 MB in all, and training asks for each of them many times
def _encode(tile: Tile) -> bytes:
    box = (tile.left, tile.top, tile.left + tile.side, tile.top + tile.side)
    side = min(tile.side, TILE_SIDE)
    image = photograph_pixels(tile.photograph).resize((side, side), Image.Resampling.BICUBIC, box=box)
    buffer = BytesIO()
    image.save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


@cache
def photograph_pixels(photograph: str) -> Image.Image:
    """Return a whole photograph, such as `chelsea.png`."""
    return _stored(photograph).rgb()


def _stored(photograph: str) -> StoredImage:
    # The file itself: `skimage.data` tries to download a photograph that it does not find.
    package = find_spec("skimage")
    if package is None or package.origin is None:
        raise DataError("the sample photographs are part of scikit-image: pip install scikit-image")
    return StoredImage((Path(package.origin).parent / "data" / photograph).read_bytes(), photograph)
