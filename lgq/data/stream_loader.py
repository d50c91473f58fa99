"""Batches of a stream (`lgq.data.stream`): order and content belong to the seed and the readers' places."""

from collections.abc import Iterator
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info

from lgq.data.images import BrokenImage, DataError, ImageDataset
from lgq.data.loader import (
    Batch,
    ImageLoader,
    Loaded,
    LoaderSettings,
    RenderedImage,
    in_processes,
    note_broken,
    rendered,
    stack,
)
from lgq.data.stream import PipeDataset, Place, StreamedImage, endless_images
from lgq.data.transforms import Crop, random_crop
from lgq.errors import LGQError

Places = list[list[int]]
"""A `Place` per reader, first the one whose turn is next; as lists, the form that a checkpoint stores."""


class StreamLoader:
    """Reads a stream for training; evaluation needs random access."""

    def __init__(self, dataset: PipeDataset, settings: LoaderSettings):
        self.dataset, self.settings = dataset, settings
        self.local_readers = max(1, settings.workers)
        self.readers = self.local_readers * settings.world_size
        """Number of readers over all ranks."""
        self.broken: dict[str, str] = {}
        """Images that could not be read so far, with the reason; each was logged once."""
        if len(dataset.commands) < self.readers:
            raise DataError(
                f"{dataset!r} has {len(dataset.commands)} shards for {self.readers} readers "
                f"({settings.world_size} processes of {self.local_readers}), and each needs its own: lower "
                "--workers, or make more shards with `lgq shard --shard-size`."
            )

    def describe(self) -> dict[str, Any]:
        """Describe the stream for config.json: a run resumes only where all but the source is equal."""
        shards, buffer = len(self.dataset.commands), self.dataset.buffer
        return {"source": repr(self.dataset), "shards": shards, "readers": self.readers, "buffer": buffer}

    def stream(self, start: Places | int = 0) -> Iterator[Batch]:
        """Yield endless, shuffled, augmented batches from `start`: 0, or the positions of all ranks."""
        first = self.settings.rank * self.local_readers
        mine = range(first, first + self.local_readers)
        if start == 0:
            return self._stream([Place(reader) for reader in mine])
        places = [Place(*place) for place in start if place[0] in mine] if isinstance(start, list) else []
        if sorted(place.reader for place in places) != list(mine):
            raise LGQError(
                f"start must be 0 or the position of a batch of {self.readers} readers, got {start}."
            )
        return self._stream(places)

    def _stream(self, places: list[Place]) -> Iterator[Batch]:
        reader = _Reader(self.dataset, self.settings, places, self.readers)
        for loaded in in_processes(reader, self.settings):
            note_broken(self.broken, loaded.broken, self.dataset)
            if loaded.error is not None:
                raise DataError(loaded.error)
            # Workers take turns, so the one that has just delivered is the last to come again.
            places = [*places[1:], Place(*loaded.batch.position[0])]
            yield loaded.batch._replace(position=[list(place) for place in places])


def training_loader(dataset: ImageDataset, settings: LoaderSettings) -> ImageLoader | StreamLoader:
    """Return the loader that fits the data; its `stream` of batches says where to continue."""
    if isinstance(dataset, PipeDataset):
        return StreamLoader(dataset, settings)
    return ImageLoader(dataset, settings)


class _Reader(IterableDataset[Loaded]):
    """One reader in each process that iterates it."""

    def __init__(self, dataset: PipeDataset, settings: LoaderSettings, places: list[Place], readers: int):
        self.dataset, self.settings, self.places, self.readers = dataset, settings, places, readers

    def __iter__(self) -> Iterator[Loaded]:
        worker = get_worker_info()
        broken: list[tuple[str, str]] = []
        try:
            for batch in self._batches(self.places[worker.id if worker else 0], broken):
                yield Loaded(batch, list(broken))
                broken.clear()
        except DataError as error:
            yield Loaded(None, list(broken), str(error))

    def _batches(self, start: Place, broken: list[tuple[str, str]]) -> Iterator[Batch]:
        images: list[RenderedImage] = []
        readable_epoch = start.epoch
        for streamed in endless_images(self.dataset, start, seed=self.settings.seed, readers=self.readers):
            if streamed.epoch > readable_epoch + 1:
                name, reason = broken[0]
                example = f"{self.dataset!r}, such as {name} ({reason})"
                raise DataError(f"none of {len(set(broken)):,} images of a reader can be read in {example}.")
            image = self._render(streamed, broken)
            if image is not None:
                readable_epoch = streamed.epoch
                images.append(image)
            if len(images) == self.settings.batch_size:
                yield stack(images, [list(streamed.place)])
                images = []

    def _render(self, streamed: StreamedImage, broken: list[tuple[str, str]]) -> RenderedImage | None:
        def cut(size: tuple[int, int]) -> Crop:
            key = {"seed": self.settings.seed, "epoch": streamed.epoch, "index": streamed.number}
            return random_crop(size, self.settings.crop, **key)

        try:
            return rendered(streamed.image, streamed.number, cut, self.settings.image_size)
        except BrokenImage as error:
            broken.append((error.name, error.reason))
            return None
