"""Colours and markers of quantizers: the same quantizer looks the same in every chart.

The colours of the built-in quantizers differ for readers with protanopia, deuteranopia or tritanopia too,
on white and on the dark background of the report. A marker per quantizer tells lines apart in print.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple
from zlib import crc32

from matplotlib.colors import to_hex, to_rgb

from lgq.plots.canvas import BLUE

WHITE, DARK = "#ffffff", "#14171a"
"""Backgrounds that the colours are made for."""
_INK, _CHALK = "#1b1e22", "#ffffff"
"""The strongest colour on each background."""


class Style(NamedTuple):
    """How a line is drawn."""

    light: str
    """Colour on a white background."""
    dark: str
    """Colour on a dark background."""
    marker: str
    """Marker of its points, as matplotlib names it."""
    dashes: tuple[int, ...] = ()
    """Lengths of dashes and gaps in points; empty for a solid line."""


_BUILT_IN = {
    "lgq": Style(BLUE, "#529aff", "o"),
    "ibq": Style("#b8001f", "#e61e3f", "s"),
    "fsq": Style("#00a854", "#33ffaa", "^"),
    "simvq": Style("#b88d00", "#ffd342", "D"),
    "rotvq": Style("#6b15c1", "#6e52ff", "v"),
    "lfq": Style(_INK, _CHALK, "P"),
    "vq": Style("#919191", "#6a737c", "X"),
    "bsq": Style("#2a15f9", "#aabace", "h"),
    "diveq": Style("#480059", "#9148a8", "<"),
    "wasserstein": Style("#883366", "#dd7700", ">"),
}
_MARKERS = (*(style.marker for style in _BUILT_IN.values()), "*")
_DASHES = ((6, 3), (2, 2), (8, 3, 2, 3))
_MORE_COLOURS = (
    ("#6e0c6e", "#ff8fd0"), ("#7a4a1e", "#d09a66"), ("#007c80", "#35c9cf"), ("#c2478f", "#f06ec0"),
    ("#4d6b00", "#a8cc3a"), ("#3d4f8f", "#a9b8ff"),
)  # fmt: skip
_REGISTERED = tuple(Style(*colours, "*", dashes) for dashes in _DASHES for colours in _MORE_COLOURS)
"""Styles of quantizers that users register: other colours, dashed."""
_SHADES = (0.0, -0.45, 0.28, -0.75, -0.22)
"""Shares of the strongest colour (negative) or of the background (positive) in the colours of variants."""


def styles_of(quantizers: Iterable[str]) -> dict[str, Style]:
    """Return the style of each quantizer by name.

    The built-in quantizers keep theirs. Others have one that follows from the name, and the next free one
    where two of these quantizers would share it.
    """
    names = sorted(set(quantizers))
    styles = {name: _BUILT_IN[name] for name in names if name in _BUILT_IN}
    for name in names:
        if name not in styles:
            first = crc32(name.encode()) % len(_REGISTERED)
            order = _REGISTERED[first:] + _REGISTERED[:first]
            styles[name] = next((style for style in order if style not in styles.values()), order[0])
    return styles


def colour_of(quantizer: str) -> str:
    """Return the colour of a quantizer on a white background."""
    return styles_of([quantizer])[quantizer].light


def line_styles(quantizers: Sequence[str], all_quantizers: Iterable[str] = ()) -> list[Style]:
    """Return the style of each line of a chart, given the quantizer of each line.

    A quantizer with several lines has shades of its colour, with other dashes and markers.

    all_quantizers: those of the other charts beside it, so that styles agree between them.
    """
    styles, lines = styles_of([*quantizers, *all_quantizers]), []
    for i, name in enumerate(quantizers):
        style, variant = styles[name], list(quantizers[:i]).count(name)
        if variant:
            share = _SHADES[variant % len(_SHADES)]
            style = Style(
                _shade(style.light, share, _INK, WHITE),
                _shade(style.dark, share, _CHALK, DARK),
                _MARKERS[(_MARKERS.index(style.marker) + variant) % len(_MARKERS)],
                ((), *_DASHES)[variant % (1 + len(_DASHES))],
            )
        lines.append(style)
    return lines


def _shade(colour: str, share: float, strong: str, background: str) -> str:
    """Return the colour with a share of the strongest one, or of the background."""
    other = to_rgb(background if share > 0 else strong)
    pairs = zip(to_rgb(colour), other, strict=True)
    red, green, blue = ((1 - abs(share)) * a + abs(share) * b for a, b in pairs)
    return to_hex((red, green, blue))
