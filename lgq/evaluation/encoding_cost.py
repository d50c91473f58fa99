"""What will it take to encode a data set? A few batches, encoded as all would be, tell."""

import time
from dataclasses import dataclass
from math import prod

import torch

from lgq.data.images import ImageDataset
from lgq.data.loader import ImageLoader, Loading
from lgq.distributed import sum_over_ranks, world_size
from lgq.evaluation.encoding import encode_batch, plan_encoding
from lgq.tokenizer import Tokenizer

_BATCHES = 8
_NUMBERS = 16
"""Bytes of an image beside tokens and name: its label, and where its name ends."""


@dataclass(frozen=True, kw_only=True)
class EncodingCost:
    """An estimate."""

    images: int
    shards: int
    bytes: int
    """Of the tokens, labels and names; the copy of the tokenizer beside them not included."""
    measured: int
    """Images whose encoding was timed."""
    images_per_second: float
    """Over all processes, reading and decoding included."""
    processes: int

    @property
    def seconds(self) -> float:
        return self.images / self.images_per_second


def estimate_encoding(
    tokenizer: Tokenizer,
    dataset: ImageDataset,
    *,
    image_size: int,
    batch_size: int = 32,
    shard_size: int = 4096,
    flips: bool = False,
    workers: int = 0,
) -> EncodingCost:
    """Encode some batches of images spread over the data set, and keep nothing.

    The first batch is not timed: workers start with it, and devices choose their kernels.
    """
    encoding = plan_encoding(tokenizer, dataset, image_size=image_size, shard_size=shard_size, flips=flips)
    loading = Loading(image_size=image_size, batch_size=batch_size, workers=workers)
    limit = batch_size * (1 + _BATCHES * max(1, workers))
    names: list[str] = []
    marks = [(time.perf_counter(), 0)]
    for batch in ImageLoader(dataset, loading).one_pass(limit):
        encode_batch(tokenizer, batch, flips)
        names += batch.names
        marks.append((time.perf_counter(), len(names)))
    (began, before), (ended, after) = marks[1 if len(marks) > 2 else 0], marks[-1]
    of_tokens = prod(encoding.token_shape) * encoding.dtype(0).itemsize * (1 + flips)
    of_names = sum(len(name.encode("utf-8", "surrogatepass")) for name in names) / len(names)
    rate = (after - before) / (ended - began)
    return EncodingCost(
        images=len(dataset),
        shards=encoding.shards,
        bytes=round(len(dataset) * (of_tokens + of_names + _NUMBERS)),
        measured=after - before,
        images_per_second=float(sum_over_ranks(torch.tensor(rate))),
        processes=world_size(),
    )
