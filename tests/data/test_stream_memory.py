"""However long data is read, no image stays in memory."""

import gc
import tracemalloc
from itertools import islice

import numpy as np
import pytest
from PIL import Image

from lgq.data import LoaderSettings, open_dataset
from lgq.data.shard_writer import shard
from lgq.data.stream import training_loader

IMAGES, BATCH = 24, 8
# What checks types in tests takes notes of its own.
OURS = [tracemalloc.Filter(False, "*/jaxtyping/*"), tracemalloc.Filter(False, "*/beartype/*")]


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """Of images that are noise, 12 kB each, so that one that stays is seen."""
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
