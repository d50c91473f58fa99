"""Does memory stay flat however long data is read? Resident memory after each epoch, of every way to read it.

    python scripts/measure_memory.py                         # two to four minutes on two cores

Makes photographs in shards, in a temporary directory, and reads them through the loaders that training
uses: local shards without and with workers, and a stream of the same shards. Each way has a process of its
own, whose resident memory counts with that of its workers: pages that they share count once, and pages of
libraries do not, for other programs decide whose share these are. The ratio is that of the last epoch to the
first; above 1.05 the exit code is 1.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from io import BytesIO
from itertools import islice
from pathlib import Path

import numpy as np
from PIL import Image
from rich import box
from rich.console import Console
from rich.table import Table

from lgq.data import EncodedImage, Loading, open_dataset
from lgq.data.sharding import plan_shards, write_shards
from lgq.data.stream import PipeDataset
from lgq.data.stream_loader import training_loader

WAYS = {
    "local shards, no workers": ("{folder}/shard-*.tar", 0),
    "local shards, 2 workers": ("{folder}/shard-*.tar", 2),
    "stream, no workers": ("pipe:cat {folder}/shard-{{{last}}}.tar", 0),
    "stream, 2 workers": ("pipe:cat {folder}/shard-{{{last}}}.tar", 2),
}
BATCH = 32
BUFFER = 200
HIGHEST_RATIO = 1.05


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--images", type=int, default=4_000)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--shards", type=int, default=8)
    parser.add_argument("--way", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.way is not None:
        for megabytes in read_epochs(given.way, given.folder, given.images, given.epochs):
            print(json.dumps(megabytes), flush=True)
        return
    with tempfile.TemporaryDirectory() as folder:
        size = make_shards(Path(folder), given.images, given.shards)
        measured = {way: in_new_process(way, folder, given.images, given.epochs) for way in WAYS}
    show(measured, f"{given.images:,} images in {given.shards} shards, {size / 1e6:,.0f} MB")
    if max(values[-1] / values[0] for values in measured.values()) > HIGHEST_RATIO:
        sys.exit(1)


class Painted:
    """Photographs of noise, as many as are wanted."""

    def __init__(self, images: int):
        self.images = images

    def __repr__(self) -> str:
        return f"Painted({self.images})"

    def __len__(self) -> int:
        return self.images

    def __getitem__(self, index: int) -> EncodedImage:
        pixels = np.random.default_rng(index).integers(0, 256, (64, 64, 3), dtype=np.uint8)
        buffer = BytesIO()
        Image.fromarray(pixels).resize((256, 256)).save(buffer, "JPEG", quality=92)
        return EncodedImage(buffer.getvalue(), index % 10, f"{index}.jpg")


def make_shards(folder: Path, images: int, shards: int) -> int:
    """Returns the bytes of all shards."""
    return write_shards(plan_shards(Painted(images), folder, shard_size=-(-images // shards))).bytes


def in_new_process(way: str, folder: str, images: int, epochs: int) -> list[float]:
    options = ["--way", way, "--folder", folder, "--images", str(images), "--epochs", str(epochs)]
    done = subprocess.run([sys.executable, __file__, *options], check=True, stdout=subprocess.PIPE, text=True)
    return [float(line) for line in done.stdout.splitlines()]


def read_epochs(way: str, folder: str, images: int, epochs: int) -> Iterator[float]:
    """Megabytes after each epoch."""
    spec, workers = WAYS[way]
    last = f"000000..{len(list(Path(folder).glob('*.tar'))) - 1:06d}"
    data = open_dataset(spec.format(folder=folder, last=last))
    if isinstance(data, PipeDataset):
        data = PipeDataset(data.commands, buffer=BUFFER)
    batches = training_loader(data, Loading(image_size=64, batch_size=BATCH, workers=workers)).stream()
    for _ in range(epochs):
        for _ in islice(batches, images // BATCH):
            pass
        yield sum(map(megabytes_of, [os.getpid(), *children_of(os.getpid())]))


def children_of(process: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def megabytes_of(process: int) -> float:
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):  # a command that has just ended
        return 0.0
    counted = [line.split()[1] for line in lines if line.startswith(("Pss_Anon:", "Pss_Shmem:"))]
    return sum(map(int, counted)) / 1024


def show(measured: dict[str, list[float]], title: str) -> None:
    table = Table(title=title, box=box.MARKDOWN)
    table.add_column("MB after epoch")
    for epoch in range(1, 1 + max(map(len, measured.values()))):
        table.add_column(str(epoch), justify="right")
    table.add_column("last ÷ first", justify="right")
    for way, values in measured.items():
        table.add_row(way, *(f"{value:.0f}" for value in values), f"{values[-1] / values[0]:.3f}")
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
