"""The stream of samples depends on (seed, epoch, position), not on workers, ranks or restarts."""

import io
import logging
import os
import pickle
import signal
from dataclasses import replace
from itertools import islice
from multiprocessing import active_children

import numpy as np
import pytest
import torch
from batches import assert_same
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from lgq.data.images import DataError, EncodedImage, StoredImage
from lgq.data.loader import ImageLoader, LoaderSettings, _candidates, _Reader, epoch_order
from lgq.data.photographs import SampleDataset
from lgq.data.transforms import RandomCrop, random_crop, render, to_tensor

TEN = list(range(10))
SMALL = LoaderSettings(image_size=8, batch_size=4)
# torch finds two workers too many on a machine with one core.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


class Memory:
    """Images in memory; `broken` ones are empty files."""

    def __init__(self, length, broken=()):
        pixels = np.random.default_rng(0).integers(0, 256, (length, 10, 12, 3), dtype=np.uint8)
        self.files = [b"" if i in broken else self._encode(pixels[i]) for i in range(length)]

    @staticmethod
    def _encode(pixels):
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, "BMP")
        return buffer.getvalue()

    def __repr__(self):
        return "Memory()"

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        return EncodedImage(self.files[index], index % 3 if index else None, f"{index}.bmp")


def stream(dataset, settings=SMALL, *, batches, start=0):
    return list(islice(ImageLoader(dataset, settings).stream(start), batches))


def indices(batches):
    return [index for batch in batches for index in batch.indices.tolist()]


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_a_run_resumed_anywhere_with_any_workers_sees_what_an_unbroken_one_sees(workers):
    dataset = Memory(11, broken=(2, 3, 7))
    unbroken = stream(dataset, batches=9)
    for done in range(9) if workers == 0 else (0, 3):
        start = unbroken[done - 1].position if done else 0
        resumed = stream(dataset, replace(SMALL, workers=workers), batches=9 - done, start=start)
        assert_same(resumed, unbroken[done:])


