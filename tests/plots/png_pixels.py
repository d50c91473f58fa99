"""Pixels of pictures, for tests that look for them."""

from io import BytesIO

import numpy as np
import torch
from PIL import Image, ImageColor
from torch import Tensor


def noise(*shape: int) -> Tensor:
    return torch.rand(*shape) * 2 - 1


def levels(image: Tensor, scale: int = 1) -> np.ndarray:
    """The plain formula: [-1, 1] to 0..255, each pixel repeated."""
    plain = np.rint((image.double().numpy().clip(-1, 1) + 1) / 2 * 255).astype(np.uint8)
    return plain.repeat(scale, 1).repeat(scale, 2).transpose(1, 2, 0)


def opened(png: bytes) -> np.ndarray:
    image = Image.open(BytesIO(png))
    assert image.format == "PNG"
    return np.asarray(image.convert("RGB"))


def count(colour: str, picture: np.ndarray) -> int:
    """Number of pixels of exactly this colour."""
    return int((picture == ImageColor.getrgb(colour)).all(2).sum())


def place(part: np.ndarray, whole: np.ndarray) -> tuple[int, int]:
    """Row and column of the only place where `part` is in `whole`, pixel for pixel."""
    corners = zip(*np.nonzero((whole == part[0, 0]).all(2)), strict=True)
    height, width = part.shape[:2]
    matches = [(y, x) for y, x in corners if np.array_equal(whole[y : y + height, x : x + width], part)]
    assert len(matches) == 1
    return int(matches[0][0]), int(matches[0][1])
