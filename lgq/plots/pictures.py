"""Pictures of images, as PNG: reconstructions, token maps, codebooks, samples, inpainting.

b = images, h w = height and width (of an image in pixels, of tokens in tokens), s = side of a square image,
k = codes, m = patches per code, p = side of a patch in pixels, c = results. Images are RGB in [-1, 1].
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Integer, UInt8
from PIL import Image, ImageDraw
from torch import Tensor

from lgq.checks import require_at_least
from lgq.plots.canvas import (
    ALARM,
    FAINT,
    GAP,
    INK,
    LINE,
    MARGIN,
    PAPER,
    SMALL_TEXT,
    blank_sheet,
    pixels,
    sheet_png,
    text_width,
    write,
)

_LUMA = (0.299, 0.587, 0.114)
_ATLAS_COLUMNS, _PATCH_SIDE, _SPACE, _LABEL_WIDTH = 2, 48, 3, 150
_SAMPLE_SIDE = 128
"""Side in pixels to which small images are enlarged at most; larger ones keep their size."""


class Panel(NamedTuple):
    """An image with its caption."""

    caption: str
    image: Float[Tensor, "3 h w"]
    scale: int = 1
    """Factor of enlargement."""


def side_by_side(panels: Sequence[Panel]) -> bytes:
    """Draw images in a row, each below its caption."""
    require_at_least(1, panels=len(panels))
    pictures = [pixels(panel.image, panel.scale) for panel in panels]
    width = sum(picture.width for picture in pictures) + MARGIN * (len(pictures) - 1)
    sheet = blank_sheet(width, max(picture.height for picture in pictures))
    left = MARGIN
    for panel, picture in zip(panels, pictures, strict=True):
        write(sheet, (left, MARGIN), panel.caption)
        sheet.paste(picture, (left, MARGIN + LINE))
        left += picture.width + MARGIN
    return sheet_png(sheet)


def reconstruction_grid(
    images: Float[Tensor, "b 3 h w"],
    reconstructions: Float[Tensor, "b 3 h w"],
    *,
    caption: str,
    remarks: Sequence[str] = (),
    columns: int = 8,
    scale: int = 4,
) -> bytes:
    """Draw each image above its reconstruction, `columns` pairs per row.

    remarks: text below each pair, such as its PSNR.
    """
    require_at_least(1, images=len(images), columns=columns, scale=scale)
    height, width = (scale * side for side in images.shape[2:])
    across, bands = min(columns, len(images)), -(-len(images) // columns)
    band = 2 * height + GAP // 2 + LINE
    sheet = blank_sheet(across * (width + GAP) - GAP, bands * band, caption)
    pairs = zip(images, reconstructions, remarks or [""] * len(images), strict=True)
    for i, (image, reconstruction, remark) in enumerate(pairs):
        left = MARGIN + i % columns * (width + GAP)
        top = MARGIN + LINE + i // columns * band
        sheet.paste(pixels(image, scale), (left, top))
        sheet.paste(pixels(reconstruction, scale), (left, top + height + GAP // 2))
        middle = (left + width // 2, top + 2 * height + GAP)
        write(sheet, middle, remark, colour=FAINT, size=SMALL_TEXT, anchor="ma")
    return sheet_png(sheet)


def progression(
    rows: Mapping[str, Float[Tensor, "b 3 h w"]], *, caption: str, scale: int | None = None
) -> bytes:
    """Draw rows of the same images, each beside its name: the images, and coarse to fine reconstructions.

    scale: factor of enlargement; None enlarges small images.
    """
    require_at_least(1, rows=len(rows))
    images = next(iter(rows.values()))
    scale = scale or _scale(images)
    require_at_least(1, images=len(images), scale=scale)
    height, width = (scale * side for side in images.shape[2:])
    label = max(map(text_width, rows)) + MARGIN
    across = max(label + len(images) * (width + GAP) - GAP, text_width(caption))
    sheet = blank_sheet(across, len(rows) * (height + GAP) - GAP, caption)
    for row, (name, pictures) in enumerate(rows.items()):
        top = MARGIN + LINE + row * (height + GAP)
        write(sheet, (MARGIN, top + height // 2), name, anchor="lm")
        for column, picture in enumerate(pictures):
            sheet.paste(pixels(picture, scale), (MARGIN + label + column * (width + GAP), top))
    return sheet_png(sheet)


def token_mosaic(
    tokens: Integer[Tensor, "h w"], colours: Float[Tensor, "k 3"], *, cell: int = 32
) -> Float[Tensor, "3 h*{cell} w*{cell}"]:
    """Return a map of tokens: a field per token, in the colour of its code, with the index written in it."""
    require_at_least(1, cell=cell)
    fields = colours.cpu()[tokens.cpu().long()].permute(2, 0, 1)
    mosaic, brightness = pixels(fields, cell), torch.tensordot(torch.tensor(_LUMA), fields.float(), 1)
    for row, indices in enumerate(tokens.tolist()):
        for column, index in enumerate(indices):
            colour = INK if brightness[row, column] > 0 else PAPER
            middle = (column * cell + cell // 2, row * cell + cell // 2)
            write(mosaic, middle, str(index), colour=colour, size=max(8, cell * 3 // 8), anchor="mm")
    levels = torch.from_numpy(np.array(mosaic)).permute(2, 0, 1)
    return levels.float().contiguous().div_(127.5).sub_(1)


def codebook_grid(
    patches: Float[Tensor, "k 3 p p"],
    counts: Int[Tensor, " k"],
    *,
    caption: str,
    columns: int = 32,
    scale: int = 8,
) -> bytes:
    """Draw the patch of every code, from dark to bright; unused codes come last, crossed out."""
    require_at_least(1, codes=len(patches), columns=columns, scale=scale)
    side, gap = scale * patches.shape[-1], 2
    means = patches.detach().float().cpu().mean((2, 3))
    brightness, warmth = (means @ means.new_tensor(_LUMA)).tolist(), (means[:, 0] - means[:, 2]).tolist()
    used = sorted((counts > 0).nonzero().flatten().tolist(), key=brightness.__getitem__)
    # Within each row from blue to red.
    lines = [sorted(used[i : i + columns], key=warmth.__getitem__) for i in range(0, len(used), columns)]
    order = [code for line in lines for code in line] + (counts == 0).nonzero().flatten().tolist()
    rows = -(-len(order) // columns)
    sheet = blank_sheet(min(columns, len(order)) * (side + gap) - gap, rows * (side + gap) - gap, caption)
    for place, code in enumerate(order):
        left = MARGIN + place % columns * (side + gap)
        top = MARGIN + LINE + place // columns * (side + gap)
        sheet.paste(pixels(patches[code], scale), (left, top))
        if counts[code] == 0:
            pen, right, bottom = ImageDraw.Draw(sheet), left + side - 1, top + side - 1
            pen.rectangle((left, top, right, bottom), outline=ALARM, width=2)
            pen.line((left, top, right, bottom), fill=ALARM, width=2)
            pen.line((left, bottom, right, top), fill=ALARM, width=2)
    return sheet_png(sheet)


def atlas_sheet(
    patches: Mapping[int, UInt8[Tensor, "m 3 p p"]], counts: Int[Tensor, " k"], *, caption: str
) -> bytes:
    """Draw codes with their counts and some image patches that they encode.

    patches: patches of each code to draw, in the order of drawing.
    counts: number of tokens of every code.
    """
    require_at_least(1, codes=len(patches))
    patch = next(iter(patches.values())).shape[-1]
    scale = -(-_PATCH_SIDE // patch)
    step, rows = scale * patch + _SPACE, -(-len(patches) // _ATLAS_COLUMNS)
    column_width = _LABEL_WIDTH + max(map(len, patches.values())) * step
    width = _ATLAS_COLUMNS * (column_width + MARGIN) - MARGIN
    title = f"{caption}: image patches of the {len(patches)} most frequent codes"
    sheet, tokens = blank_sheet(width, rows * step, title), int(counts.sum())
    for i, (code, shown) in enumerate(patches.items()):
        left = MARGIN + i // rows * (column_width + MARGIN)
        top = MARGIN + LINE + i % rows * step
        count = int(counts[code])
        write(sheet, (left, top + 4), f"code {code:,}", size=SMALL_TEXT)
        below = (left, top + SMALL_TEXT + 9)
        write(sheet, below, f"{count:,} tokens, {count / tokens:.2%}", size=SMALL_TEXT, colour=FAINT)
        for j, levels in enumerate(shown):
            picture = Image.fromarray(levels.permute(1, 2, 0).contiguous().numpy())
            enlarged = picture.resize((scale * patch, scale * patch), Image.Resampling.NEAREST)
            sheet.paste(enlarged, (left + _LABEL_WIDTH + j * step, top))
    return sheet_png(sheet)


def mean_patches(
    images: Float[Tensor, "b 3 h w"], tokens: Integer[Tensor, "b rows columns"], codebook_size: int
) -> Float[Tensor, "k 3 p p"]:
    """Return the mean image patch of each code; grey for an unused code."""
    side = images.shape[2] // tokens.shape[1]
    patches = images.unfold(2, side, side).unfold(3, side, side).permute(0, 2, 3, 1, 4, 5).flatten(0, 2)
    codes = tokens.flatten().long()
    sums = patches.new_zeros(codebook_size, *patches.shape[1:]).index_add_(0, codes, patches)
    return sums / torch.bincount(codes, minlength=codebook_size).clamp_min(1)[:, None, None, None]


def sample_grid(
    images: Float[Tensor, "b 3 s s"],
    classes: Sequence[int],
    names: Sequence[str],
    *,
    caption: str,
    columns: int = 8,
    scale: int | None = None,
) -> bytes:
    """Draw samples class by class: the name of the class, and its images below.

    classes: class of each image; classes are drawn in the order of their first image.
    names: names of all classes.
    scale: factor of enlargement; None enlarges small images.
    """
    scale = scale or _scale(images)
    require_at_least(1, images=len(images), columns=columns, scale=scale)
    bands = {number: [i for i, label in enumerate(classes) if label == number] for number in classes}
    side, rows = scale * images.shape[-1], [-(-len(band) // columns) for band in bands.values()]
    width = min(columns, max(map(len, bands.values()))) * (side + GAP) - GAP
    height = len(bands) * (LINE + MARGIN) + sum(rows) * (side + GAP) - GAP
    width = max(width, text_width(caption))
    sheet, top = blank_sheet(width, height, caption), MARGIN + LINE
    for (number, band), lines in zip(bands.items(), rows, strict=True):
        top += MARGIN
        # In shards, classes have only numbers.
        name = f"class {names[number]}" if names[number].isdecimal() else names[number]
        write(sheet, (MARGIN, top), shortened(name, width))
        top += LINE
        for place, i in enumerate(band):
            row, column = divmod(place, columns)
            sheet.paste(pixels(images[i], scale), (MARGIN + column * (side + GAP), top + row * (side + GAP)))
        top += lines * (side + GAP)
    return sheet_png(sheet)


def inpainting_strip(
    original: Float[Tensor, "3 s s"],
    mask: Bool[Tensor, "s s"],
    results: Float[Tensor, "c 3 s s"],
    *,
    name: str,
) -> bytes:
    """Draw the image, the image with the redrawn part in grey, and each result.

    mask: True where the image was redrawn.
    name: class that it was redrawn as.
    """
    scale = _scale(results)
    hidden = original.masked_fill(mask, 0.0)
    captions = [f"{number}. {name}" for number in range(1, len(results) + 1)]
    shown = zip(["original", "hidden", *captions], [original, hidden, *results], strict=True)
    width = scale * original.shape[-1]
    return side_by_side([Panel(shortened(caption, width), image, scale) for caption, image in shown])


def shortened(text: str, width: int) -> str:
    """Return the text, cut to so many pixels, with dots for the rest."""
    # Class names are names of directories, which may contain any character.
    text = " ".join(text.encode(errors="replace").decode().split())
    if text_width(text) <= width:
        return text
    while text and text_width(text + "...") > width:
        text = text[:-1]
    return text.rstrip(" ,") + "..."


def _scale(images: Float[Tensor, "b 3 s s"]) -> int:
    return max(1, _SAMPLE_SIDE // images.shape[-1])
