"""Which images are in which batch: a matter of (seed, epoch, position) alone, whoever reads them.

A position counts images over all ranks. Training cuts an endless stream of epochs into batches
without regard to where an epoch ends; evaluation goes through the data once, in order.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from lgq.data.transforms import random_order

_ORDER_KEY = 2  # every use of `random_order` has its own first part


@dataclass(frozen=True, kw_only=True)
class Share:
    """What a process takes of each global batch."""

    batch_size: int = 32
    """Images a rank gets at a time."""
    seed: int = 0
    """Decides the order of each epoch and all else that is random in a batch."""
    rank: int = 0
    """Which share of each global batch this process takes."""
    world_size: int = 1
    """Number of processes that share the data."""

    def __post_init__(self) -> None:
        for name in ("batch_size", "world_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be 1 or more, got {getattr(self, name)}.")
        if not 0 <= self.rank < self.world_size:
            raise ValueError(f"rank must be in [0, {self.world_size}), the world_size, got {self.rank}.")


class Request(NamedTuple):
    """A batch to be read."""

    epochs: list[int]
    indices: list[int]
    position: int
    """Images taken over all ranks up to and with this batch."""


@lru_cache(maxsize=2)  # a batch may reach into the next epoch
def epoch_order(length: int, seed: int, epoch: int) -> Int[np.ndarray, " length"]:
    """The order in which an epoch visits the images: a permutation that belongs to (seed, epoch)."""
    order = random_order(length, _ORDER_KEY, seed, epoch)
    order.setflags(write=False)
    return order


def endless_requests(length: int, share: Share, start: int) -> Iterator[Request]:
    """Batches of training from position `start`, which is 0 or some request's `position`."""
    if start < 0:
        raise ValueError(f"start must be 0 or the position of a batch, got {start}.")
    return _endless_requests(length, share, start)


def pass_requests(length: int, share: Share, limit: int | None) -> Iterator[Request]:
    """Each image once, in order; at most `limit` of them, evenly spread."""
    if limit is not None and limit < 1:
        raise ValueError(f"limit must be at least 1 image, got {limit}.")
    return _pass_requests(length, share, min(limit or length, length))


def evenly_spread(length: int, count: int) -> list[int]:
    """So many of the numbers below `length`, in order."""
    return [i * length // count for i in range(count)]


def _endless_requests(length: int, share: Share, start: int) -> Iterator[Request]:
    everyone = share.batch_size * share.world_size
    for first in count(start, everyone):
        mine = first + share.rank * share.batch_size
        places = [divmod(i, length) for i in range(mine, mine + share.batch_size)]
        indices = [epoch_order(length, share.seed, epoch)[place].item() for epoch, place in places]
        yield Request([epoch for epoch, _ in places], indices, first + everyone)


def _pass_requests(length: int, share: Share, images: int) -> Iterator[Request]:
    everyone, spread = share.batch_size * share.world_size, evenly_spread(length, images)
    for first in range(0, images, everyone):
        mine = first + share.rank * share.batch_size
        indices = spread[mine : mine + share.batch_size]
        if indices:
            yield Request([0] * len(indices), indices, min(first + everyone, images))
