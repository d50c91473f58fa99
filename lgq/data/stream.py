"""Shards that commands write (`pipe:curl -s URL/train-{000..127}.tar`), as an endless stream of images.

    data = open_dataset("pipe:cat train-{000..005}.tar")
    for batch in StreamLoader(data, LoaderSettings(image_size=64)).stream():
        ...

Braces expand as in a shell, to one command per shard, which /bin/sh runs whenever an epoch reaches it.

Readers.  Every worker of every process is a reader; a process without workers is one itself.
Epochs.   Each epoch has its own order of the shards, which belongs to (seed, epoch). Reader i of n takes
          the i-th of them, the (i+n)-th, and so on: each shard is read by one reader, once per epoch. So
          there must be as many shards as readers. A reader goes through its shards of an epoch before it
          begins the next, and does not wait for the others.
Shuffle.  A reader takes its images of an epoch in blocks of `buffer`, and yields each block in an order that
          belongs to (seed, epoch, first image of the block). For each image that leaves, one of the next
          block is read: a reader holds `buffer` images, whatever the length of the stream.
Crops.    They belong to (seed, epoch, shard, place in the shard), as in a data set with random access.
Batches.  Readers of a process take turns, one batch each. A batch may begin in one epoch and end in the
          next. A broken image is left out, logged once, and its epoch is shorter by one.
Resuming. A position is the place of each reader: the epoch, the shard and the image where its block begins,
          and the number of images of the block that were taken. To continue there, a reader reads that shard
          again, and none of the earlier ones. Positions hold for the number of readers that made them.
Faults.   A shard is read once, from its first byte to its last. Anything that could make it silently shorter
          ends the stream with an error that names the shard and how its command ended: an exit status other
          than 0, an output that stops before the zeros at the end of a tar file, a damaged header, and
          anything after the end. Images and their label must follow each other, as WebDataset has them.
"""

import os
import re
import signal
import subprocess
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import count, groupby, islice
from operator import itemgetter
from typing import IO, Any, NamedTuple, NoReturn

from torch.utils.data import IterableDataset, get_worker_info

from lgq.checks import require_at_least
from lgq.data.images import BrokenImage, DataError, EncodedImage, ImageDataset
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
from lgq.data.shards import (
    IMAGE_MEMBERS,
    LABEL_MEMBER,
    NAMING,
    expand_braces,
    member_name,
    parse_label,
    split_key,
)
from lgq.data.transforms import random_crop
from lgq.errors import LGQError
from lgq.random import Stream, random_order

PREFIX = "pipe:"
BUFFER = 1_000
"""Images that a reader holds."""

_LARGEST_MEMBER = 2**28
_LARGEST_HEADER = 2**20
_LARGEST_SKIPPED = 2**34
_EXTENDED_HEADERS = (
    *(tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK),
    *(tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE),
)
_CHUNK = 2**16
_TAR_FILE = re.compile(r"([^\s/'\"?=]+\.tar)(?![\w.])")


class PipeDataset:
    """Shards that can only be read forwards, one command each.

    It has the form of a data set, but no length and no items: asking for them is an error.
    """

    classes: tuple[str, ...] = ()

    def __init__(self, commands: Sequence[str], *, buffer: int = BUFFER):
        require_at_least(1, buffer=buffer)
        if not commands or not all(command.strip() for command in commands):
            raise DataError(f"{PREFIX} needs a command, such as `{PREFIX}cat train-{{000..005}}.tar`.")
        self.commands, self.buffer = tuple(commands), buffer

    @classmethod
    def from_spec(cls, spec: str, *, buffer: int = BUFFER) -> "PipeDataset":
        """Open `pipe:COMMAND`, in which braces stand for one command per shard."""
        return cls(expand_braces(spec.removeprefix(PREFIX)), buffer=buffer)

    def __repr__(self) -> str:
        return f"PipeDataset({self.commands[0]!r}{self._more()})"

    def __str__(self) -> str:
        return f"{PREFIX}{self.commands[0]}{self._more()}"

    def _more(self) -> str:
        return f" and {len(self.commands) - 1} more" if len(self.commands) > 1 else ""

    def __len__(self) -> int:
        self._refuse()

    def __getitem__(self, index: int) -> EncodedImage:
        self._refuse()

    def images(self, shard: int) -> Iterator[EncodedImage]:
        """Yield the images of one shard, in order."""
        command = self.commands[shard]
        files = _TAR_FILE.findall(command)
        return piped_images(command, files[-1] if files else f"shard-{shard:06d}.tar")

    def _refuse(self) -> NoReturn:
        raise DataError(
            f"{self} is a stream, of unknown length and in no order but its own: `lgq train` takes it as "
            "`data`, with `steps` and with `val_data` of another kind; for all else download the shards, "
            "and give their path."
        )


