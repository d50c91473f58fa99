"""The images of one shard as a command writes it to its output, such as `curl -s URL/train-000.tar`.

The shard is read once, from its first byte to its last. All that could make it silently shorter is an
error that names the shard and how its command ended: an exit status other than 0, an output that stops
before the zeros at a tar's end, a damaged header, and anything behind the end. Images and their label
must follow each other, as WebDataset has them, for a stream has no way back.

Shards that commands write (`pipe:curl -s URL/train-{000..127}.tar`), as an endless stream of images.

    data = open_dataset("pipe:cat train-{000..005}.tar")
    for batch in StreamLoader(data, LoaderSettings(image_size=64)).stream():
        ...

Braces expand as in a shell, to one command a shard, which /bin/sh runs whenever an epoch comes to it.

Readers.  Every worker of every process is a reader; a process without workers is one itself.
Epochs.   Each epoch has its own order of the shards, which belongs to (seed, epoch). Reader i of n takes
          the i-th of them, the (i+n)-th, and so on: each shard is read by one reader, once an epoch. So
          there must be as many shards as readers. A reader goes through its shards of an epoch before
          it begins the next, and does not wait for the others: where shards are uneven, a reader of few
          images is ahead, and falls back when it draws the longer ones.
Shuffle.  A reader takes its images of an epoch in blocks of `buffer`, and hands out each block in an
          order that belongs to (seed, epoch, first image of the block). For each image that leaves, one
          of the next block is read: a reader holds `buffer` images, whatever the length of the stream.
Crops.    They belong to (seed, epoch, shard, place in the shard), as in a data set with random access.
Batches.  Readers of a process take turns, a batch each. A batch may begin in one epoch and end in the
          next. A broken image is left out, named once, and its epoch is shorter by one.
Resuming. A position is the place of each reader: the epoch, the shard and the image where its block
          begins, and how many images of the block are handed out. To go on from there, a reader reads
          that shard again, and none of the earlier ones. Positions hold for the number of readers that
          made them.
Faults.   A command that fails, or a shard that is damaged, ends the stream (`lgq.data.stream`).
"""

import os
import re
import signal
import subprocess
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import count, groupby, islice
from typing import IO, NamedTuple, NoReturn

from lgq.checks import require_at_least
from lgq.data.images import DataError, EncodedImage, ImageDataset
from lgq.data.shards import (
    IMAGE_MEMBERS,
    LABEL_MEMBER,
    NAMING,
    expand_braces,
    member_name,
    parse_label,
    split_key,
)
from lgq.random import Stream, random_order

_LARGEST_MEMBER = 2**28
_LARGEST_HEADER = 2**20
_LARGEST_SKIPPED = 2**34
_EXTENDED_HEADERS = (
    *(tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK),
    *(tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE),
)
_CHUNK = 2**16


class _Member(NamedTuple):
    key: str
    suffix: str
    name: str
    data: bytes


class _StrictTarInfo(tarfile.TarInfo):
    """tarfile takes a damaged or a missing header for the end of the archive; only zeros are one."""

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


def piped_images(command: str, shard: str) -> Iterator[EncodedImage]:
    """Start a command of the shell, and hand out the images of the shard that it writes, in their order."""
    # Its own session: Ctrl-C is for the trainer, which may still need images to finish its step.
    process = subprocess.Popen(
        command, shell=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True
    )
    assert process.stdout is not None
    found = 0
    try:
        for image in _images(process.stdout, shard):
            found += 1
            yield image
        _require_success(process, command, shard)
    except DataError:
        raise
    except Exception as error:  # hostile headers make tarfile raise ValueError, MemoryError, ...
        while process.stdout.read(_CHUNK):
            pass
        _require_success(process, command, shard, f"no whole, uncompressed tar file ({error})")
    finally:
        _end(process)
    if not found:
        raise DataError(f"{shard}, from `{command}`, holds no image; {NAMING}.")


