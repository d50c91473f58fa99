"""A stream reads every shard once an epoch, holds one buffer of images, and goes on from any place."""

from itertools import islice, takewhile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lgq.data.images import DataError, EncodedImage
from lgq.data.stream import PipeDataset, Place, endless_images, shards_of


class Listed(PipeDataset):
    """A stream whose shards are in memory; it notes what was read."""

    def __init__(self, sizes, *, buffer):
        super().__init__([f"cat {i}.tar" for i in range(len(sizes))], buffer=buffer)
        self.sizes, self.opened, self.read = sizes, [], 0

    def images(self, shard):
        self.opened.append(shard)
        for item in range(self.sizes[shard]):
            self.read += 1
            yield EncodedImage(b"", None, f"{shard}/{item}")


def draw(data, reader=0, readers=1, *, seed=0, epochs=2):
    images = endless_images(data, Place(reader), seed=seed, readers=readers)
    return list(takewhile(lambda image: image.epoch < epochs, images))


def names(drawn):
    return [streamed.image.name for streamed in drawn]


@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=7),
    readers=st.integers(1, 7),
    buffer=st.integers(1, 20),
    seed=st.integers(0, 2**63),
)
@settings(max_examples=60)
def test_every_epoch_has_every_image_once_over_all_readers(sizes, readers, buffer, seed):
    readers = min(readers, len(sizes))
    data = Listed(sizes, buffer=buffer)
    drawn = [draw(data, reader, readers, seed=seed, epochs=3) for reader in range(readers)]
    for epoch in range(3):
        seen = [streamed.image.name for part in drawn for streamed in part if streamed.epoch == epoch]
        assert sorted(seen) == sorted(f"{i}/{j}" for i, size in enumerate(sizes) for j in range(size))
    for part in drawn:
        epochs = [streamed.epoch for streamed in part]
        assert epochs == sorted(epochs)
        assert set(epochs) == {0, 1, 2}


@given(
    sizes=st.lists(st.integers(1, 5), min_size=2, max_size=4),
    buffer=st.integers(1, 12),
    reader=st.integers(0, 1),
)
@settings(max_examples=20)
def test_a_reader_goes_on_from_any_place(sizes, buffer, reader):
    drawn = draw(Listed(sizes, buffer=buffer), reader, 2)
    for done, streamed in enumerate(drawn, 1):
        rest = endless_images(Listed(sizes, buffer=buffer), streamed.place, seed=0, readers=2)
        assert list(islice(rest, len(drawn) - done)) == drawn[done:]


def test_going_on_reads_no_shard_before_the_block():
    sizes = [4] * 10
    data = Listed(sizes, buffer=3)
    order = shards_of(data, 0, 0, 0, 1)
    late = draw(data)[25]
    again = Listed(sizes, buffer=3)
    next(endless_images(again, late.place, seed=0, readers=1))
    assert again.opened
    assert again.opened[0] == order[24 // 4]
    assert not set(again.opened) & set(order[: 24 // 4])


@pytest.mark.parametrize("buffer", [1, 7, 1000])
def test_a_reader_holds_one_buffer_of_images(buffer):
    data = Listed([10] * 20, buffer=buffer)
    stream = endless_images(data, Place(0), seed=0, readers=1)
    for drawn, _ in enumerate(islice(stream, 500), 1):
        assert data.read - drawn <= buffer


def test_every_epoch_has_its_own_order_and_every_seed_its_own_stream():
    data = Listed([6] * 6, buffer=12)
    drawn = [names(draw(data, epochs=1)), names(draw(data))[36:], names(draw(data, seed=1, epochs=1))]
    assert len({tuple(order) for order in drawn}) == 3
    assert shards_of(data, 0, 0, 0, 1) != shards_of(data, 0, 1, 0, 1)
    assert len({name.split("/")[0] for name in drawn[0][:6]}) > 1, "shards mix within the buffer"
    assert names(draw(Listed([9], buffer=9), epochs=1)) != [f"0/{i}" for i in range(9)]


def test_an_image_has_the_same_number_in_every_epoch_and_no_other_has_it():
    drawn = draw(Listed([5, 6, 7], buffer=4))
    numbers = {streamed.image.name: streamed.number for streamed in drawn}
    assert all(numbers[streamed.image.name] == streamed.number for streamed in drawn)
    assert len(set(numbers.values())) == 18


@pytest.mark.parametrize(
    ("command", "shard"),
    [
        ("curl -s https://x.org/a/train-007.tar", "train-007.tar"),
        ("aws s3 cp 's3://bucket/train-007.tar' -", "train-007.tar"),
        ("curl -s 'https://x.org/get?file=train-007.tar&key=1'", "train-007.tar"),
        ("zcat train-007.tar.gz", "shard-000000.tar"),
        ("my-fetch 7", "shard-000000.tar"),
    ],
)
def test_a_shard_is_named_by_the_file_that_its_command_names(command, shard):
    with pytest.raises(DataError, match=f"^{shard} cannot be read"):
        list(PipeDataset([f"exit 1; {command}"]).images(0))


def test_what_a_stream_cannot_do_is_refused_in_one_line():
    with pytest.raises(DataError, match="needs a command"):
        PipeDataset.from_spec("pipe:  ")
    data = PipeDataset.from_spec("pipe:cat t-{0..3}.tar")
    assert len(data.commands) == 4
    for ask in (len, bool, list, lambda data: data[0]):
        with pytest.raises(DataError, match="is a stream, of unknown length") as caught:
            ask(data)
        assert "\n" not in str(caught.value)