def require_random_access(data: ImageDataset, use: str) -> None:
    """Check that data is not a stream, for a use that reads the same images again."""
    if isinstance(data, PipeDataset):
        raise DataError(
            f"{use} takes the same images again and again, which {data}, a stream, cannot give: "
            "download the shards and give their path, or name a folder or `sample`."
        )


class Place(NamedTuple):
    """Place of a reader in its stream."""

    reader: int
    epoch: int = 0
    shard: int = 0
    """Number, among its shards of the epoch, of the shard where the present block begins."""
    item: int = 0
    """Number, within that shard, of the first image of the block."""
    drawn: int = 0
    """Number of images of the block that were taken."""


Places = list[list[int]]
"""A `Place` per reader, first the one whose turn is next; as lists, the form that a checkpoint stores."""


class StreamedImage(NamedTuple):
    """An image of a stream."""

    image: EncodedImage
    epoch: int
    number: int
    """Shard and place in the shard, in one number: the same in every epoch."""
    place: Place
    """Place at which its reader continues."""


def shards_of(data: PipeDataset, seed: int, epoch: int, reader: int, readers: int) -> list[int]:
    """Return the numbers of the shards that one of the readers takes in an epoch, in order."""
    order: list[int] = random_order(len(data.commands), Stream.STREAM_SHARDS, seed, epoch).tolist()
    return order[reader::readers]


def endless_images(data: PipeDataset, start: Place, *, seed: int, readers: int) -> Iterator[StreamedImage]:
    """Yield the images of a reader from a place on, epoch after epoch."""
    for epoch in count(start.epoch):
        place = start if epoch == start.epoch else Place(start.reader, epoch)
        yield from _one_epoch(data, place, seed, readers)


def _one_epoch(data: PipeDataset, start: Place, seed: int, readers: int) -> Iterator[StreamedImage]:
    reader, epoch, _, _, skipped = start
    shards = shards_of(data, seed, epoch, reader, readers)
    items = _items(data, shards, start.shard, start.item)
    block = list(islice(items, data.buffer))
    while block:
        (_, first, shard, item), waiting = block[0], dict(enumerate(block))
        block = []
        order = random_order(len(waiting), Stream.STREAM_BLOCK, seed, epoch, first)
        for drawn, i in enumerate(order.tolist(), 1):
            image, number, *_ = waiting.pop(i)
            block += islice(items, 1)
            if drawn > skipped:
                yield StreamedImage(image, epoch, number, Place(reader, epoch, shard, item, drawn))
        skipped = 0


def _items(
    data: PipeDataset, shards: list[int], shard: int, item: int
) -> Iterator[tuple[EncodedImage, int, int, int]]:
    """Yield the images of a reader's shards from a place on, with their number, shard and item."""
    for i in range(shard, len(shards)):
        for number, image in enumerate(data.images(shards[i])):
            if i > shard or number >= item:
                yield image, shards[i] << 32 | number, i, number


def piped_images(command: str, shard: str) -> Iterator[EncodedImage]:
    """Start a shell command, and yield the images of the shard that it writes, in order."""
    # Its own session: Ctrl-C is for the trainer, which may still need images to finish its step.
    process = subprocess.Popen(
        command, shell=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True
    )
    assert process.stdout is not None
    images = 0
    try:
        for image in _tar_images(process.stdout, shard):
            images += 1
            yield image
        _require_success(process, command, shard)
    except DataError:
        raise
    except Exception as error:  # hostile headers make tarfile raise ValueError, MemoryError, ...
        while process.stdout.read(_CHUNK):
            pass
        _require_success(process, command, shard, f"no whole, uncompressed tar file ({error})")
    finally:
        if process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        process.stdout.close()
        process.wait()
    if not images:
        raise DataError(f"{shard}, from `{command}`, holds no image; {NAMING}.")


