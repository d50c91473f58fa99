"""One shard, written image by image into a file that gets its name when it is whole."""

import io
import os
import tarfile
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from lgq.data.images import DataError, EncodedImage
from lgq.data.members import LABEL_MEMBER, safe_key
from lgq.data.shard_index import Sharding, ShardRecord, shard_file
from lgq.files import beside, sync_directory


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
