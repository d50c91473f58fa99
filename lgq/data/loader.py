"""Batches of images whose order and content belong to (seed, epoch, position) alone.   b = images, s = side.

Training reads an endless stream: epoch after epoch, each in its own order, cut into batches regardless of
where an epoch ends. So every batch is full, and no image is lost or seen twice. A position counts images
over all ranks: it outlives a change of workers, ranks or batch size. Evaluation reads the data once, in
order.
"""

import ctypes
import gc
import logging
import signal
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import count
from math import gcd
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from lgq.checks import require_at_least
from lgq.data.images import UNLABELLED, BrokenImage, DataError, EncodedImage, ImageDataset, StoredImage
from lgq.data.transforms import Crop, RandomCrop, centre_crop, random_crop, render
from lgq.distributed import rank, world_size
from lgq.errors import LGQError, LGQWarning
from lgq.random import Stream, random_bits, random_order

_BATCHES_AHEAD = 4
_M_MMAP_THRESHOLD, _LARGE_BLOCK = -3, 2**17  # of malloc.h, and its initial value

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class BatchSettings:
    """The share of each global batch that a process takes."""

    batch_size: int = 32
    """Images per rank and batch."""
    seed: int = 0
    """Seed of the order of each epoch and of all augmentation."""
    rank: int = 0
    """Number of this process."""
    world_size: int = 1
    """Number of processes that share the data."""

    def __post_init__(self) -> None:
        require_at_least(1, batch_size=self.batch_size, world_size=self.world_size)
        if not 0 <= self.rank < self.world_size:
            raise LGQError(f"`rank` must be in [0, {self.world_size}), the `world_size`, got {self.rank}.")


