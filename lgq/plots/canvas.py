"""Parts of every picture: colours, sheets of pixels with text, and their PNG files.

h w = height and width in pixels.
"""

import math
from functools import cache
from io import BytesIO

from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

PAPER, INK, FAINT, ALARM = "#ffffff", "#222222", "#777777", "#d55e00"
"""Colours of the background, of text, of remarks and of warnings."""
BLUE, ORANGE = "#0072b2", "#d55e00"
"""Colours of Okabe and Ito (2008), which colour-blind readers can tell apart: of data, and of references."""
SHADE, _GRID = "#dcdcdc", "#ededed"
"""Colours of unused codes, and of grid lines."""

MARGIN, GAP, TEXT, SMALL_TEXT = 16, 6, 17, 14
LINE = TEXT + 10
"""Height of a line of text in pixels."""
_DOTS_PER_INCH = 110


def blank_sheet(width: int, height: int, caption: str = "") -> Image.Image:
    """Return an empty sheet with a caption and room for `width` x `height` pixels below it."""
    sheet = Image.new("RGB", (width + 2 * MARGIN, height + LINE + 2 * MARGIN), PAPER)
    write(sheet, (MARGIN, MARGIN), caption)
    return sheet


def write(
    sheet: Image.Image,
    place: tuple[int, int],
    text: str,
    *,
    colour: str = INK,
    size: int = TEXT,
    anchor: str = "la",
) -> None:
    ImageDraw.Draw(sheet).text(place, text, fill=colour, font=_font(size), anchor=anchor)


def text_width(text: str) -> int:
    """Width of the text as `write` draws it, in pixels, rounded up."""
    return math.ceil(_font(TEXT).getlength(text))


@cache
def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)


def pixels(image: Float[Tensor, "3 h w"], scale: int = 1) -> Image.Image:
    """Return an image in [-1, 1] as a picture, enlarged without smoothing."""
    levels = ((image.detach().float().cpu().clamp(-1, 1) + 1) * 127.5).round().byte()
    picture = Image.fromarray(levels.permute(1, 2, 0).contiguous().numpy())
    size = (picture.width * scale, picture.height * scale)
    return picture.resize(size, Image.Resampling.NEAREST)


def sheet_png(sheet: Image.Image) -> bytes:
    file = BytesIO()
    sheet.save(file, "PNG")
    return file.getvalue()


def panel_figure(panels: int, size: tuple[float, float], *, columns: int = 2) -> tuple[Figure, list[Axes]]:
    """Return a figure with panels of `size` inches, `columns` per row."""
    columns = min(panels, columns)
    rows = -(-panels // columns)
    figure = Figure(figsize=(size[0] * columns, size[1] * rows), dpi=_DOTS_PER_INCH, layout="constrained")
    axes = [figure.add_subplot(rows, columns, i + 1) for i in range(panels)]
    for panel in axes:
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(axis="y", color=_GRID, linewidth=0.8)
        panel.set_axisbelow(True)
    return figure, axes


def figure_png(figure: Figure) -> bytes:
    """Return the figure as PNG; without a window and global state, so any thread may draw."""
    file = BytesIO()
    FigureCanvasAgg(figure).print_png(file)
    return file.getvalue()
