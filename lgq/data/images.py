"""One stored image: what a data set holds, and how its bytes become upright RGB pixels.

Transparent images are composited over white. Colour profiles are not applied, and CMYK is converted
by the plain formula. Of an animation or a multi-page file, the first frame counts.
"""

import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from math import ceil
from pathlib import Path
from typing import NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np
from jaxtyping import UInt8
from PIL import Image, UnidentifiedImageError
from PIL.Image import Transpose

from lgq.checks import require_at_least
from lgq.errors import LGQError
from lgq.random import Stream, random_order

# A closed list: among Pillow's other formats are some that start external programs (EPS).
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")
SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff")
PIXEL_LIMIT = 2**26
"""Largest number of pixels of an image: 8192 x 8192, which is 200 MB once decoded."""
FILE_LIMIT = 2**28
"""Largest size of an image file in bytes."""
UNLABELLED = -1
"""Label, in arrays, of an image that has none."""

ImageSource: TypeAlias = str | Path | bytes | Image.Image | np.ndarray
"""A file, its bytes, a PIL image, or an array of uint8, uint16 or floats in [0, 1], channels last."""

_UNNAMED = "the image"
_FLOAT_TOLERANCE = 1e-3  # of resizing and of colour spaces
_ORIENTATION = 0x0112
_UPRIGHT = {
    2: Transpose.FLIP_LEFT_RIGHT,
    3: Transpose.ROTATE_180,
    4: Transpose.FLIP_TOP_BOTTOM,
    5: Transpose.TRANSPOSE,
    6: Transpose.ROTATE_270,
    7: Transpose.TRANSVERSE,
    8: Transpose.ROTATE_90,
}
_SWAPS_SIDES = (5, 6, 7, 8)


class DataError(LGQError):
    """Data that cannot be read or written."""


class BrokenImage(DataError):  # noqa: N818 - it is also a thing to count, not only to raise
    """An image that cannot be read, with its name and the reason."""

    def __init__(self, name: str, reason: str):
        super().__init__(name, reason)
        self.name, self.reason = name, reason

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"


class EncodedImage(NamedTuple):
    """An item of a data set."""

    data: bytes
    """The image file, as stored."""
    label: int | None
    name: str
    """Path of the image within its data set: relative, with forward slashes, never `..`."""


@runtime_checkable
class ImageDataset(Protocol):
    """Random access to encoded images; picklable, since workers get a copy.

    Records have its `repr`, and messages its `str`: the path or name by which the user gave it.
    """

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> EncodedImage: ...


class Subset:
    """The images of a data set at `indices`, in that order; labels and names stay.

    role: what records say that these images are for, besides their number.
    """

    def __init__(self, dataset: ImageDataset, indices: Sequence[int], *, role: str = ""):
        self.dataset, self.indices, self.role = dataset, indices, role
        self.classes: tuple[str, ...] = tuple(getattr(dataset, "classes", ()))

    def __repr__(self) -> str:
        return self._of(repr(self.dataset))

    def __str__(self) -> str:
        return self._of(str(self.dataset))

    def _of(self, dataset: str) -> str:
        if isinstance(self.indices, range) and self.indices:
            return f"{dataset}, images {self.indices[0]:,} to {self.indices[-1]:,}"
        role = f" ({self.role})" if self.role else ""
        return f"{len(self):,} images{role} of {dataset}"

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> EncodedImage:
        return self.dataset[self.indices[index]]


def random_subset(dataset: ImageDataset, images: int, *, seed: int = 0) -> Subset:
    """Choose images at random: the same for the same data set, number and seed; all if there are no more."""
    require_at_least(1, images=images)
    chosen = random_order(len(dataset), Stream.SUBSET, seed)[:images]
    return Subset(dataset, sorted(chosen.tolist()))


class StoredImage:
    """An image whose header is read; pixels are decoded when asked for, as small as their use allows."""

    def __init__(self, data: bytes, name: str):
        self.name = name
        self._image = _open(data, name)
        self.format = self._image.format
        """Format by content, as Pillow calls it: JPEG, PNG, ..."""
        self._orientation = _orientation(self._image)
        width, height = self._image.size
        self.size = (height, width) if self._orientation in _SWAPS_SIDES else (width, height)
        """Width and height of the upright image."""

    def rgb(self, *, shrink: float = 1.0) -> Image.Image:
        """Return upright pixels. A JPEG may be decoded smaller, to `1 / shrink` of its sides at least."""
        with _named_errors(self.name):
            least = tuple(ceil(side / max(shrink, 1.0)) for side in self._image.size)
            self._image.draft(None, (least[0], least[1]))
            image = _to_rgb(self._image)
            turn = _UPRIGHT.get(self._orientation)
            return image if turn is None else image.transpose(turn)


def read_stored_image(path: str | Path) -> StoredImage:
    """Open an image file; `BrokenImage` names the path where that fails."""
    try:
        require_readable_size(os.path.getsize(path), str(path))
        return StoredImage(Path(path).read_bytes(), str(path))
    except OSError as error:
        raise BrokenImage(str(path), error.strerror or str(error)) from error


