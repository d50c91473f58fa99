"""The record of shards that `lgq shard` writes, while they are made and when they are done.

A directory of shards holds

    shard-000000.tar ...    `<key>.jpg|png|webp`, the bytes of each image as they were, and `<key>.cls`
    classes.json            names of the classes, where there are any: label i is item i
    index.json              written last: what was sharded and how; images and bytes of each shard
    unfinished.json         the same of the shards so far, until index.json is there

Both records are UTF-8 JSON with a checksum of themselves.

One shard, written image by image into a file that gets its name when it is whole.

Writing WebDataset shards of any data set: the bytes of each image as they are, and its label.

    plan = plan_shards(open_dataset("photos"), "shards", shard_size=10_000, seed=0)
    index = write_shards(plan)
    open_dataset(f"shards/{index.pattern}")

Whenever the process ends, the same calls go on, and the shards are the same, byte for byte: no header
holds a time or an owner, each shard is renamed to its place when it is whole, and it belongs to the data
and the settings alone. One process a directory.
"""

import io
import os
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from torch.utils.data import Dataset

from lgq.checks import require_at_least
from lgq.config import ConfigError, from_json, to_json
from lgq.data.images import BrokenImage, DataError, EncodedImage, ImageDataset, StoredImage
from lgq.data.loader import LoaderSettings, in_processes
from lgq.data.shards import CLASSES, LABEL_MEMBER, safe_key
from lgq.files import (
    DamagedFileError,
    beside,
    make_directory,
    replace_file,
    replace_json,
    sealed_json,
    sync_directory,
    unsealed_json,
)
from lgq.progress import Progress, unwatched
from lgq.random import Stream, random_order

FORMAT = 1
INDEX, UNFINISHED = "index.json", "unfinished.json"


@dataclass(frozen=True, kw_only=True)
class Sharding:
    """What is sharded, and how: shards are continued only where all of it is equal."""

    source: str
    """The data set, as it shows itself."""
    source_images: int
    """Images in the data set, with those that cannot be read."""
    classes: tuple[str, ...] = ()
    """Label i is `classes[i]`."""
    shard_size: int = 10_000
    """Images a shard; the last one may have fewer."""
    shard_bytes: int | None = None
    """Bytes of images a shard, if that ends it sooner; None has no such limit."""
    seed: int | None = None
    """Of the order of the images; None leaves it as it is."""

    def __post_init__(self) -> None:
        require_at_least(1, source_images=self.source_images, shard_size=self.shard_size)
        if self.shard_bytes is not None:
            require_at_least(1, shard_bytes=self.shard_bytes)
        if self.seed is not None:
            require_at_least(0, seed=self.seed)


@dataclass(frozen=True, kw_only=True)
class ShardRecord:
    """A shard that is done."""

    file: str
    images: int
    bytes: int
    """Of the file."""
    taken: int
    """Images of the data set that it covers, with those that cannot be read."""
    broken: tuple[tuple[str, str], ...]
    """Name and reason of each image that was left out."""


@dataclass(frozen=True, kw_only=True)
class ShardIndex:
    """The content of index.json."""

    format: int
    sharding: Sharding
    images: int
    bytes: int
    shards: tuple[ShardRecord, ...]

    @property
    def broken(self) -> dict[str, str]:
        """Images that were left out, with the reason."""
        return dict(pair for shard in self.shards for pair in shard.broken)

    @property
    def pattern(self) -> str:
        """Of the shards' files, as `open_dataset` takes it."""
        last = len(self.shards) - 1
        return shard_file(f"{{000000..{last:06d}}}" if last else "000000")


def shard_file(number: str) -> str:
    return f"shard-{number}.tar"


def read_index(folder: Path, sharding: Sharding) -> ShardIndex:
    """What is in a directory so far; whatever is not of the same sharding is refused."""
    for path in (folder / INDEX, folder / UNFINISHED):
        if path.exists():
            found = _read(path)
            _require_same(found.sharding, sharding, folder)
            return found
    if folder.exists() and not folder.is_dir():
        raise DataError(f"{folder} is a file: choose a directory for the shards.")
    if folder.is_dir() and any(not path.name.startswith((".", UNFINISHED)) for path in folder.iterdir()):
        raise DataError(f"{folder} holds something else than shards of `lgq shard`: choose a new directory.")
    return index_of(sharding, [])


