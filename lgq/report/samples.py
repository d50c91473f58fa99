"""Images that a generator draws, batch by batch, and pictures of them, as PNG.

b = images, s = their side in pixels, c = results. Images are RGB in [-1, 1].

    images = torch.cat(list(draw_samples(maskgit, [0, 0, 7, 7], sampling, seed=1)))
    png = sample_grid(images, [0, 0, 7, 7], maskgit.classes, caption="11 steps")
"""

from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lgq.checks import require_at_least
from lgq.evaluation.generation import batch_seed
from lgq.generator import MaskGIT
from lgq.models.sampling import Sampling
from lgq.progress import Progress, unwatched
from lgq.report.canvas import GAP, LINE, MARGIN, blank_sheet, pixels, sheet_png, text_width, write
from lgq.report.pictures import Panel, side_by_side

_SHOWN_SIDE = 128
"""Pixels that the side of an image takes in the picture, or a little less; large images keep their size."""
_GREY = 0.0


def draw_samples(
    maskgit: MaskGIT,
    classes: Sequence[int],
    sampling: Sampling,
    *,
    seed: int = 0,
    batch_size: int = 32,
    on_progress: Progress = unwatched,
) -> Iterator[Float[Tensor, "b 3 s s"]]:
    """An image of each class, batch by batch, on the CPU: the same for the same seed and batch size."""
    require_at_least(1, batch_size=batch_size)
    # Before the first batch is drawn, not when the last one is asked for.
    maskgit.require_classes(classes)
    for first in range(0, len(classes), batch_size):
        chosen = torch.tensor(classes[first : first + batch_size])
        yield maskgit.generate(chosen, sampling, seed=batch_seed(seed, first)).cpu()
        on_progress(min(first + batch_size, len(classes)), len(classes))


def sample_grid(
    images: Float[Tensor, "b 3 s s"],
    classes: Sequence[int],
    names: Sequence[str],
    *,
    caption: str,
    columns: int = 8,
    scale: int | None = None,
) -> bytes:
    """A band for each class: its name, and below it its images, in as many rows as they take.

    classes: of each image; bands come in the order in which classes are met.
    names: of all classes.
    scale: pixels along the side of each of an image's pixels; by default, small images are enlarged.
    """
    scale = scale or _scale(images)
    require_at_least(1, images=len(images), columns=columns, scale=scale)
    bands = {number: [i for i, each in enumerate(classes) if each == number] for number in classes}
    side, rows = scale * images.shape[-1], [-(-len(band) // columns) for band in bands.values()]
    width = min(columns, max(map(len, bands.values()))) * (side + GAP) - GAP
    height = len(bands) * (LINE + MARGIN) + sum(rows) * (side + GAP) - GAP
    width = max(width, text_width(caption))
    sheet, top = blank_sheet(width, height, caption), MARGIN + LINE
    for (number, band), lines in zip(bands.items(), rows, strict=True):
        top += MARGIN
        write(sheet, (MARGIN, top), shortened(_titled(names[number]), width))
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
    scale: int | None = None,
) -> bytes:
    """The image, the image with grey where it was drawn anew, and each result.

    mask: true where it was drawn anew.
    name: of the class that it was drawn as.
    """
    scale = scale or _scale(results)
    hidden = original.masked_fill(mask, _GREY)
    captions = [f"{number}. {name}" for number in range(1, len(results) + 1)]
    shown = zip(["original", "hidden", *captions], [original, hidden, *results], strict=True)
    width = scale * original.shape[-1]
    return side_by_side([Panel(shortened(caption, width), image, scale) for caption, image in shown])


def shortened(text: str, width: int) -> str:
    """The text, or as much of its beginning as fits into so many pixels, with dots for the rest."""
    # Names of classes are those of directories, which may hold anything.
    text = " ".join(text.encode(errors="replace").decode().split())
    if text_width(text) <= width:
        return text
    while text and text_width(text + "...") > width:
        text = text[:-1]
    return text.rstrip(" ,") + "..."


def _titled(name: str) -> str:
    """Shards know classes by their numbers alone."""
    return f"class {name}" if name.isdecimal() else name


def _scale(images: Float[Tensor, "b 3 s s"]) -> int:
    return max(1, _SHOWN_SIDE // images.shape[-1])