def to_rgb(image: ImageSource) -> Image.Image:
    """Return the upright RGB pixels of an image in any of the forms in which users have one."""
    match image:
        case str() | Path():
            return read_stored_image(os.path.expanduser(image)).rgb()
        case bytes():
            return StoredImage(image, _UNNAMED).rgb()
        case np.ndarray():
            image = _from_array(image)
        case Image.Image():
            pass
        case _:
            raise DataError(
                f"an image is a file, its bytes, a PIL image or an array, got {type(image).__name__}: "
                "a tensor in [-1, 1] goes to `encode`."
            )
    with _named_errors(_UNNAMED):
        _require_pixels(image.size, _UNNAMED)
        turn = _UPRIGHT.get(_orientation(image))
        pixels = _to_rgb(image)
        return pixels if turn is None else pixels.transpose(turn)


def decode(data: bytes, name: str) -> UInt8[np.ndarray, "height width 3"]:
    """Return all pixels of an encoded image, upright, in RGB; `BrokenImage` where that fails."""
    return np.array(StoredImage(data, name).rgb())


def require_readable_size(size: int, name: str) -> None:
    """Check the size of a file before it fills the memory: what claims to be an image may be of any size."""
    if size > FILE_LIMIT:
        raise BrokenImage(name, f"{size:,} bytes is more than the {FILE_LIMIT:,} of an image file")


def _open(data: bytes, name: str) -> Image.Image:
    if not data:
        raise BrokenImage(name, "the file is empty")
    with _named_errors(name):
        image = Image.open(BytesIO(data), formats=FORMATS)
        _require_pixels(image.size, name)
        # The orientation of a PNG may follow its pixels, so that asking for it decodes them; and Pillow
        # reports damaged pixels only the first time, which must be here, where errors are caught.
        if image.format == "PNG":
            image.load()
    return image


def _require_pixels(size: tuple[int, int], name: str) -> None:
    width, height = size
    if not 0 < width * height <= PIXEL_LIMIT:
        raise BrokenImage(name, f"{width} x {height} pixels is not between 1 and {PIXEL_LIMIT:,}")


def _from_array(pixels: np.ndarray) -> Image.Image:
    """Return an array of pixels as an image: height x width, alone or with 1, 3 or 4 channels last."""
    shape, channels = pixels.shape, pixels.shape[2] if pixels.ndim == 3 else 1
    if pixels.ndim not in (2, 3) or channels not in (1, 3, 4):
        first = pixels.ndim == 3 and shape[0] in (1, 3, 4)
        way_out = "move the channels last, with pixels.transpose(1, 2, 0)" if first else "give one image"
        raise DataError(f"an array must have shape (h, w), (h, w, 3) or (h, w, 4), got {shape}: {way_out}.")
    if np.issubdtype(pixels.dtype, np.floating) and pixels.size:
        low, high = float(pixels.min()), float(pixels.max())
        if not (low >= -_FLOAT_TOLERANCE and high <= 1 + _FLOAT_TOLERANCE):
            raise DataError(
                f"an array of floats holds values in [0, 1], got {low:g} to {high:g}: divide by its white, "
                "or give a tensor in [-1, 1] to `encode`."
            )
        pixels = (pixels.clip(0, 1) * 255).round().astype(np.uint8)
    elif pixels.dtype == np.uint16:
        pixels = ((pixels.astype(np.int64) + 128) // 257).astype(np.uint8)
    elif pixels.dtype != np.uint8:
        rule = "uint8, uint16, or floats in [0, 1]"
        raise DataError(f"an array of pixels must be {rule}, got {pixels.dtype}: convert it.")
    return Image.fromarray(pixels[..., 0] if pixels.ndim == 3 and channels == 1 else pixels)


@contextmanager
def _named_errors(name: str) -> Iterator[None]:
    # Hostile bytes make Pillow raise anything: OSError, SyntaxError, struct.error, KeyError, ... It also
    # warns of damaged camera metadata, and of sizes, for which we have our own limit.
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    except BrokenImage:
        raise
    except UnidentifiedImageError as error:
        raise BrokenImage(name, f"not a readable image; known are {', '.join(FORMATS)}") from error
    except Exception as error:
        raise BrokenImage(name, str(error) or type(error).__name__) from error


def _orientation(image: Image.Image) -> int:
    if image.format == "TIFF":  # Pillow turns these itself, and reports the upright size
        return 1
    try:
        with warnings.catch_warnings(action="ignore"):
            return int(image.getexif().get(_ORIENTATION, 1))
    except Exception:  # damaged camera metadata leaves the pixels as good as they were
        return 1


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):
        # Pillow's own conversion clips at 255 where 65,535 is white.
        values = np.asarray(image).astype(np.int64)
        if values.min() < 0 or values.max() > 0xFFFF:
            raise LGQError(f"integer pixels from {values.min()} to {values.max()} are not 16-bit ones")
        return Image.fromarray(((values + 128) // 257).astype(np.uint8)).convert("RGB")
    if image.mode == "F":
        raise LGQError("floating-point pixels have no agreed range; store 8 or 16 bits per channel")
    if image.has_transparency_data:
        colours = image.convert("RGBA")
        white = Image.new("RGBA", colours.size, "white")
        return Image.alpha_composite(white, colours).convert("RGB")
    return image.convert("RGB")