def _images(output: IO[bytes], shard: str) -> Iterator[EncodedImage]:
    seen: set[str] = set()
    for key, group in groupby(_members(output, shard), key=lambda member: member.key):
        members = list(group)
        if key in seen:
            rule = "the members of one key must follow each other"
            raise DataError(f"{members[0].name}: in a stream {rule}; write the shards anew with `lgq shard`.")
        seen.add(key)
        labels = [parse_label(each.data, each.name) for each in members if each.suffix == LABEL_MEMBER]
        for each in members:
            if each.suffix in IMAGE_MEMBERS:
                yield EncodedImage(each.data, labels[-1] if labels else None, each.name)


def _members(output: IO[bytes], shard: str) -> Iterator[_Member]:
    """Images and labels of a tar file that may only be read forwards."""
    with tarfile.open(fileobj=output, mode="r|", tarinfo=_StrictTarInfo, bufsize=_CHUNK) as tar:
        while (info := tar.next()) is not None:
            tar.members = []  # type: ignore[attr-defined]  # it would keep all of them
            _require_near(tar, info)
            key, suffix = split_key(info.name)
            if suffix in (*IMAGE_MEMBERS, LABEL_MEMBER) and info.isreg() and not info.issparse():
                yield _Member(key, suffix, member_name(shard, info.name), _content(tar, info))
        _require_end(tar)


def _require_near(tar: tarfile.TarFile, info: tarfile.TarInfo) -> None:
    """tarfile goes on to the place of the next member though the output has long ended."""
    assert tar.fileobj is not None
    size = tar.offset - tar.fileobj.tell()
    if size > _LARGEST_SKIPPED:
        raise tarfile.ReadError(f"{info.name} claims {size:,} bytes, over {_LARGEST_SKIPPED:,}")


def _content(tar: tarfile.TarFile, info: tarfile.TarInfo) -> bytes:
    if info.size > _LARGEST_MEMBER:
        raise tarfile.ReadError(f"{info.name} claims {info.size:,} bytes, over {_LARGEST_MEMBER:,}")
    file = tar.extractfile(info)
    assert file is not None
    return file.read()


def _require_end(tar: tarfile.TarFile) -> None:
    """Read on to the end of the output, so that the command can finish."""
    assert tar.fileobj is not None
    while rest := tar.fileobj.read(_CHUNK):
        if any(rest):
            raise tarfile.ReadError("more follows behind its end: one command gives one tar file")


def _require_success(
    process: "subprocess.Popen[bytes]", command: str, shard: str, problem: str | None = None
) -> None:
    status = process.wait()
    if status or problem:
        ended = f"was killed by signal {-status}" if status < 0 else f"ended with exit status {status}"
        wrote = f" and wrote {problem}" if problem else ""
        way_out = "run it by itself to see why, or leave the shard out"
        raise DataError(f"{shard} cannot be read: `{command}` {ended}{wrote}; {way_out}.")


