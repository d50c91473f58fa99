"""The record of shards that `lgq shard` writes, while they are made and when they are done.

A directory of shards holds

    shard-000000.tar ...    `<key>.jpg|png|webp`, the bytes of each image as they were, and `<key>.cls`
    classes.json            names of the classes, where there are any: label i is item i
    index.json              written last: what was sharded and how; images and bytes of each shard
    unfinished.json         the same of the shards so far, until index.json is there

Both records are UTF-8 JSON with a checksum of themselves.
"""

from dataclasses import dataclass, fields
from pathlib import Path

from lgq.checks import require_at_least
from lgq.config import ConfigError, from_json, to_json
from lgq.data.images import DataError
from lgq.files import DamagedFileError, make_directory, replace_file, sealed_json, unsealed_json

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
