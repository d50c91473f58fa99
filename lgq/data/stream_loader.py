"""Batches of a stream (`lgq.data.stream`): order and content belong to the seed and the readers' places.

b = images, s = side.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.data import IterableDataset, get_worker_info

from lgq.data.images import BrokenImage, DataError, ImageDataset
from lgq.data.loader import ImageLoader, LoaderSettings, Sample, in_processes, note_broken, rendered, stack
from lgq.data.stream import PipeDataset, Place, StreamedImage, endless_images
from lgq.data.transforms import Crop, random_crop
from lgq.errors import LGQError

Places = list[list[int]]
"""A `Place` for each reader, the one whose turn is next first; lists, for a checkpoint holds nothing else."""


class StreamBatch(NamedTuple):
    """Images of one rank, with where they come from."""

    images: Float[Tensor, "b 3 s s"]
    """In [-1, 1]."""
    labels: Int[Tensor, " b"]
    """-1 where an image has none."""
    indices: Int[Tensor, " b"]
    """Of the images in their stream: the same in every epoch."""
    names: list[str]
    position: Places
    """Where the readers of this rank go on after this batch."""


class StreamLoader:
    """Reads a stream for training; a pass for evaluation needs random access."""

    def __init__(self, dataset: PipeDataset, settings: LoaderSettings):
        self.dataset, self.settings = dataset, settings
        self.readers_here = max(1, settings.workers)
        self.readers = self.readers_here * settings.world_size
        """Over all ranks."""
        self.broken: dict[str, str] = {}
        """Images that could not be read so far, with the reason; each was logged once."""
        if len(dataset.commands) < self.readers:
            raise DataError(
                f"{dataset!r} has {len(dataset.commands)} shards for {self.readers} readers "
                f"({settings.world_size} processes of {self.readers_here}), and each needs its own: lower "
                "--workers, or make more shards with `lgq shard --shard-size`."
            )

    def describe(self) -> dict[str, Any]:
        """What config.json says of the stream: a run goes on only where all but the source is equal."""
        shards, buffer = len(self.dataset.commands), self.dataset.buffer
        return {"source": repr(self.dataset), "shards": shards, "readers": self.readers, "buffer": buffer}

    def stream(self, start: Places | int = 0) -> Iterator[StreamBatch]:
        """Endless, shuffled, augmented batches from `start`: 0, or the positions of one step of all ranks."""
        return self._stream(self._places_here(start))

    def _places_here(self, start: Places | int) -> list[Place]:
        first = self.settings.rank * self.readers_here
        mine = range(first, first + self.readers_here)
        if start == 0:
            return [Place(reader) for reader in mine]
        places = [Place(*place) for place in start if place[0] in mine] if isinstance(start, list) else []
        if sorted(place.reader for place in places) != list(mine):
            raise LGQError(
                f"start must be 0 or the position of a batch of {self.readers} readers, got {start}."
            )
        return places

    def _stream(self, places: list[Place]) -> Iterator[StreamBatch]:
        reader = _Reader(self.dataset, self.settings, places, self.readers)
        for loaded in in_processes(reader, self.settings):
            note_broken(self.broken, loaded.broken, self.dataset)
            if loaded.error is not None:
                raise DataError(loaded.error)
            # Workers take turns, so the one that has just delivered is the last to come again.
            places = [*places[1:], Place(*loaded.batch.position[0])]
            yield loaded.batch._replace(position=[list(place) for place in places])


def training_loader(dataset: ImageDataset, settings: LoaderSettings) -> ImageLoader | StreamLoader:
    """The loader that fits the data; each has a `stream` of batches, which knows where to go on."""
    return (
        StreamLoader(dataset, settings)
        if isinstance(dataset, PipeDataset)
        else ImageLoader(dataset, settings)
    )


class _Loaded(NamedTuple):
    """What a worker sends back; an error as a value, since as an exception it would bring its traceback."""

    batch: StreamBatch | None
    broken: list[tuple[str, str]]
    error: str | None = None


class _Reader(IterableDataset[_Loaded]):
    """One reader in each process that iterates it."""

    def __init__(self, dataset: PipeDataset, settings: LoaderSettings, places: list[Place], readers: int):
        self.dataset, self.settings, self.places, self.readers = dataset, settings, places, readers

    def __iter__(self) -> Iterator[_Loaded]:
        worker = get_worker_info()
        broken: list[tuple[str, str]] = []
        try:
            for batch in self._batches(self.places[worker.id if worker else 0], broken):
                yield _Loaded(batch, list(broken))
                broken.clear()
        except DataError as error:
            yield _Loaded(None, list(broken), str(error))

    def _batches(self, start: Place, broken: list[tuple[str, str]]) -> Iterator[StreamBatch]:
        samples: list[Sample] = []
        readable = start.epoch
        for streamed in endless_images(self.dataset, start, seed=self.settings.seed, readers=self.readers):
            if streamed.epoch > readable + 1:
                raise _nothing_readable(self.dataset, broken)
            sample = self._sample(streamed, broken)
            if sample is not None:
                readable = streamed.epoch
                samples.append(sample)
            if len(samples) == self.settings.batch_size:
                yield StreamBatch(*stack(samples, 0)[:-1], [list(streamed.place)])
                samples = []

    def _sample(self, streamed: StreamedImage, broken: list[tuple[str, str]]) -> Sample | None:
        def cut(size: tuple[int, int]) -> Crop:
            key = {"seed": self.settings.seed, "epoch": streamed.epoch, "index": streamed.number}
            return random_crop(size, self.settings.crop, **key)

        try:
            return rendered(streamed.image, streamed.number, cut, self.settings.image_size)
        except BrokenImage as error:
            broken.append((error.name, error.reason))
            return None


def _nothing_readable(dataset: PipeDataset, broken: list[tuple[str, str]]) -> DataError:
    name, reason = broken[0]
    count = len(set(broken))
    return DataError(
        f"none of {count:,} images of a reader can be read in {dataset!r}, such as {name} ({reason})."
    )
