"""Writing WebDataset shards of any data set, as `lgq shard` does: the bytes of each image, and its label.

    index = shard("photos", "shards", shard_size=10_000, seed=0)
    open_dataset(f"shards/{index.pattern}")

A directory of shards holds

    shard-000000.tar ...    `<key>.jpg|png|webp`, the bytes of each image as they were, and `<key>.cls`
    classes.json            names of the classes, if any: label i is item i
    index.json              written last: data and settings; images and bytes of each shard
    unfinished.json         the same for the shards so far, until index.json is written

Both records are UTF-8 JSON with a checksum of themselves. An interrupted call is continued by the same call,
and the shards are the same, byte for byte: no header holds a time or an owner, each shard gets its name when
it is whole, and its content belongs to the data and the settings alone.
"""

import io
import os
import re
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import NamedTuple

from torch.utils.data import Dataset

from lgq.checks import require_at_least
from lgq.config import ConfigError, from_json, to_json
from lgq.data import open_dataset
from lgq.data.images import BrokenImage, DataError, EncodedImage, ImageDataset, StoredImage
from lgq.data.loader import LoaderSettings, in_processes
from lgq.data.shards import CLASSES, LABEL_MEMBER
from lgq.files import (
    DamagedFileError,
    beside,
    directory_lock,
    json_bytes,
    named_disk_errors,
    sealed_json,
    sync_directory,
    unsealed_json,
    write_file,
)
from lgq.progress import Progress, unwatched
from lgq.random import Stream, random_order

FORMAT = 1
INDEX, UNFINISHED = "index.json", "unfinished.json"
_SUFFIXES = {"JPEG": "jpg", "MPO": "jpg", "PNG": "png", "WEBP": "webp"}
_CHECK_SHRINK = 8.0  # a JPEG decoded at an eighth of its sides is read to its last byte, in less time
_UNSAFE = re.compile(r"[\x00-\x1f\x7f\\]")


@dataclass(frozen=True, kw_only=True)
class Sharding:
    """Data and settings of shards, which must all be equal for shards to be continued."""

    source: str
    """The data set, as its `repr`."""
    source_images: int
    """Images in the data set, including those that cannot be read."""
    classes: tuple[str, ...] = ()
    """Names of the classes: label i is `classes[i]`."""
    shard_size: int = 10_000
    """Images per shard; the last one may have fewer."""
    shard_bytes: int | None = None
    """Bytes of images per shard, where that is reached before `shard_size`; None has no such limit."""
    seed: int | None = None
    """Seed of the order of the images; None keeps their order."""

    def __post_init__(self) -> None:
        require_at_least(1, source_images=self.source_images, shard_size=self.shard_size)
        if self.shard_bytes is not None:
            require_at_least(1, shard_bytes=self.shard_bytes)
        if self.seed is not None:
            require_at_least(0, seed=self.seed)


@dataclass(frozen=True, kw_only=True)
class ShardRecord:
    """A finished shard."""

    file: str
    images: int
    bytes: int
    """Size of the file."""
    taken: int
    """Images of the data set that it covers, including those that cannot be read."""
    broken: tuple[tuple[str, str], ...]
    """Name and reason of each image that was left out."""


@dataclass(frozen=True, kw_only=True)
class ShardIndex:
    """Content of index.json."""

    format: int
    sharding: Sharding
    images: int
    bytes: int
    shards: tuple[ShardRecord, ...]

    @classmethod
    def of(cls, sharding: Sharding, shards: Sequence[ShardRecord]) -> "ShardIndex":
        images, size = sum(shard.images for shard in shards), sum(shard.bytes for shard in shards)
        return cls(format=FORMAT, sharding=sharding, images=images, bytes=size, shards=tuple(shards))

    @property
    def broken(self) -> dict[str, str]:
        """Images that were left out, with the reason."""
        return dict(pair for shard in self.shards for pair in shard.broken)

    @property
    def pattern(self) -> str:
        """Pattern of the shards' file names, as `open_dataset` takes it."""
        last = len(self.shards) - 1
        return _shard_file(f"{{000000..{last:06d}}}" if last else "000000")


def shard(
    data: ImageDataset | str | Path,
    out: str | Path,
    *,
    shard_size: int = 10_000,
    shard_bytes: int | None = None,
    seed: int | None = None,
    workers: int = 0,
    on_progress: Progress = unwatched,
) -> ShardIndex:
    """Write a data set into shards, or continue to; images that cannot be read or stored are listed.

    data: a data set, or what `open_dataset` takes.
    out: directory, which must be new or hold shards of the same data and settings.
    shard_size, shard_bytes, seed: fields of `Sharding`.
    workers: processes that read and check images ahead.
    """
    dataset, folder = open_dataset(data), Path(out)
    sharding = Sharding(
        source=repr(dataset),
        source_images=len(dataset),
        classes=tuple(getattr(dataset, "classes", ())),
        shard_size=shard_size,
        shard_bytes=shard_bytes,
        seed=seed,
    )
    _read_index(folder, sharding)  # before the lock makes the directory
    with directory_lock(folder), named_disk_errors(folder):
        records = list(_read_index(folder, sharding).shards)
        if not (folder / INDEX).exists():
            _write_index(folder / UNFINISHED, sharding, records)
        order: Sequence[int] = range(sharding.source_images)
        if seed is not None:
            order = random_order(sharding.source_images, Stream.SHARD_ORDER, seed).tolist()
        first = number = 0
        while first < len(order):
            stored = records[number] if number < len(records) else None
            path = folder / _shard_file(f"{number:06d}")
            if stored is None or not path.exists() or path.stat().st_size != stored.bytes:
                images = _checked_images(dataset, order, first, workers, on_progress)
                record = _write_shard(path, sharding, images)
                if stored is not None and record != stored:
                    raise DataError(f"{path} would get other content: {dataset} has changed.")
                records[number:] = [record, *records[number + 1 :]]
                _write_index(folder / UNFINISHED, sharding, records)
            first, number = first + records[number].taken, number + 1
        if sharding.classes:
            write_file(folder / CLASSES, json_bytes(list(sharding.classes), indent=2))
        _write_index(folder / INDEX, sharding, records)
        (folder / UNFINISHED).unlink(missing_ok=True)
    return ShardIndex.of(sharding, records)


