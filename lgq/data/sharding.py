"""Writing WebDataset shards of any data set: the bytes of each image as they are, and its label.

    plan = plan_shards(open_dataset("photos"), "shards", shard_size=10_000, seed=0)
    index = write_shards(plan)
    open_dataset(f"shards/{index.pattern}")

Whenever the process ends, the same calls go on, and the shards are the same, byte for byte: no header
holds a time or an owner, each shard is renamed to its place when it is whole, and it belongs to the data
and the settings alone. One process a directory.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch.utils.data import Dataset

from lgq.data.images import BrokenImage, DataError, EncodedImage, ImageDataset, StoredImage
from lgq.data.loader import Loading, in_processes
from lgq.data.shard_index import (
    INDEX,
    UNFINISHED,
    ShardIndex,
    Sharding,
    ShardRecord,
    index_of,
    read_index,
    write_index,
)
from lgq.data.shard_writer import Checked, NewShard
from lgq.data.shards import CLASSES
from lgq.data.transforms import random_order
from lgq.files import replace_json
from lgq.progress import Progress, unwatched

_SUFFIXES = {"JPEG": "jpg", "MPO": "jpg", "PNG": "png", "WEBP": "webp"}
_CHECK_SHRINK = 8.0  # a JPEG decoded at an eighth of its sides is read to its last byte, in less time
_ORDER_KEY = 8  # every use of `random_order` has its own first part


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
        self.plan, self.loading = plan, Loading(workers=workers)
        self.on_progress = on_progress
        self.total, seed = plan.sharding.source_images, plan.sharding.seed
        self.order: Sequence[int] = range(self.total)
        if seed is not None:
            self.order = random_order(self.total, _ORDER_KEY, seed).tolist()

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