def _end(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.stdout is not None
    process.stdout.close()
    process.wait()


PREFIX = "pipe:"
BUFFER = 1_000
"""Images that a reader holds."""

_TAR_FILE = re.compile(r"([^\s/'\"?=]+\.tar)(?![\w.])")


class PipeDataset:
    """Shards that can only be read forwards, one command each.

    It has the form of a data set, but no length and no item: whatever needs these is told so in one line.
    """

    classes: tuple[str, ...] = ()

    def __init__(self, commands: Sequence[str], *, buffer: int = BUFFER):
        require_at_least(1, buffer=buffer)
        if not commands or not all(command.strip() for command in commands):
            raise DataError(f"{PREFIX} needs a command, such as `{PREFIX}cat train-{{000..005}}.tar`.")
        self.commands, self.buffer = tuple(commands), buffer

    @classmethod
    def from_spec(cls, spec: str, *, buffer: int = BUFFER) -> "PipeDataset":
        """Of `pipe:COMMAND`, in which braces stand for one command a shard."""
        return cls(expand_braces(spec.removeprefix(PREFIX)), buffer=buffer)

    def __repr__(self) -> str:
        more = f" and {len(self.commands) - 1} more" if len(self.commands) > 1 else ""
        return f"PipeDataset({self.commands[0]!r}{more})"

    def __len__(self) -> int:
        self._refuse()

    def __getitem__(self, index: int) -> EncodedImage:
        self._refuse()

    def images(self, shard: int) -> Iterator[EncodedImage]:
        """The images of one shard, in their order."""
        command = self.commands[shard]
        named = _TAR_FILE.findall(command)
        return piped_images(command, named[-1] if named else f"shard-{shard:06d}.tar")

    def _refuse(self) -> NoReturn:
        raise DataError(
            f"{self!r} is a stream, of unknown length and in no order but its own: `lgq train` takes it as "
            "--data, by --steps and with --val-data of another kind; for all else fetch the shards, and "
            "pass their path."
        )


def require_random_access(data: ImageDataset, use: str) -> None:
    """Refuse a stream for a use that comes back to the same images."""
    if isinstance(data, PipeDataset):
        raise DataError(
            f"{use} takes the same images again and again, which {data!r}, a stream, cannot give: "
            "fetch the shards and pass their path, or name a folder or `sample`."
        )


class Place(NamedTuple):
    """Where a reader is."""

    reader: int
    epoch: int = 0
    shard: int = 0
    """Which of its shards of the epoch the present block begins in."""
    item: int = 0
    """Which image of that shard is the block's first."""
    drawn: int = 0
    """Images of the block that are handed out."""


class StreamedImage(NamedTuple):
    """An image of a stream."""

    image: EncodedImage
    epoch: int
    number: int
    """Its own in every epoch: shard and place in the shard, in one number."""
    place: Place
    """Where its reader goes on after it."""


class _Item(NamedTuple):
    image: EncodedImage
    number: int
    shard: int
    item: int


def shards_of(data: PipeDataset, seed: int, epoch: int, reader: int, readers: int) -> list[int]:
    """Numbers of the shards that one of so many readers takes in an epoch, in their order."""
    order: list[int] = random_order(len(data.commands), Stream.STREAM_SHARDS, seed, epoch).tolist()
    return order[reader::readers]


def endless_images(data: PipeDataset, start: Place, *, seed: int, readers: int) -> Iterator[StreamedImage]:
    """What a reader hands out from a place on, epoch after epoch."""
    for epoch in count(start.epoch):
        here = start if epoch == start.epoch else Place(start.reader, epoch)
        yield from _one_epoch(data, here, seed, readers)


def _one_epoch(data: PipeDataset, start: Place, seed: int, readers: int) -> Iterator[StreamedImage]:
    reader, epoch, _, _, skipped = start
    shards = shards_of(data, seed, epoch, reader, readers)
    items = _items(data, shards, start.shard, start.item)
    block = list(islice(items, data.buffer))
    while block:
        first, waiting = block[0], dict(enumerate(block))
        block = []
        order = random_order(len(waiting), Stream.STREAM_BLOCK, seed, epoch, first.number)
        for drawn, i in enumerate(order.tolist(), 1):
            item = waiting.pop(i)
            block += islice(items, 1)
            if drawn > skipped:
                place = Place(reader, epoch, first.shard, first.item, drawn)
                yield StreamedImage(item.image, epoch, item.number, place)
        skipped = 0


def _items(data: PipeDataset, shards: list[int], shard: int, item: int) -> Iterator[_Item]:
    """The images of a reader's shards from a place on."""
    for i in range(shard, len(shards)):
        for number, image in enumerate(data.images(shards[i])):
            if i > shard or number >= item:
                yield _Item(image, shards[i] << 32 | number, i, number)
