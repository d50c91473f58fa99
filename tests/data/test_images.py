"""Every kind of image file is decoded correctly, or refused by name; a subset holds the images it says."""

import pickle
import struct
import zlib
from contextlib import suppress
from io import BytesIO
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from lgq.data.images import (
    FORMATS,
    PIXEL_LIMIT,
    BrokenImage,
    EncodedImage,
    StoredImage,
    Subset,
    decode,
    random_subset,
)

WIDTH, HEIGHT = 24, 16


def picture(width=WIDTH, height=HEIGHT):
    """Smooth, so that JPEG keeps it, and different along every symmetry."""
    x, y = np.meshgrid(np.linspace(0, 1, width), np.linspace(0, 1, height))
    return (255 * np.stack([x, y, 0.3 * x + 0.2 * y], -1)).astype(np.uint8)


def encode(image, kind, **options):
    buffer = BytesIO()
    image = image if isinstance(image, Image.Image) else Image.fromarray(image)
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def png(width, height, *, bits=8, colour=2, rows=b""):
    """A PNG written by hand, for those that Pillow does not write."""

    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def difference(a, b):
    return np.abs(a.astype(int) - b.astype(int)).max()


DAMAGED_EXIF = b"Exif\0\0MM\0*\0\0\0\x08\xff\xff damaged"
STORED = [
    ("RGB", "PNG", {}),
    ("RGB", "BMP", {}),
    ("RGB", "TIFF", {}),
    ("RGB", "TIFF", {"compression": "tiff_lzw"}),
    ("RGB", "WEBP", {"lossless": True}),
    ("RGB", "JPEG", {"quality": 98, "progressive": False}),
    ("RGB", "JPEG", {"quality": 98, "progressive": True}),
    ("RGB", "JPEG", {"quality": 98, "exif": DAMAGED_EXIF}),
    ("RGB", "PNG", {"exif": DAMAGED_EXIF}),
    ("CMYK", "JPEG", {"quality": 98}),
    *((mode, kind, {}) for mode in ("L", "1") for kind in ("PNG", "BMP", "GIF", "TIFF")),
    ("L", "JPEG", {"quality": 98}),
]


@pytest.mark.parametrize(("mode", "kind", "options"), STORED)
def test_pixels_are_those_that_were_stored(mode, kind, options):
    image = Image.fromarray(picture()).convert(mode)
    pixels = decode(encode(image, kind, **options), "a")
    assert difference(pixels, np.array(image.convert("RGB"))) < (12 if kind == "JPEG" else 1)


@pytest.mark.parametrize(("kind", "order"), [("PNG", "<u2"), ("TIFF", "<u2"), ("TIFF", ">u2")])
def test_sixteen_bit_grey_is_scaled_not_clipped(kind, order):
    grey = np.arange(256, dtype=np.uint8).reshape(16, 16)
    deep = (grey.astype(np.uint16) * 257).astype(order)
    mode = {"<u2": "I;16", ">u2": "I;16B"}[order]
    image = Image.frombytes(mode, (16, 16), deep.tobytes())
    assert np.array_equal(decode(encode(image, kind), "a")[..., 2], grey)


def test_sixteen_bit_colour_keeps_its_colours_and_values_are_rounded_to_the_nearest():
    deep = picture().astype(">u2") * 257
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in deep)
    assert np.array_equal(decode(png(WIDTH, HEIGHT, bits=16, rows=rows), "a"), picture())
    image = Image.fromarray(np.array([[0, 128, 129, 65535 - 129, 65535 - 128, 65535]], np.uint16))
    assert decode(encode(image, "PNG"), "a")[0, :, 0].tolist() == [0, 0, 1, 254, 255, 255]


@pytest.mark.parametrize(
    ("kind", "channels"), [("PNG", 3), ("WEBP", 3), ("TIFF", 3), ("PNG", 1), ("TIFF", 1)]
)
def test_transparency_shows_white(kind, channels):
    alpha = np.linspace(0, 255, WIDTH).astype(np.uint8)[None, :, None].repeat(HEIGHT, 0)
    opaque = picture()[..., :channels]
    options = {"lossless": True, "exact": True} if kind == "WEBP" else {}
    pixels = decode(encode(np.concatenate([opaque, alpha], -1), kind, **options), "a")
    share = alpha / 255
    assert difference(pixels, np.round(share * opaque + (1 - share) * 255)) <= 1
    assert (pixels[:, 0] == 255).all()


@pytest.mark.parametrize("kind", ["PNG", "GIF"])
def test_palettes_become_colours_and_their_transparent_entry_white(kind):
    image = Image.new("P", (6, 4), 1)
    image.putpalette([0, 0, 0, 200, 10, 20, 30, 40, 250])
    image.paste(2, (0, 0, 3, 4))
    pixels = decode(encode(image, kind, transparency=2), "a")
    assert pixels[0, 0].tolist() == [255, 255, 255]
    assert pixels[0, 5].tolist() == [200, 10, 20]


def stored_for(orientation, upright):
    """The pixel order that EXIF's orientation says a camera has stored."""
    return {
        1: upright,
        2: upright[:, ::-1],
        3: upright[::-1, ::-1],
        4: upright[::-1],
        5: upright.swapaxes(0, 1),
        6: np.rot90(upright),
        7: upright[::-1, ::-1].swapaxes(0, 1),
        8: np.rot90(upright, -1),
    }[orientation]


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_rotated_photographs_stand_upright(kind, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"JPEG": {"quality": 98}, "WEBP": {"lossless": True}}.get(kind, {})
    stored = np.ascontiguousarray(stored_for(orientation, picture()))
    image = StoredImage(encode(stored, kind, exif=exif, **options), "a")
    assert image.size == (WIDTH, HEIGHT)
    assert difference(np.array(image.rgb()), picture()) < (12 if kind == "JPEG" else 1)