@given(
    length=st.integers(1, 40),
    batch_size=st.integers(1, 9),
    world_size=st.integers(1, 4),
    epochs=st.integers(1, 3),
)
@settings(max_examples=25, deadline=None)
def test_ranks_share_every_epoch_and_a_pass_without_overlap_or_loss(length, batch_size, world_size, epochs):
    dataset = Memory(length)
    shared = LoaderSettings(image_size=1, batch_size=batch_size, world_size=world_size)
    batches = -(-epochs * length // (batch_size * world_size))
    ranks = [stream(dataset, replace(shared, rank=rank), batches=batches) for rank in range(world_size)]
    seen = [i for step in zip(*ranks, strict=True) for i in indices(step)]
    for epoch in range(epochs):
        assert sorted(seen[epoch * length : (epoch + 1) * length]) == list(range(length))
    passes = [list(ImageLoader(dataset, replace(shared, rank=r)).one_pass()) for r in range(world_size)]
    assert sorted(index for rank in passes for index in indices(rank)) == list(range(length))
    assert max(map(len, passes)) - min(map(len, passes)) <= 1


def test_ranks_together_see_what_one_rank_with_a_large_batch_sees():
    dataset = Memory(10, broken=(4,))
    ranks = [stream(dataset, replace(SMALL, rank=rank, world_size=3), batches=5) for rank in range(3)]
    alone = stream(dataset, replace(SMALL, batch_size=12), batches=5)
    for parts, whole in zip(zip(*ranks, strict=True), alone, strict=True):
        assert torch.equal(torch.cat([part.images for part in parts]), whole.images)
        assert {part.position for part in parts} == {whole.position}


def test_a_run_may_resume_with_another_batch_size():
    dataset = Memory(10)
    before = stream(dataset, batches=3)
    after = stream(dataset, replace(SMALL, batch_size=6), batches=2, start=before[-1].position)
    assert indices(before + after) == indices(stream(dataset, batches=6))


def test_every_epoch_has_its_own_order_and_every_seed_its_own_stream():
    dataset = Memory(30)
    batches = stream(dataset, replace(SMALL, batch_size=30), batches=3)
    orders = [batch.indices.tolist() for batch in batches]
    orders.append(stream(dataset, replace(SMALL, batch_size=30, seed=1), batches=1)[0].indices.tolist())
    assert len({tuple(order) for order in orders}) == 4
    assert orders[0] == epoch_order(30, 0, 0).tolist()


def test_the_augmentation_belongs_to_seed_epoch_and_index():
    dataset, crop = Memory(6), RandomCrop(smallest_area=0.2)
    for batch in stream(dataset, replace(SMALL, seed=5, crop=crop), batches=4):
        for place, index in enumerate(batch.indices.tolist()):
            epoch = (batch.position - 4 + place) // 6
            stored = StoredImage(dataset[index].data, "a")
            cut = random_crop(stored.size, crop, side=8, seed=5, epoch=epoch, index=index)
            assert torch.equal(batch.images[place], render(stored, cut, 8))


def test_at_their_own_resolution_images_are_cut_in_training_and_in_validation():
    dataset, cut = Memory(4), RandomCrop(own_resolution=True, flip=0)
    loader = ImageLoader(dataset, replace(SMALL, crop=cut))
    (batch,) = loader.one_pass()
    for image, index in zip(batch.images, batch.indices.tolist(), strict=True):
        pixels = np.asarray(Image.open(io.BytesIO(dataset.files[index])))  # 10 x 12
        assert torch.equal(image, to_tensor(Image.fromarray(pixels[1:9, 2:10])))
    for image, index in zip(*next(iter(loader.stream()))[:3:2], strict=True):
        whole = to_tensor(Image.open(io.BytesIO(dataset.files[index])))
        squares = whole.unfold(1, 8, 1).unfold(2, 8, 1).permute(1, 2, 0, 3, 4).flatten(0, 1)
        assert any(torch.equal(image, square) for square in squares)


def test_a_batch_tells_labels_names_and_indices():
    batch = stream(Memory(4), batches=1)[0]
    assert batch.images.shape == (4, 3, 8, 8)
    assert batch.labels.dtype == batch.indices.dtype == torch.int64
    for index, label, name in zip(batch.indices.tolist(), batch.labels.tolist(), batch.names, strict=True):
        assert label == (index % 3 if index else -1)
        assert name == f"{index}.bmp"


def test_loading_leaves_the_random_generators_of_the_model_alone():
    torch.manual_seed(0)
    before = torch.get_rng_state(), np.random.get_state()[1].copy()
    stream(Memory(5), batches=3)
    stream(Memory(5), replace(SMALL, workers=1), batches=3)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.array_equal(np.random.get_state()[1], before[1])


def test_a_broken_image_is_replaced_and_the_others_stay():
    whole, damaged = stream(Memory(9), batches=9), stream(Memory(9, broken=(2, 6)), batches=9)
    for a, b in zip(whole, damaged, strict=True):
        kept = [i for i, index in enumerate(a.indices.tolist()) if index not in (2, 6)]
        assert torch.equal(a.images[kept], b.images[kept])
        assert a.images.shape == b.images.shape
        assert not set(b.indices.tolist()) & {2, 6}


@given(st.integers(1, 200), st.integers(0, 5), st.data())
@settings(max_examples=50, deadline=None)
def test_the_search_for_a_replacement_tries_every_image_once(length, epoch, data):
    index = data.draw(st.integers(0, length - 1))
    candidates = list(_candidates(length, 0, epoch, index))
    assert candidates[0] == index
    assert sorted(candidates) == list(range(length))


@pytest.mark.parametrize("workers", [0, 2])
def test_broken_images_are_counted_and_named_once(workers, caplog):
    loader = ImageLoader(Memory(8, broken=(3, 5)), replace(SMALL, workers=workers))
    with caplog.at_level(logging.WARNING):
        list(islice(loader.stream(), 12))
        list(loader.one_pass())
    assert loader.broken == {"3.bmp": "the file is empty", "5.bmp": "the file is empty"}
    for name in loader.broken:
        assert sum(f"{name}: the file is empty" in record.getMessage() for record in caplog.records) == 1


@pytest.mark.parametrize("workers", [0, 2])
def test_a_data_set_with_nothing_readable_is_one_clear_error(workers):
    loader = ImageLoader(Memory(6, broken=range(6)), replace(SMALL, workers=workers))
    for read in (loader.stream, loader.one_pass):
        with pytest.raises(DataError, match=r"none of 6 images can be read in Memory\(\)") as caught:
            list(read())
        assert "\n" not in str(caught.value)


def test_a_pass_sees_every_image_once_in_order_whatever_the_seed_and_leaves_broken_ones_out():
    dataset = Memory(11, broken=(0, 4, 5, 6, 7))
    batches = list(ImageLoader(dataset, SMALL).one_pass())
    assert [batch.indices.tolist() for batch in batches] == [[1, 2, 3], [8, 9, 10]]
    assert [batch.position for batch in batches] == [4, 11]
    assert_same(list(ImageLoader(dataset, replace(SMALL, seed=1)).one_pass()), batches)


@pytest.mark.parametrize(("limit", "expected"), [(1, [0]), (4, [0, 2, 5, 7]), (10, TEN), (99, TEN)])
def test_a_limited_pass_spreads_over_the_data_set(limit, expected):
    assert indices(ImageLoader(Memory(10), SMALL).one_pass(limit)) == expected


def test_the_reader_can_be_sent_to_a_spawned_worker():
    reader = _Reader(SampleDataset(), SMALL, training=True)
    assert len(pickle.loads(pickle.dumps(reader)).dataset) == len(SampleDataset())


def test_an_interrupt_does_not_take_the_workers_away_and_the_end_of_the_stream_does():
    dataset = Memory(9)
    batches = ImageLoader(dataset, replace(SMALL, workers=2)).stream()
    read = [next(batches) for _ in range(2)]
    assert len(active_children()) == 2
    for worker in active_children():
        os.kill(worker.pid, signal.SIGINT)
    read += [next(batches) for _ in range(20)]
    assert_same(read, stream(dataset, batches=22))
    batches.close()
    assert active_children() == []


@pytest.mark.parametrize(
    "wrong",
    [{"image_size": 0}, {"batch_size": 0}, {"workers": -1}, {"world_size": 0}, {"rank": 1}, {"rank": -1}],
)
def test_impossible_settings_are_refused_by_name(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        LoaderSettings(**wrong)


def test_impossible_positions_are_refused_at_once():
    with pytest.raises(DataError, match="holds no image"):
        ImageLoader(Memory(0), SMALL)
    loader = ImageLoader(Memory(3), SMALL)
    with pytest.raises(ValueError, match="start"):
        loader.stream(-1)
    with pytest.raises(ValueError, match="limit"):
        loader.one_pass(0)