def index_of(sharding: Sharding, shards: list[ShardRecord]) -> ShardIndex:
    images, size = sum(shard.images for shard in shards), sum(shard.bytes for shard in shards)
    return ShardIndex(format=FORMAT, sharding=sharding, images=images, bytes=size, shards=tuple(shards))


def write_index(path: Path, index: ShardIndex) -> None:
    make_directory(path.parent)
    replace_file(path, sealed_json(to_json(index)))


def _read(path: Path) -> ShardIndex:
    try:
        return from_json(ShardIndex, unsealed_json(path.read_bytes()))
    except (OSError, DamagedFileError, ConfigError) as error:
        raise DataError(f"cannot go on with {path} ({error}): choose another directory.") from error


def _require_same(found: Sharding, wanted: Sharding, folder: Path) -> None:
    for field in fields(Sharding):
        before, now = getattr(found, field.name), getattr(wanted, field.name)
        if before != now:
            raise DataError(
                f"{folder} holds other shards: their {field.name} is {before!r:.80}, not {now!r:.80}. Repeat "
                "their arguments, or choose another directory."
            )


class Checked(NamedTuple):
    """An image of a data set, and whether it can be stored."""

    number: int
    """In the data set."""
    image: EncodedImage | None
    suffix: str
    broken: tuple[str, str] | None
    """Name and reason, where there is no image."""


class NewShard:
    """A shard to fill within a block; where the block fails, nothing is left."""

    record: ShardRecord
    """Once the block has ended."""

    def __init__(self, folder: Path, number: int, sharding: Sharding):
        self._path, self._sharding = folder / shard_file(f"{number:06d}"), sharding
        self._partial = beside(self._path, "partial")
        self._keys: set[str] = set()
        self._bytes, self._taken = 0, 0
        self._broken: list[tuple[str, str]] = []

    def __enter__(self) -> "NewShard":
        self._file = self._partial.open("wb")
        # Without what differs between systems: one dialect, one encoding, no time, no owner.
        self._tar = tarfile.open(fileobj=self._file, mode="w", format=tarfile.GNU_FORMAT, encoding="utf-8")
        return self

    def has_room_for(self, checked: Checked) -> bool:
        """A broken image needs none, and an empty shard has room for any image."""
        if checked.image is None or not self._keys:
            return True
        limit = self._sharding.shard_bytes
        fits = limit is None or self._bytes + len(checked.image.data) <= limit
        return fits and len(self._keys) < self._sharding.shard_size

    def take(self, checked: Checked) -> None:
        self._taken += 1
        if checked.broken is not None:
            self._broken.append(checked.broken)
        if checked.image is not None:
            key = self._new_key(checked.image.name, checked.number)
            self._add(f"{key}.{checked.suffix}", checked.image.data)
            if checked.image.label is not None:
                self._add(f"{key}.{LABEL_MEMBER}", str(checked.image.label).encode())
            self._bytes += len(checked.image.data)

    def require_images(self) -> None:
        """Only where all images are broken a shard is empty."""
        if not self._keys:
            (name, reason), count = self._broken[0], len(self._broken)
            source = self._sharding.source
            raise DataError(f"none of {count:,} images can be stored of {source}, such as {name} ({reason}).")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._publish()
        finally:
            self._file.close()
            with suppress(OSError):
                self._partial.unlink(missing_ok=True)

    def _publish(self) -> None:
        self._tar.close()
        self._file.flush()
        os.fsync(self._file.fileno())
        size = self._file.tell()
        os.replace(self._partial, self._path)
        sync_directory(self._path.parent)
        self.record = ShardRecord(
            file=self._path.name,
            images=len(self._keys),
            bytes=size,
            taken=self._taken,
            broken=tuple(self._broken),
        )

    def _new_key(self, name: str, number: int) -> str:
        key = safe_key(name)
        while key in self._keys:
            key = f"{key}-{number}"
        self._keys.add(key)
        return key

    def _add(self, name: str, data: bytes) -> None:
        info = tarfile.TarInfo(name)
        info.size = len(data)
        self._tar.addfile(info, io.BytesIO(data))


_SUFFIXES = {"JPEG": "jpg", "MPO": "jpg", "PNG": "png", "WEBP": "webp"}
_CHECK_SHRINK = 8.0  # a JPEG decoded at an eighth of its sides is read to its last byte, in less time


