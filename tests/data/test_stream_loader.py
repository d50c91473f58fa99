"""Batches of a stream belong to the seed and the readers' places, and no image stays in memory."""

import gc
import logging
import tracemalloc
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
import torch
from batches import assert_same
from PIL import Image
from shard_files import picture, piped_shards, write_tar

from lgq.data import DataError, LoaderSettings, RandomCrop, StreamLoader, open_dataset
from lgq.data.images import StoredImage
from lgq.data.shard_writer import shard
from lgq.data.stream import training_loader
from lgq.data.transforms import random_crop, render

SMALL = LoaderSettings(image_size=4, batch_size=3)
# torch finds two workers too many on a machine with one core.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


@pytest.fixture
def data(tmp_path):
    return piped_shards(tmp_path, [4, 1, 6, 2], buffer=3)


def stream(data, settings=SMALL, *, batches, start=0):
    return list(islice(StreamLoader(data, settings).stream(start), batches))


def test_workers_read_in_turns_what_as_many_processes_read(data):
    assert_same(stream(data, replace(SMALL, workers=1), batches=12), stream(data, batches=12))
    ranks = [stream(data, replace(SMALL, rank=rank, world_size=2), batches=6) for rank in range(2)]
    workers = stream(data, replace(SMALL, workers=2), batches=12)
    assert_same(workers, [batch for step in zip(*ranks, strict=True) for batch in step], positions=False)
    assert [place[0] for place in workers[0].position] == [1, 0]
    assert all(type(number) is int for place in workers[0].position for number in place)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_resumed_anywhere_is_the_unbroken_stream(data, workers):
    settings = replace(SMALL, workers=workers)
    unbroken = stream(data, settings, batches=9)
    for done in range(9) if workers == 0 else (1, 4):
        start = unbroken[done - 1].position if done else 0
        assert_same(stream(data, settings, batches=9 - done, start=start), unbroken[done:])


def test_each_rank_finds_its_place_among_those_of_all(data):
    ranks = [replace(SMALL, rank=rank, world_size=2) for rank in range(2)]
    unbroken = [stream(data, settings, batches=6) for settings in ranks]
    start = [place for batches in unbroken for place in batches[2].position]
    for settings, batches in zip(ranks, unbroken, strict=True):
        assert_same(stream(data, settings, batches=3, start=start), batches[3:])


def test_the_augmentation_belongs_to_seed_epoch_and_image(data):
    crop = RandomCrop(smallest_area=0.2)
    batches = stream(data, replace(SMALL, seed=5, crop=crop), batches=8)
    seen = [item for batch in batches for item in zip(batch.images, batch.indices, batch.labels, strict=True)]
    for place, (image, index, label) in enumerate(seen):
        stored = StoredImage(picture(int(label)), "a")
        cut = random_crop(stored.size, crop, side=4, seed=5, epoch=place // 13, index=int(index))
        assert torch.equal(image, render(stored, cut, 4))


@pytest.mark.parametrize(("workers", "world_size"), [(5, 1), (2, 3), (0, 5)])
def test_fewer_shards_than_readers_are_refused_with_the_way_out(data, workers, world_size):
    with pytest.raises(DataError, match=r"4 shards for [56] readers .* lower `workers`, or make more"):
        StreamLoader(data, replace(SMALL, workers=workers, world_size=world_size))


@pytest.mark.parametrize("start", [7, [[5, 0, 0, 0, 0]], [[0, 0, 0, 0, 0], [0, 0, 0, 0, 0]]])
def test_a_position_of_other_readers_is_refused(data, start):
    with pytest.raises(ValueError, match="`start` must be 0 or the position of a batch of 1 readers"):
        StreamLoader(data, SMALL).stream(start)


def test_broken_images_are_left_out_and_named_once(tmp_path, caplog):
    members = [(f"{i}.png", b"damaged" if i in (1, 4) else picture(i)) for i in range(6)]
    path = write_tar(tmp_path / "a.tar", members)
    loader = StreamLoader(open_dataset(f"pipe:cat {path}"), replace(SMALL, batch_size=4))
    with caplog.at_level(logging.WARNING):
        batches = list(islice(loader.stream(), 3))
    assert all(len(batch.images) == 4 for batch in batches)
    assert sorted(batches[0].names) == [f"a.tar/{i}.png" for i in (0, 2, 3, 5)]
    assert set(loader.broken) == {"a.tar/1.png", "a.tar/4.png"}
    assert len(caplog.records) == 2
    path = write_tar(tmp_path / "b.tar", [(f"{i}.png", b"damaged") for i in range(3)])
    with pytest.raises(DataError, match=r"none of 3 images of a reader can be read in .*b\.tar/\d\.png"):
        stream(open_dataset(f"pipe:cat {path}"), batches=1)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_command_that_fails_ends_the_stream_in_one_line(data, tmp_path, workers):
    whole = (tmp_path / "t-2.tar").read_bytes()
    (tmp_path / "t-2.tar").write_bytes(whole[:2000])
    loader = StreamLoader(data, replace(SMALL, workers=workers))
    with pytest.raises(DataError, match=r"^t-2\.tar cannot be read: .* exit status 0 and wrote no") as caught:
        list(islice(loader.stream(), 20))
    assert "\n" not in str(caught.value)


IMAGES, BATCH = 24, 8
# What checks types in tests takes notes of its own.
OURS = [tracemalloc.Filter(False, "*/jaxtyping/*"), tracemalloc.Filter(False, "*/beartype/*")]


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """Shards of noise, 12 kB per image, so that one that stays is seen."""
    folder = tmp_path_factory.mktemp("noise")
    (folder / "photos").mkdir()
    for i in range(IMAGES):
        pixels = np.random.default_rng(i).integers(0, 256, (64, 64, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"photos/{i}.png")
    shard(folder / "photos", folder / "shards", shard_size=6)
    return folder / "shards"


@pytest.mark.parametrize("spec", ["{}/shard-00000{{0..3}}.tar", "pipe:cat {}/shard-00000{{0..3}}.tar"])
def test_more_epochs_take_no_more_memory(shards, spec):
    data = open_dataset(spec.format(shards))
    batches = training_loader(data, LoaderSettings(image_size=8, batch_size=BATCH)).stream()
    of_one_epoch = sum(path.stat().st_size for path in shards.glob("*.tar"))

    def after(epochs: int) -> int:
        for _ in islice(batches, epochs * IMAGES // BATCH):
            pass
        gc.collect()
        return sum(trace.size for trace in tracemalloc.take_snapshot().filter_traces(OURS).traces)

    tracemalloc.start()
    try:
        first, last = after(1), after(5)
    finally:
        tracemalloc.stop()
    assert last - first < of_one_epoch
