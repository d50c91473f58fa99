"""Which images are in which batch: a matter of (seed, epoch, position) alone, whoever reads them.

A position counts images over all ranks. Training cuts an endless stream of epochs into batches
without regard to where an epoch ends; evaluation goes through the data once, in order.

Batches whose order and content belong to (seed, epoch, position) alone.   b = images, s = side.

Training reads an endless stream: epoch after epoch, each in its own order, cut into batches without
regard to where an epoch ends. So every batch is full, and nothing is lost or seen twice. A position
in the stream counts images over all ranks: it outlives a change of workers, ranks or batch size.
"""

import ctypes
import gc
import logging
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import count
from math import gcd
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from lgq.data.images import UNLABELLED, BrokenImage, DataError, EncodedImage, ImageDataset, StoredImage
from lgq.data.transforms import Crop, RandomCrop, centre_crop, random_crop, render
from lgq.errors import LGQError
from lgq.random import Stream, random_bits, random_order


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
                raise LGQError(f"{name} must be 1 or more, got {getattr(self, name)}.")
        if not 0 <= self.rank < self.world_size:
            raise LGQError(f"rank must be in [0, {self.world_size}), the world_size, got {self.rank}.")


class BatchPlan(NamedTuple):
    """A batch to be read."""

    epochs: list[int]
    indices: list[int]
    position: int
    """Images taken over all ranks up to and with this batch."""


@lru_cache(maxsize=2)  # a batch may reach into the next epoch
def epoch_order(length: int, seed: int, epoch: int) -> Int[np.ndarray, " length"]:
    """The order in which an epoch visits the images: a permutation that belongs to (seed, epoch)."""
    order = random_order(length, Stream.EPOCH_ORDER, seed, epoch)
    order.setflags(write=False)
    return order


def endless_plans(length: int, share: Share, start: int) -> Iterator[BatchPlan]:
    """Batches of training from position `start`, which is 0 or some plan's `position`."""
    if start < 0:
        raise LGQError(f"start must be 0 or the position of a batch, got {start}.")
    return _endless_plans(length, share, start)


def pass_plans(length: int, share: Share, limit: int | None) -> Iterator[BatchPlan]:
    """Each image once, in order; at most `limit` of them, evenly spread."""
    if limit is not None and limit < 1:
        raise LGQError(f"limit must be at least 1 image, got {limit}.")
    return _pass_plans(length, share, min(limit or length, length))