@pytest.mark.parametrize("kind", ["GIF", "PNG", "WEBP", "TIFF"])
def test_animations_show_their_first_frame(kind):
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "lime", "blue")]
    options = {"WEBP": {"lossless": True}}.get(kind, {})
    data = encode(frames[0], kind, save_all=True, append_images=frames[1:], **options)
    assert (decode(data, "a") == [255, 0, 0]).all()


@pytest.mark.parametrize("orientation", [1, 6])
@pytest.mark.parametrize("shrink", [1.0, 1.9, 2.0, 5.0, 100.0])
def test_draft_decoding_is_smaller_but_never_too_small(shrink, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored = np.ascontiguousarray(stored_for(orientation, picture(250, 130)))
    image = StoredImage(encode(stored, "JPEG", exif=exif), "a")
    pixels = image.rgb(shrink=shrink)
    assert image.size == (250, 130)
    assert pixels.width >= 250 / shrink
    assert pixels.height >= 130 / shrink
    assert (pixels.width < 250) == (shrink >= 2)
    reference = Image.fromarray(picture(250, 130)).resize(pixels.size, Image.Resampling.BOX)
    assert difference(np.array(pixels), np.array(reference)) < 16


def forged_bmp(width, height):
    data = encode(picture(), "BMP")
    return data[:18] + struct.pack("<ii", width, height) + data[26:]


BROKEN = {
    "empty": b"",
    "one byte": b"\xff",
    "text": b"these are not the pixels you are looking for",
    "markup": b"<html><body>404 Not Found</body></html>",
    "JPEG header alone": encode(picture(), "JPEG")[:20],
    "truncated JPEG": encode(picture(200, 200), "JPEG")[:1500],
    "truncated PNG": encode(picture(200, 200), "PNG")[:-200],
    "truncated WebP": encode(picture(200, 200), "WEBP")[:-50],
    "truncated GIF": encode(picture(200, 200), "GIF")[:-2000],
    "truncated BMP": encode(picture(200, 200), "BMP")[:-2000],
    "truncated TIFF": encode(picture(200, 200), "TIFF", compression="tiff_lzw")[:-200],
    "PNG without width": png(0, 4),
    "BMP without width": forged_bmp(0, 4),
    "PNG without data": png(8, 8),
    "damaged PNG": encode(picture(), "PNG").replace(b"IDAT", b"IDAT\x00\x01", 1),
    "floating point": encode(Image.fromarray(np.ones((4, 4), np.float32)), "TIFF"),
    "32-bit integers": encode(Image.fromarray(np.full((4, 4), 2**20, np.int32)), "TIFF"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_files_are_refused_by_name_also_between_processes(case):
    with pytest.raises(BrokenImage) as caught:
        decode(BROKEN[case], "cats/tom.jpg")
    for error in (caught.value, pickle.loads(pickle.dumps(caught.value))):
        assert error.name == "cats/tom.jpg"
        assert error.reason
        assert str(error) == f"cats/tom.jpg: {error.reason}"
        assert "\n" not in str(error)


@pytest.mark.parametrize("kind", ["EPS", "PPM", "ICO", "TGA"])
def test_formats_outside_of_the_list_are_refused_though_pillow_knows_them(kind):
    with pytest.raises(BrokenImage, match="known are JPEG, PNG"):
        decode(encode(picture(), kind), "a")


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("side", [8200, 10_000, 60_000])
def test_a_decompression_bomb_is_refused_before_it_is_decoded(side, monkeypatch):
    assert side**2 > PIXEL_LIMIT
    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", lambda _: pytest.fail("decoded a bomb"))
    with pytest.raises(BrokenImage, match="pixels"):
        StoredImage(png(side, side, bits=1, colour=0), "bomb.png").rgb()


SEEDS = [encode(picture(), kind) for kind in FORMATS]


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(SEEDS), st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=12))
def test_whatever_bytes_come_there_are_pixels_or_a_broken_image(data, changes):
    mutant = bytearray(data)
    for place, value in changes:
        mutant[place % len(mutant)] = value
    with suppress(BrokenImage):
        pixels = decode(bytes(mutant), "mutant")
        assert pixels.dtype == np.uint8
        assert pixels.shape[2] == 3


class Letters(list):
    """A data set of letters, `count` of them."""

    classes = ("vowel", "other")

    def __init__(self, count=26):
        super().__init__(EncodedImage(bytes([97 + i]), i % 2, f"{i}.png") for i in range(count))

    def __repr__(self):
        return "letters"


def test_a_subset_has_the_images_at_its_indices_and_says_what_it_is():
    subset = Subset(Letters(), [3, 0, 3])
    assert list(subset) == [Letters()[3], Letters()[0], Letters()[3]]
    assert len(subset) == 3
    assert subset.classes == ("vowel", "other")
    assert repr(subset) == "3 images of letters"
    assert repr(Subset(Letters(), range(3, 7))) == "letters, images 3 to 6"
    assert repr(Subset(Letters(), range(0))) == "0 images of letters"


def test_a_random_subset_is_the_same_for_everyone_and_in_every_release():
    assert list(random_subset(Letters(), 5).indices) == [4, 16, 20, 21, 24]
    sizes = [set(random_subset(Letters(), size).indices) for size in (1, 5, 12, 25)]
    assert all(small < large for small, large in pairwise(sizes))
    assert list(random_subset(Letters(4), 9).indices) == [0, 1, 2, 3]
    assert len(random_subset(Letters(0), 9)) == 0
