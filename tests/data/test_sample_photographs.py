"""The embedded photographs open without a network and fall into two sides that share nothing."""

import socket
from pathlib import Path

import numpy as np
import pytest

from lgq.data.images import DataError, decode
from lgq.data.photographs import PHOTOGRAPHS, TILE_SIDE, SampleDataset, Tile


@pytest.mark.parametrize("split", PHOTOGRAPHS)
def test_tiles_decode_offline_to_small_colour_squares(split, monkeypatch):
    monkeypatch.setattr(socket, "socket", lambda *_: pytest.fail("reached for the network"))
    dataset = SampleDataset(split)
    for i in range(0, len(dataset), 17):
        data, label, name = dataset[i]
        height, width, _ = decode(data, name).shape
        assert 32 < height == width <= TILE_SIDE
        assert Path(name).parts[0].startswith(dataset.classes[label].split()[0])


def test_there_are_enough_tiles_for_a_demo_and_names_tell_them_apart():
    train, held_out = SampleDataset("train"), SampleDataset("held-out")
    assert len(train) >= 400
    assert len(held_out) >= 100
    names = [tile.name for tile in train.tiles + held_out.tiles]
    assert len(set(names)) == len(names)


def test_classes_are_the_subjects_and_whole_is_the_middle_of_one_photograph_of_each():
    whole, train = SampleDataset("whole"), SampleDataset().classes
    assert train == ("astronaut", "coffee", "motorcycle", "retina", "hubble deep field", "ihc")
    assert whole.classes == (*train, "chelsea", "rocket")
    assert SampleDataset("held-out").classes == ("chelsea", "rocket")
    assert [whole[i].label for i in range(len(whole))] == list(range(8))
    assert Tile("chelsea.png", 75, 0, 300) in whole.tiles


def test_tiles_cover_each_photograph_to_its_edges():
    tiles = [tile for tile in SampleDataset("held-out").tiles if tile.photograph == "chelsea.png"]
    for side in {tile.side for tile in tiles}:
        covered = np.zeros((300, 451), bool)
        for tile in tiles:
            if tile.side == side:
                assert tile.left + side <= 451
                assert tile.top + side <= 300
                covered[tile.top : tile.top + side, tile.left : tile.left + side] = True
        assert covered.all()


def test_an_unknown_split_and_a_missing_package_are_named(monkeypatch):
    with pytest.raises(DataError, match="sample:train, sample:held-out or sample:whole"):
        SampleDataset("validation")
    monkeypatch.setattr("lgq.data.photographs.find_spec", lambda _: None)
    with pytest.raises(DataError, match="pip install scikit-image"):
        SampleDataset()