@dataclass(frozen=True, kw_only=True)
class LoaderSettings(BatchSettings):
    """Settings of how images become batches."""

    image_size: int = 64
    """Side of the square images."""
    crop: RandomCrop = field(default_factory=RandomCrop)
    """Crop of training images; evaluation takes the largest centre square, or the one of `image_size` if
    crops are at the image's own resolution."""
    workers: int = 0
    """Processes that decode images ahead; 0 decodes in this process."""
    pin_memory: bool = False
    """Put batches in page-locked memory, from which a GPU copies without waiting."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(1, image_size=self.image_size)
        require_at_least(0, workers=self.workers)

    @classmethod
    def of_process(cls, device: torch.device, **settings: Any) -> "LoaderSettings":
        """Return settings for the share of this process, whose batches go to `device`."""
        return cls(**settings, pin_memory=device.type == "cuda", rank=rank(), world_size=world_size())


class BatchPlan(NamedTuple):
    """Images that form a batch."""

    epochs: list[int]
    indices: list[int]
    position: int
    """Number of images taken over all ranks, including this batch."""


@lru_cache(maxsize=2)  # a batch may reach into the next epoch
def epoch_order(length: int, seed: int, epoch: int) -> Int[np.ndarray, " length"]:
    """Return the order of the images in an epoch: a permutation that belongs to (seed, epoch)."""
    order = random_order(length, Stream.EPOCH_ORDER, seed, epoch)
    order.setflags(write=False)
    return order


def endless_plans(length: int, share: BatchSettings, start: int) -> Iterator[BatchPlan]:
    """Plan batches of training from position `start`, which is 0 or the `position` of a plan."""
    require_at_least(0, start=start)
    global_batch = share.batch_size * share.world_size

    def plan(first: int) -> BatchPlan:
        mine = first + share.rank * share.batch_size
        visits = [divmod(i, length) for i in range(mine, mine + share.batch_size)]
        indices = [epoch_order(length, share.seed, epoch)[place].item() for epoch, place in visits]
        return BatchPlan([epoch for epoch, _ in visits], indices, first + global_batch)

    return map(plan, count(start, global_batch))


def pass_plans(length: int, share: BatchSettings, limit: int | None) -> list[BatchPlan]:
    """Plan batches of each image once, in order; of at most `limit` images, evenly spread."""
    if limit is not None:
        require_at_least(1, limit=limit)
    images = min(limit or length, length)
    spread, global_batch = evenly_spread(length, images), share.batch_size * share.world_size
    plans = []
    for first in range(0, images, global_batch):
        mine = first + share.rank * share.batch_size
        if indices := spread[mine : mine + share.batch_size]:
            plans.append(BatchPlan([0] * len(indices), indices, min(first + global_batch, images)))
    return plans


def evenly_spread(length: int, number: int) -> list[int]:
    """Return `number` of the integers below `length`, in order."""
    return [i * length // number for i in range(number)]


class Batch(NamedTuple):
    """Images of one rank, with where they come from."""

    images: Float[Tensor, "b 3 s s"]
    """Pixels in [-1, 1]."""
    labels: Int[Tensor, " b"]
    """Class numbers, -1 where an image has none."""
    indices: Int[Tensor, " b"]
    """Numbers of the images in their data set."""
    names: list[str]
    position: Any
    """Position at which `stream` continues: the number of images taken over all ranks, including this batch,
    or the places of the readers of a `StreamLoader`."""
    sides: Int[Tensor, " b"]
    """Shorter side of each crop before it was resized: an image with a smaller one than `image_size` was
    enlarged."""


class ImageLoader:
    """Reads a data set for training (`stream`) or evaluation (`one_pass`)."""

    def __init__(self, dataset: ImageDataset, settings: LoaderSettings):
        if len(dataset) == 0:
            raise DataError(f"{dataset} holds no image.")
        self.dataset, self.settings = dataset, settings
        self.broken: dict[str, str] = {}
        """Images that could not be read so far, with the reason; each was logged once."""

    def stream(self, start: int = 0) -> Iterator[Batch]:
        """Yield endless, shuffled, augmented batches from position `start`, the `position` of a batch.

        A broken image is replaced by another one, always the same, so that batches stay full.
        """
        plans = endless_plans(len(self.dataset), self.settings, start)
        return self._load(plans, training=True, may_be_empty=False)

    def one_pass(self, limit: int | None = None, *, may_be_empty: bool = False) -> Iterator[Batch]:
        """Yield each image once, in order, centre-cropped; at most `limit` of them, evenly spread.

        may_be_empty: end without an error where no image can be read; for a part of a data set.

        Broken images are left out, and the ranks' numbers of batches differ by up to one: reduce over ranks
        after the pass, not in it.
        """
        plans = pass_plans(len(self.dataset), self.settings, limit)
        return self._load(plans, training=False, may_be_empty=may_be_empty or not plans)

    def _load(self, plans: Iterable[BatchPlan], *, training: bool, may_be_empty: bool) -> Iterator[Batch]:
        reader = _Reader(self.dataset, self.settings, training=training)
        readable = may_be_empty
        for loaded in in_processes(reader, self.settings, plans):
            note_broken(self.broken, loaded.broken, self.dataset)
            if loaded.batch is not None:
                readable = True
                yield loaded.batch
            elif training:  # the reader has tried every image
                readable = False
                break
        if not readable:
            name, reason = next(iter(self.broken.items()))
            example = f"{self.dataset}, such as {name} ({reason})"
            raise DataError(f"none of {len(self.broken):,} images can be read in {example}.")


class Loaded(NamedTuple):
    """Result of a worker."""

    batch: Batch | None
    """None where no image could be read."""
    broken: list[tuple[str, str]]
    """Name and reason of each broken image."""
    error: str | None = None
    """Error as a value, since an exception would bring the traceback of its process."""


class RenderedImage(NamedTuple):
    """An image of a batch."""

    image: Float[Tensor, "3 s s"]
    label: int
    number: int
    """Number of the image in its data set."""
    name: str
    side: int
    """Shorter side of its crop in pixels of the file."""


class _Reader(Dataset[Loaded]):
    """Turns a plan into a batch, in whichever process."""

    def __init__(self, dataset: ImageDataset, settings: LoaderSettings, *, training: bool):
        self.dataset, self.settings, self.training = dataset, settings, training

    def __getitem__(self, plan: BatchPlan) -> Loaded:
        broken: list[tuple[str, str]] = []
        images = []
        for epoch, index in zip(plan.epochs, plan.indices, strict=True):
            image = self._first_readable(epoch, index, broken)
            if image is not None:
                images.append(image)
            elif self.training:  # which has tried every image
                return Loaded(None, broken)
        return Loaded(stack(images, plan.position) if images else None, broken)

    def _first_readable(self, epoch: int, index: int, broken: list[tuple[str, str]]) -> RenderedImage | None:
        settings = self.settings
        side, crop = settings.image_size, settings.crop
        cut: Callable[[tuple[int, int]], Crop]
        cut = partial(centre_crop, most=side if crop.own_resolution else None)
        candidates: Iterable[int] = (index,)
        if self.training:
            # The crop stays that of `index`: a replacement's own crop appears elsewhere in the epoch.
            cut = partial(random_crop, settings=crop, side=side, seed=settings.seed, epoch=epoch, index=index)
            candidates = _candidates(len(self.dataset), settings.seed, epoch, index)
        for candidate in candidates:
            try:
                return rendered(self.dataset[candidate], candidate, cut, side)
            except BrokenImage as error:
                broken.append((error.name, error.reason))
        return None


def _candidates(length: int, seed: int, epoch: int, index: int) -> Iterator[int]:
    """Yield the image itself, then every other one once: in strides, as broken files come in clusters."""
    yield index
    stride = random_bits(Stream.REPLACEMENT, seed, epoch, index) % length
    while gcd(stride, length) != 1:
        stride += 1
    for step in range(1, length):
        yield (index + step * stride) % length


def rendered(
    encoded: EncodedImage, index: int, cut: Callable[[tuple[int, int]], Crop], side: int
) -> RenderedImage:
    """Decode, crop and resize an image; `BrokenImage` where that fails."""
    stored = StoredImage(encoded.data, encoded.name)
    crop = cut(stored.size)
    label = UNLABELLED if encoded.label is None else encoded.label
    return RenderedImage(
        render(stored, crop, side), label, index, encoded.name, side=min(crop.width, crop.height)
    )


def loaded_onto(device: torch.device, images: Float[Tensor, "b 3 s s"]) -> Float[Tensor, "b 3 s s"]:
    """Copy the images of a batch to a device, in the background where that is safe."""
    # From memory that is not pinned, MPS would go on reading after the batch is freed.
    return images.to(device, non_blocking=images.is_pinned())


def stack(images: list[RenderedImage], position: Any) -> Batch:
    pixels, labels, indices, names, sides = zip(*images, strict=True)
    return Batch(
        images=torch.stack(pixels),
        labels=torch.tensor(labels),
        indices=torch.tensor(indices),
        names=list(names),
        position=position,
        sides=torch.tensor(sides),
    )


def warn_of_enlarged(sides: Int[Tensor, " n"], image_size: int, factor: int) -> None:
    """Warn on the first process if images were enlarged, and name the size that enlarges none.

    sides: those of the crops of all images that were read.
    factor: number of which sizes are multiples.
    """
    enlarged, smallest = int((sides < image_size).sum()), int(sides.min()) // factor * factor
    if not enlarged or rank() != 0:
        return
    way_out = f"`image_size` {smallest} enlarges none" if smallest else "Leave such small images out"
    are, were = ("is", "was") if enlarged == 1 else ("are", "were")
    warnings.warn(
        f"{enlarged:,} of {len(sides):,} images {are} smaller than {image_size} x {image_size} pixels and "
        f"{were} enlarged: figures and tokens are not those of the images as they are. {way_out}.",
        LGQWarning,
        stacklevel=3,
    )


def in_processes(
    reader: Dataset[Any], settings: LoaderSettings, plans: Iterable[Any] | None = None
) -> Iterator[Any]:
    """Yield what a reader makes of each plan, or by itself without plans, in `settings.workers` processes."""
    loader: DataLoader[Any] = DataLoader(
        reader,
        batch_size=None,
        sampler=plans,
        num_workers=settings.workers,
        prefetch_factor=_BATCHES_AHEAD if settings.workers else None,
        collate_fn=_unchanged,  # no lambda: it would not reach a spawned process
        worker_init_fn=_start_worker,
        pin_memory=settings.pin_memory,
        # Its own generator: otherwise a restart would draw from the one that the model uses.
        generator=torch.Generator(),
    )
    return iter(loader)


def note_broken(known: dict[str, str], broken: list[tuple[str, str]], dataset: ImageDataset) -> None:
    """Log each broken image the first time that it occurs."""
    for name, reason in broken:
        if name not in known:
            known[name] = reason
            _log.warning("broken image no. %d in %s: %s: %s", len(known), dataset, name, reason)


def _unchanged(loaded: Any) -> Any:
    return loaded


def _start_worker(_worker: int) -> None:
    # Ctrl-C reaches every process of a terminal, and a trainer without workers cannot finish its step.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The garbage collector writes to all objects that it looks at, and written pages are no longer shared.
    gc.freeze()
    # Keeps glibc from raising the size of blocks that it returns at once, which lets heaps grow for a while.
    with suppress(AttributeError, OSError, TypeError):  # another C library has no such function
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _LARGE_BLOCK)
