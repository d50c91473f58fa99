"""`lgq shard`: a folder, or other shards, as WebDataset shards."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from lgq.cli.console import progress_of, say
from lgq.data import open_dataset
from lgq.data.shard_writer import plan_shards, write_shards
from lgq.files import directory_lock


@dataclass(frozen=True, kw_only=True)
class Shard:
    """Write images, as they are, into WebDataset shards; the same command continues what was stopped."""

    data: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="DATA")]
    """Images: a folder, a shard pattern such as train-{000..005}.tar, or `sample`."""
    out: Path
    """Directory for the shards."""
    shard_size: int = 10_000
    """Images a shard; the last one may have fewer."""
    shard_bytes: int | None = None
    """Bytes of images a shard, if that ends it sooner."""
    seed: int | None = None
    """Shuffle all images by this seed, so that a stream of the shards needs little shuffling; without, they
    keep their order."""
    workers: int = 0
    """Processes that read and check images ahead."""

    def run(self) -> int:
        data = open_dataset(self.data)
        plan = plan_shards(
            data, self.out, shard_size=self.shard_size, shard_bytes=self.shard_bytes, seed=self.seed
        )
        with directory_lock(self.out), progress_of("sharding") as report:
            index = write_shards(plan, workers=self.workers, on_progress=report)
        broken = f", {len(index.broken):,} left out (listed in index.json)" if index.broken else ""
        shards = f"{len(index.shards):,} shard{'s' * (len(index.shards) > 1)}"
        say(f"{index.images:,} images in {shards}{broken}: {self.out / index.pattern}")
        return 0
