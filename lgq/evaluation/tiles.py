"""Rows of a matrix that is too large to keep, a few at a time."""

from collections.abc import Iterator

_TILE_BYTES = 2**25
_BYTES_A_VALUE = 8


def row_tiles(rows: int, columns: int) -> Iterator[slice]:
    """All rows, in slices whose float64 values take 32 MiB at most, or are one row."""
    step = max(1, _TILE_BYTES // (_BYTES_A_VALUE * max(columns, 1)))
    return (slice(start, min(start + step, rows)) for start in range(0, rows, step))
