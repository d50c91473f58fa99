"""Tiles cover a grid once, and bring as much of its surrounding as they are asked to."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lgq.models.tiling import Tile, in_tiles, tiles

GRID = {
    "h": st.integers(1, 40),
    "w": st.integers(1, 40),
    "side": st.integers(1, 50),
    "halo": st.integers(0, 9),
}


@given(**GRID)
@settings(max_examples=100, deadline=None)
def test_tiles_cover_each_token_once_and_are_at_most_of_the_side(h, w, side, halo):
    covered = torch.zeros(h, w)
    for tile in tiles(h, w, side=side, halo=halo):
        assert all(0 < part.stop - part.start <= side for part in tile.core)
        covered[tile.core] += 1
    assert (covered == 1).all()


@given(**GRID)
@settings(max_examples=100, deadline=None)
def test_the_halo_is_whole_except_where_the_grid_ends_and_the_core_lies_within(h, w, side, halo):
    grid = torch.arange(h * w).view(h, w)
    for tile in tiles(h, w, side=side, halo=halo):
        assert torch.equal(grid[tile.padded][tile.inner], grid[tile.core])
        for core, padded, length in zip(tile.core, tile.padded, (h, w), strict=True):
            assert padded.start == max(0, core.start - halo)
            assert padded.stop == min(length, core.stop + halo)


def test_a_tile_in_pixels_is_as_many_times_larger():
    tile = Tile((slice(2, 4), slice(0, 3)), (slice(1, 5), slice(0, 4)), (slice(1, 3), slice(0, 3)))
    assert tile.scaled(8).core == (slice(16, 32), slice(0, 24))
    assert tile.scaled(8).inner == (slice(8, 24), slice(0, 24))


@pytest.mark.parametrize("side", [1, 3, 4, 100])
def test_a_local_network_gives_in_tiles_what_it_gives_for_the_whole(side):
    torch.manual_seed(0)
    down, x = torch.nn.Conv2d(2, 3, 4, stride=2, padding=1), torch.randn(2, 2, 22, 14)
    torch.testing.assert_close(in_tiles(down, x, side=side, halo=1, shrinks=2), down(x))
    up, y = torch.nn.ConvTranspose2d(2, 3, 4, stride=2, padding=1), torch.randn(2, 2, 11, 7)
    torch.testing.assert_close(in_tiles(up, y, side=side, halo=1, enlarges=2), up(y))


def test_tiles_of_no_side_are_refused():
    with pytest.raises(ValueError, match="`side` must be at least 1, got 0"):
        list(tiles(4, 4, side=0, halo=1))