def _tar_images(output: IO[bytes], shard: str) -> Iterator[EncodedImage]:
    seen: set[str] = set()
    for key, group in groupby(_members(output, shard), key=itemgetter(0)):
        members = [(suffix, name, data) for _, suffix, name, data in group]
        if key in seen:
            rule = "the members of one key must follow each other"
            way_out = "write the shards again with `lgq shard`"
            raise DataError(f"{members[0][1]}: in a stream {rule}; {way_out}.")
        seen.add(key)
        labels = [parse_label(data, name) for suffix, name, data in members if suffix == LABEL_MEMBER]
        for suffix, name, data in members:
            if suffix in IMAGE_MEMBERS:
                yield EncodedImage(data, labels[-1] if labels else None, name)


class _StrictTarInfo(tarfile.TarInfo):
    """A header that must be one: tarfile takes a damaged or missing header for the end, which is zeros."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> "_StrictTarInfo":
        try:
            info = super().frombuf(buf, encoding, errors)
        except tarfile.HeaderError as error:
            if len(buf) == tarfile.BLOCKSIZE and not any(buf):
                raise
            raise tarfile.ReadError(f"{error} in place of a member or the end") from error
        if info.type in _EXTENDED_HEADERS and info.size > _LARGEST_HEADER:
            raise tarfile.ReadError(f"a header claims {info.size:,} bytes, over {_LARGEST_HEADER:,}")
        return info


def _members(output: IO[bytes], shard: str) -> Iterator[tuple[str, str, str, bytes]]:
    """Yield key, suffix, name and bytes of images and labels of a tar file that is read forwards only."""
    with tarfile.open(fileobj=output, mode="r|", tarinfo=_StrictTarInfo, bufsize=_CHUNK) as tar:
        assert tar.fileobj is not None
        while (info := tar.next()) is not None:
            tar.members = []  # type: ignore[attr-defined]  # it would keep all of them
            # tarfile skips to the next member even though the output has long ended.
            _require_size(info, tar.offset - tar.fileobj.tell(), _LARGEST_SKIPPED)
            key, suffix = split_key(info.name)
            if suffix in (*IMAGE_MEMBERS, LABEL_MEMBER) and info.isreg() and not info.issparse():
                _require_size(info, info.size, _LARGEST_MEMBER)
                file = tar.extractfile(info)
                assert file is not None
                yield key, suffix, member_name(shard, info.name), file.read()
        # To the end of the output, so that the command can finish.
        while rest := tar.fileobj.read(_CHUNK):
            if any(rest):
                raise tarfile.ReadError("more follows after its end: one command gives one tar file")


def _require_size(info: tarfile.TarInfo, size: int, largest: int) -> None:
    if size > largest:
        raise tarfile.ReadError(f"{info.name} claims {size:,} bytes, over {largest:,}")


def _require_success(
    process: "subprocess.Popen[bytes]", command: str, shard: str, problem: str | None = None
) -> None:
    status = process.wait()
    if status or problem:
        ended = f"was killed by signal {-status}" if status < 0 else f"ended with exit status {status}"
        wrote = f" and wrote {problem}" if problem else ""
        way_out = "run it by itself to see why, or leave the shard out"
        raise DataError(f"{shard} cannot be read: `{command}` {ended}{wrote}; {way_out}.")


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
                f"{dataset} has {len(dataset.commands)} shards for {self.readers} readers "
                f"({settings.world_size} processes of {self.local_readers}), and each needs its own: lower "
                "`workers`, or make more shards with `lgq shard --shard-size`."
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
                f"`start` must be 0 or the position of a batch of {self.readers} readers, got {start}."
            )
        return self._stream(places)

    def _stream(self, places: list[Place]) -> Iterator[Batch]:
        reader = _StreamReader(self.dataset, self.settings, places, self.readers)
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


class _StreamReader(IterableDataset[Loaded]):
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
        settings, readable_epoch = self.settings, start.epoch
        images: list[RenderedImage] = []
        for streamed in endless_images(self.dataset, start, seed=settings.seed, readers=self.readers):
            if streamed.epoch > readable_epoch + 1:
                name, reason = broken[0]
                example = f"{self.dataset!r}, such as {name} ({reason})"
                raise DataError(f"none of {len(set(broken)):,} images of a reader can be read in {example}.")
            side, epoch, number = settings.image_size, streamed.epoch, streamed.number
            cut = partial(
                random_crop, settings=settings.crop, side=side, seed=settings.seed, epoch=epoch, index=number
            )
            try:
                images.append(rendered(streamed.image, number, cut, side))
            except BrokenImage as error:
                broken.append((error.name, error.reason))
                continue
            readable_epoch = epoch
            if len(images) == settings.batch_size:
                yield stack(images, [list(streamed.place)])
                images = []
