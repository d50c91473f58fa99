"""Batches whose order and content belong to (seed, epoch, position) alone.   b = images, s = side.

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
from math import gcd
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from lgq.data.images import UNLABELLED, BrokenImage, DataError, EncodedImage, ImageDataset, StoredImage
from lgq.data.requests import Request, Share, endless_requests, pass_requests
from lgq.data.transforms import Crop, RandomCrop, centre_crop, random_bits, random_crop, render

_REPLACEMENT_KEY = 3  # every use of `random_bits` has its own first part
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
class Loading(Share):
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
                raise ValueError(f"{name} must be {least} or more, got {getattr(self, name)}.")


class ImageLoader:
    """Reads a data set for training (`stream`) or evaluation (`one_pass`)."""

    def __init__(self, dataset: ImageDataset, settings: Loading):
        if len(dataset) == 0:
            raise DataError(f"{dataset!r} holds no image.")
        self.dataset, self.settings = dataset, settings
        self.broken: dict[str, str] = {}
        """Images that could not be read so far, with the reason; each was logged once."""

    def stream(self, start: int = 0) -> Iterator[Batch]:
        """Endless, shuffled, augmented batches from position `start`, which is some batch's `position`.

        In the place of a broken image comes another one, always the same, so that batches stay full.
        """
        return self._stream(endless_requests(len(self.dataset), self.settings, start))

    def one_pass(self, limit: int | None = None, *, may_be_empty: bool = False) -> Iterator[Batch]:
        """Each image once, in order, centre-cropped; at most `limit` of them, evenly spread.

        may_be_empty: an end like any other where no image can be read, instead of an error; for a share
            of a data set, as the others may have images.

        Broken images are left out, and ranks get numbers of batches that differ by one at most:
        reduce over ranks after the pass, not in it.
        """
        requests = list(pass_requests(len(self.dataset), self.settings, limit))
        return self._one_pass(requests, may_be_empty)

    def _stream(self, requests: Iterator[Request]) -> Iterator[Batch]:
        for batch in self._load(_TrainingReader(self.dataset, self.settings), requests):
            if batch is None:
                raise self._nothing_readable()
            yield batch

    def _one_pass(self, requests: list[Request], may_be_empty: bool) -> Iterator[Batch]:
        readable = may_be_empty or not requests
        for batch in self._load(_EvaluationReader(self.dataset, self.settings), requests):
            if batch is not None:
                readable = True
                yield batch
        if not readable:
            raise self._nothing_readable()

    def _load(self, reader: "_Reader", requests: Iterable[Request]) -> Iterator[Batch | None]:
        for loaded in in_processes(reader, self.settings, requests):
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
    """Turns a request into a batch, in whichever process."""

    def __init__(self, dataset: ImageDataset, settings: Loading):
        self.dataset, self.settings = dataset, settings

    def __getitem__(self, request: Request) -> _Loaded:
        broken: list[tuple[str, str]] = []
        samples = self.samples(request, broken)
        return _Loaded(stack(samples, request.position) if samples else None, broken)

    def samples(self, request: Request, broken: list[tuple[str, str]]) -> list[Sample]:
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
    def samples(self, request: Request, broken: list[tuple[str, str]]) -> list[Sample]:
        tried = (self.read(index, centre_crop, broken) for index in request.indices)
        return [sample for sample in tried if sample is not None]


class _TrainingReader(_Reader):
    def samples(self, request: Request, broken: list[tuple[str, str]]) -> list[Sample]:
        samples = []
        for epoch, index in zip(request.epochs, request.indices, strict=True):
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
    stride = random_bits(_REPLACEMENT_KEY, seed, epoch, index) % length
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
    reader: Dataset[Any], settings: Loading, requests: Iterable[Any] | None = None
) -> Iterator[Any]:
    """What a reader makes of each request, or by itself without any, in `settings.workers` processes."""
    loader: DataLoader[Any] = DataLoader(
        reader,
        batch_size=None,
        sampler=requests,
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