def evenly_spread(length: int, count: int) -> list[int]:
    """So many of the numbers below `length`, in order."""
    return [i * length // count for i in range(count)]


def _endless_plans(length: int, share: Share, start: int) -> Iterator[BatchPlan]:
    everyone = share.batch_size * share.world_size
    for first in count(start, everyone):
        mine = first + share.rank * share.batch_size
        places = [divmod(i, length) for i in range(mine, mine + share.batch_size)]
        indices = [epoch_order(length, share.seed, epoch)[place].item() for epoch, place in places]
        yield BatchPlan([epoch for epoch, _ in places], indices, first + everyone)


def _pass_plans(length: int, share: Share, images: int) -> Iterator[BatchPlan]:
    everyone, spread = share.batch_size * share.world_size, evenly_spread(length, images)
    for first in range(0, images, everyone):
        mine = first + share.rank * share.batch_size
        indices = spread[mine : mine + share.batch_size]
        if indices:
            yield BatchPlan([0] * len(indices), indices, min(first + everyone, images))


_BATCHES_AHEAD = 4
_M_MMAP_THRESHOLD, _LARGE_BLOCK = -3, 2**17  # of malloc.h, and its value at the start

_log = logging.getLogger(__name__)


class Batch(NamedTuple):
    """Images of one rank, with where they come from."""

    images: Float[Tensor, "b 3 s s"]
    """In [-1, 1]."""
    labels: Int[Tensor, " b"]
    """-1 where an image has none."""
    indices: Int[Tensor, " b"]
    """Of the images in their data set."""
    names: list[str]
    position: int
    """Images taken over all ranks up to and with this batch: where `stream` goes on after it."""


@dataclass(frozen=True, kw_only=True)
class LoaderSettings(Share):
    """How images become batches."""

    image_size: int = 64
    """Side of the square images."""
    crop: RandomCrop = field(default_factory=RandomCrop)
    """How training images are cut; evaluation takes the largest square in the middle."""
    workers: int = 0
    """Processes that decode ahead of the trainer; with 0 it decodes by itself."""
    pin_memory: bool = False
    """Put batches in page-locked memory, from which a GPU copies without waiting."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, least in (("image_size", 1), ("workers", 0)):
            if getattr(self, name) < least:
                raise LGQError(f"{name} must be {least} or more, got {getattr(self, name)}.")


class ImageLoader:
    """Reads a data set for training (`stream`) or evaluation (`one_pass`)."""

    def __init__(self, dataset: ImageDataset, settings: LoaderSettings):
        if len(dataset) == 0:
            raise DataError(f"{dataset!r} holds no image.")
        self.dataset, self.settings = dataset, settings
        self.broken: dict[str, str] = {}
        """Images that could not be read so far, with the reason; each was logged once."""

    def stream(self, start: int = 0) -> Iterator[Batch]:
        """Endless, shuffled, augmented batches from position `start`, which is some batch's `position`.

        In the place of a broken image comes another one, always the same, so that batches stay full.
        """
        return self._stream(endless_plans(len(self.dataset), self.settings, start))

    def one_pass(self, limit: int | None = None, *, may_be_empty: bool = False) -> Iterator[Batch]:
        """Each image once, in order, centre-cropped; at most `limit` of them, evenly spread.

        may_be_empty: an end like any other where no image can be read, instead of an error; for a share
            of a data set, as the others may have images.

        Broken images are left out, and ranks get numbers of batches that differ by one at most:
        reduce over ranks after the pass, not in it.
        """
        plans = list(pass_plans(len(self.dataset), self.settings, limit))
        return self._one_pass(plans, may_be_empty)

    def _stream(self, plans: Iterator[BatchPlan]) -> Iterator[Batch]:
        for batch in self._load(_TrainingReader(self.dataset, self.settings), plans):
            if batch is None:
                raise self._nothing_readable()
            yield batch

    def _one_pass(self, plans: list[BatchPlan], may_be_empty: bool) -> Iterator[Batch]:
        readable = may_be_empty or not plans
        for batch in self._load(_EvaluationReader(self.dataset, self.settings), plans):
            if batch is not None:
                readable = True
                yield batch
        if not readable:
            raise self._nothing_readable()

    def _load(self, reader: "_Reader", plans: Iterable[BatchPlan]) -> Iterator[Batch | None]:
        for loaded in in_processes(reader, self.settings, plans):
            note_broken(self.broken, loaded.broken, self.dataset)
            yield loaded.batch

    def _nothing_readable(self) -> DataError:
        name, reason = next(iter(self.broken.items()))
        some = f"{self.dataset!r}, such as {name} ({reason})"
        return DataError(f"none of {len(self.broken):,} images can be read in {some}.")


class _Loaded(NamedTuple):
    """What a worker sends back: a batch if any image was readable, name and fault of those that were not."""

    batch: Batch | None
    broken: list[tuple[str, str]]


@dataclass(frozen=True)
class Sample:
    """An image of a batch to be."""

    image: Float[Tensor, "3 s s"]
    label: int
    index: int
    name: str


class _Reader(Dataset[_Loaded]):
    """Turns a plan into a batch, in whichever process."""

    def __init__(self, dataset: ImageDataset, settings: LoaderSettings):
        self.dataset, self.settings = dataset, settings

    def __getitem__(self, plan: BatchPlan) -> _Loaded:
        broken: list[tuple[str, str]] = []
        samples = self.samples(plan, broken)
        return _Loaded(stack(samples, plan.position) if samples else None, broken)

    def samples(self, plan: BatchPlan, broken: list[tuple[str, str]]) -> list[Sample]:
        raise NotImplementedError

    def read(
        self, index: int, cut: Callable[[tuple[int, int]], Crop], broken: list[tuple[str, str]]
    ) -> Sample | None:
        try:
            return rendered(self.dataset[index], index, cut, self.settings.image_size)
        except BrokenImage as error:
            broken.append((error.name, error.reason))
            return None


class _EvaluationReader(_Reader):
    def samples(self, plan: BatchPlan, broken: list[tuple[str, str]]) -> list[Sample]:
        tried = (self.read(index, centre_crop, broken) for index in plan.indices)
        return [sample for sample in tried if sample is not None]


class _TrainingReader(_Reader):
    def samples(self, plan: BatchPlan, broken: list[tuple[str, str]]) -> list[Sample]:
        samples = []
        for epoch, index in zip(plan.epochs, plan.indices, strict=True):
            sample = self._first_readable(epoch, index, broken)
            if sample is None:
                return []
            samples.append(sample)
        return samples

    def _first_readable(self, epoch: int, index: int, broken: list[tuple[str, str]]) -> Sample | None:
        # The crop stays that of `index`: a replacement's own crop appears elsewhere in the epoch.
        def cut(size: tuple[int, int]) -> Crop:
            return random_crop(size, self.settings.crop, seed=self.settings.seed, epoch=epoch, index=index)

        candidates = _candidates(len(self.dataset), self.settings.seed, epoch, index)
        tried = (self.read(candidate, cut, broken) for candidate in candidates)
        return next((sample for sample in tried if sample is not None), None)


def _candidates(length: int, seed: int, epoch: int, index: int) -> Iterator[int]:
    """The image itself, then every other one once: in strides, as broken files come in clusters."""
    yield index
    stride = random_bits(Stream.REPLACEMENT, seed, epoch, index) % length
    while gcd(stride, length) != 1:
        stride += 1
    for step in range(1, length):
        yield (index + step * stride) % length


def rendered(encoded: EncodedImage, index: int, cut: Callable[[tuple[int, int]], Crop], side: int) -> Sample:
    """Decode, cut and resize an image; `BrokenImage` where that fails."""
    stored = StoredImage(encoded.data, encoded.name)
    image = render(stored, cut(stored.size), side)
    return Sample(image, UNLABELLED if encoded.label is None else encoded.label, index, encoded.name)


def stack(samples: list[Sample], position: int) -> Batch:
    return Batch(
        images=torch.stack([sample.image for sample in samples]),
        labels=torch.tensor([sample.label for sample in samples]),
        indices=torch.tensor([sample.index for sample in samples]),
        names=[sample.name for sample in samples],
        position=position,
    )


def in_processes(
    reader: Dataset[Any], settings: LoaderSettings, plans: Iterable[Any] | None = None
) -> Iterator[Any]:
    """What a reader makes of each plan, or by itself without any, in `settings.workers` processes."""
    loader: DataLoader[Any] = DataLoader(
        reader,
        batch_size=None,
        sampler=plans,
        num_workers=settings.workers,
        prefetch_factor=_BATCHES_AHEAD if settings.workers else None,
        collate_fn=_as_it_is,
        worker_init_fn=_begin_worker,
        pin_memory=settings.pin_memory,
        # Its own generator: otherwise a restart would draw from the one that the model uses.
        generator=torch.Generator(),
    )
    return iter(loader)


def note_broken(known: dict[str, str], broken: list[tuple[str, str]], dataset: ImageDataset) -> None:
    """Log each broken image the first time that it is met."""
    for name, reason in broken:
        if name not in known:
            known[name] = reason
            _log.warning("broken image no. %d in %r: %s: %s", len(known), dataset, name, reason)


def _as_it_is(loaded: Any) -> Any:
    return loaded


def _begin_worker(_worker: int) -> None:
    # Ctrl-C reaches every process of a terminal, and a trainer without workers cannot finish its step.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The garbage collector writes to all objects that it looks at, and written pages are shared no more.
    gc.freeze()
    _give_large_blocks_back()


def _give_large_blocks_back() -> None:
    """Keep glibc from raising the size of what it returns at once: heaps would grow for a while."""
    with suppress(AttributeError, OSError, TypeError):  # another C library has no such thing
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _LARGE_BLOCK)