@dataclass(frozen=True)
class ShardPlan:
    """Shards to be written."""

    dataset: ImageDataset
    folder: Path
    sharding: Sharding


def plan_shards(dataset: ImageDataset, out: str | Path, **settings: Any) -> ShardPlan:
    """Settings are those of `Sharding`; a directory with anything else in it is refused, before any work."""
    classes = tuple(getattr(dataset, "classes", ()))
    sharding = Sharding(source=repr(dataset), source_images=len(dataset), classes=classes, **settings)
    read_index(Path(out), sharding)
    return ShardPlan(dataset, Path(out), sharding)


def write_shards(plan: ShardPlan, *, workers: int = 0, on_progress: Progress = unwatched) -> ShardIndex:
    """Write what is missing; images that cannot be read, or are of another format, are left out and listed.

    workers: processes that read and check images ahead.
    """
    with _disk_errors_named(plan.folder):
        records = list(read_index(plan.folder, plan.sharding).shards)
        if not (plan.folder / INDEX).exists():
            write_index(plan.folder / UNFINISHED, index_of(plan.sharding, records))
        writer = _Writer(plan, workers, on_progress)
        writer.mend(records)
        for record in writer.write_on(records):
            records.append(record)
            write_index(plan.folder / UNFINISHED, index_of(plan.sharding, records))
        if plan.sharding.classes:
            replace_json(plan.folder / CLASSES, list(plan.sharding.classes))
        index = index_of(plan.sharding, records)
        write_index(plan.folder / INDEX, index)
        (plan.folder / UNFINISHED).unlink(missing_ok=True)
    return index


class _Checker(Dataset[Checked]):
    """Reads and checks images, in whichever process."""

    def __init__(self, dataset: ImageDataset):
        self.dataset = dataset

    def __getitem__(self, index: int) -> Checked:
        try:
            image = self.dataset[index]
            return Checked(index, image, _suffix(image), None)
        except BrokenImage as error:
            return Checked(index, None, "", (error.name, error.reason))


def _suffix(image: EncodedImage) -> str:
    stored = StoredImage(image.data, image.name)
    stored.rgb(shrink=_CHECK_SHRINK)
    if stored.format not in _SUFFIXES:
        raise BrokenImage(image.name, f"shards hold JPEG, PNG and WebP, not {stored.format}: convert it")
    return _SUFFIXES[stored.format]


class _Writer:
    def __init__(self, plan: ShardPlan, workers: int, on_progress: Progress) -> None:
        self.plan, self.loading = plan, LoaderSettings(workers=workers)
        self.on_progress = on_progress
        self.total, seed = plan.sharding.source_images, plan.sharding.seed
        self.order: Sequence[int] = range(self.total)
        if seed is not None:
            self.order = random_order(self.total, Stream.SHARD_ORDER, seed).tolist()

    def mend(self, records: list[ShardRecord]) -> None:
        """Write anew what is no longer as it was left."""
        first = 0
        for number, record in enumerate(records):
            path = self.plan.folder / record.file
            if not path.exists() or path.stat().st_size != record.bytes:
                with NewShard(self.plan.folder, number, self.plan.sharding) as shard:
                    for checked in self._checked(first, first + record.taken):
                        shard.take(checked)
                if shard.record != record:
                    raise DataError(f"{path} would become another: {self.plan.dataset!r} has changed.")
            first += record.taken

    def write_on(self, records: list[ShardRecord]) -> Iterator[ShardRecord]:
        """The shards after those that are there."""
        first, number = sum(record.taken for record in records), len(records)
        checked = self._checked(first, self.total)
        image = next(checked, None)
        while image is not None:
            with NewShard(self.plan.folder, number, self.plan.sharding) as shard:
                while image is not None and shard.has_room_for(image):
                    shard.take(image)
                    image = next(checked, None)
                shard.require_images()
            yield shard.record
            number += 1

    def _checked(self, first: int, last: int) -> Iterator[Checked]:
        reader = _Checker(self.plan.dataset)
        for done, checked in enumerate(in_processes(reader, self.loading, self.order[first:last]), first + 1):
            yield checked
            self.on_progress(done, self.total)


@contextmanager
def _disk_errors_named(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DataError(
            f"cannot write {folder} ({error.strerror or error}): make room, or choose a place that you may "
            "write to; what is finished stays, and the same command goes on from there."
        ) from error
