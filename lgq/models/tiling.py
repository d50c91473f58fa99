"""Tiles of a grid of tokens, with which networks that see a bounded surrounding compute large images.

b = images, c = channels, h w = height and width in tokens.

    in_tiles(encoder, images, side=64, halo=5, shrinks=8)          # encoder(images) up to rounding

A tile is computed with a halo of neighbouring tokens, which is cut off again. If the halo is as wide as the
network sees, the result is that of the whole image: the borders of tiles cannot be told.
"""

from collections.abc import Callable, Iterator
from itertools import pairwise, product
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from lgq.checks import require_at_least


class Tile(NamedTuple):
    """A rectangle of tokens; each field is a pair of slices, rows and columns."""

    core: tuple[slice, slice]
    """Its place in the grid; the cores of all tiles cover each token once."""
    padded: tuple[slice, slice]
    """Its place with the halo, which ends where the grid ends."""
    inner: tuple[slice, slice]
    """Place of the core within the padded tile."""

    def scaled(self, factor: int) -> "Tile":
        """Return the tile in pixels, `factor` per token."""
        return Tile(*(_pair(slice(s.start * factor, s.stop * factor) for s in part) for part in self))


def tiles(h: int, w: int, *, side: int, halo: int) -> Iterator[Tile]:
    """Cut a grid into tiles of at most `side` tokens a side, all of about the same size, row by row."""
    require_at_least(1, side=side)
    require_at_least(0, halo=halo)
    for rows, columns in product(_cut(h, side, halo), _cut(w, side, halo)):
        yield Tile(*(_pair(pair) for pair in zip(rows, columns, strict=True)))


def tile_at(h: int, w: int, rows: slice, columns: slice, *, halo: int) -> Tile:
    """Return the tile of these rows and columns of a grid."""
    sides = (_with_halo(rows.start, rows.stop, h, halo), _with_halo(columns.start, columns.stop, w, halo))
    return Tile(*(_pair(pair) for pair in zip(*sides, strict=True)))


def in_tiles(
    network: Callable[[Tensor], Tensor],
    x: Float[Tensor, "b c _ _"],
    *,
    side: int,
    halo: int,
    shrinks: int = 1,
    enlarges: int = 1,
) -> Float[Tensor, "b _ _ _"]:
    """Apply a network tile by tile.

    shrinks: pixels of `x` along a token's side.
    enlarges: pixels of the result along a token's side.
    """
    h, w = x.shape[2] // shrinks, x.shape[3] // shrinks
    result: Tensor | None = None
    for tile in tiles(h, w, side=side, halo=halo):
        place = tile.scaled(enlarges)
        part = network(x[(..., *tile.scaled(shrinks).padded)])[(..., *place.inner)]
        if result is None:
            result = part.new_empty(*part.shape[:2], h * enlarges, w * enlarges)
        result[(..., *place.core)] = part
    assert result is not None  # a grid has at least one tile
    return result


def _cut(length: int, side: int, halo: int) -> Iterator[tuple[slice, slice, slice]]:
    """Cut a row of tokens; yields core, padded and inner of each part."""
    parts = -(-length // side)
    edges = [i * length // parts for i in range(parts + 1)]
    for start, stop in pairwise(edges):
        yield _with_halo(start, stop, length, halo)


def _with_halo(start: int, stop: int, length: int, halo: int) -> tuple[slice, slice, slice]:
    """Return core, padded and inner of a part of a row of tokens."""
    first = max(0, start - halo)
    return slice(start, stop), slice(first, min(length, stop + halo)), slice(start - first, stop - first)


def _pair(slices: Iterator[slice] | tuple[slice, ...]) -> tuple[slice, slice]:
    rows, columns = slices
    return rows, columns