def _read_index(folder: Path, sharding: Sharding) -> ShardIndex:
    """Read what a directory holds so far; anything but shards of the same sharding is an error."""
    for path in (folder / INDEX, folder / UNFINISHED):
        if path.exists():
            try:
                index = from_json(ShardIndex, unsealed_json(path.read_bytes()))
            except (OSError, DamagedFileError, ConfigError) as error:
                raise DataError(f"cannot continue {path} ({error}): choose another directory.") from error
            for field in fields(Sharding):
                before, now = getattr(index.sharding, field.name), getattr(sharding, field.name)
                if before != now:
                    raise DataError(
                        f"{folder} holds other shards: their `{field.name}` is {before!r:.80}, not "
                        f"{now!r:.80}. Repeat their arguments, or choose another directory."
                    )
            return index
    if folder.exists() and not folder.is_dir():
        raise DataError(f"{folder} is a file: choose a directory for the shards.")
    if folder.is_dir() and any(not path.name.startswith((".", UNFINISHED)) for path in folder.iterdir()):
        raise DataError(f"{folder} holds other files than shards of `lgq shard`: choose a new directory.")
    return ShardIndex.of(sharding, [])


def _write_index(path: Path, sharding: Sharding, records: list[ShardRecord]) -> None:
    write_file(path, sealed_json(to_json(ShardIndex.of(sharding, records))))


def _shard_file(number: str) -> str:
    return f"shard-{number}.tar"


class _CheckedImage(NamedTuple):
    """An image of a data set, and whether it can be stored."""

    number: int
    """Number of the image in the data set."""
    image: EncodedImage | None
    suffix: str = ""
    problem: tuple[str, str] = ("", "")
    """Name and reason, where there is no image."""


class _Checker(Dataset[_CheckedImage]):
    """Reads and checks images, in whichever process."""

    def __init__(self, dataset: ImageDataset):
        self.dataset = dataset

    def __getitem__(self, index: int) -> _CheckedImage:
        try:
            image = self.dataset[index]
            stored = StoredImage(image.data, image.name)
            stored.rgb(shrink=_CHECK_SHRINK)
            if stored.format not in _SUFFIXES:
                rule = f"shards hold JPEG, PNG and WebP, not {stored.format}: convert it"
                raise BrokenImage(image.name, rule)
            return _CheckedImage(index, image, _SUFFIXES[stored.format])
        except BrokenImage as error:
            return _CheckedImage(index, None, problem=(error.name, error.reason))


def _checked_images(
    dataset: ImageDataset, order: Sequence[int], first: int, workers: int, on_progress: Progress
) -> Iterator[_CheckedImage]:
    images = in_processes(_Checker(dataset), LoaderSettings(workers=workers), order[first:])
    for done, checked in enumerate(images, first + 1):
        yield checked
        on_progress(done, len(order))


def _write_shard(path: Path, sharding: Sharding, images: Iterator[_CheckedImage]) -> ShardRecord:
    """Fill a shard with images until it is full; it gets its name when it is whole."""
    partial = beside(path, "partial")
    keys: set[str] = set()
    broken: list[tuple[str, str]] = []
    image_bytes = taken = 0
    try:
        with partial.open("wb") as file:
            # Without what differs between systems: one dialect, one encoding, no time, no owner.
            with tarfile.open(None, "w", file, format=tarfile.GNU_FORMAT, encoding="utf-8") as tar:
                for checked in images:
                    image = checked.image
                    if image is None:
                        broken.append(checked.problem)
                    else:
                        image_bytes += len(image.data)
                        full = len(keys) == sharding.shard_size or (
                            sharding.shard_bytes is not None and image_bytes > sharding.shard_bytes
                        )
                        if full and keys:  # any image fits into an empty shard
                            break
                        key = safe_key(image.name)
                        while key in keys:
                            key = f"{key}-{checked.number}"
                        keys.add(key)
                        _add(tar, f"{key}.{checked.suffix}", image.data)
                        if image.label is not None:
                            _add(tar, f"{key}.{LABEL_MEMBER}", str(image.label).encode())
                    taken += 1
            if not keys:
                (name, reason), count = broken[0], len(broken)
                example = f"{sharding.source} can be stored, such as {name} ({reason})"
                raise DataError(f"none of {count:,} images of {example}.")
            file.flush()
            os.fsync(file.fileno())
            size = file.tell()
        os.replace(partial, path)
        sync_directory(path.parent)
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
    return ShardRecord(file=path.name, images=len(keys), bytes=size, taken=taken, broken=tuple(broken))


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    tar.addfile(info, io.BytesIO(data))


def safe_key(name: str) -> str:
    """Return a key for an image of this name: its path, without the suffix and what a key cannot hold."""
    folder, slash, base = _UNSAFE.sub("_", name).rpartition("/")
    stem = base.rpartition(".")[0] or base
    return f"{folder}{slash}{stem.replace('.', '_')}"
