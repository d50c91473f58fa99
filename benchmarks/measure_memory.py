"""Check that memory stays flat while data is read: resident memory after each epoch, for every loader.

    python benchmarks/measure_memory.py                         # two to four minutes on two cores

Writes images of noise to shards in a temporary directory and reads them through the training loaders: local
shards without and with workers, and a stream of the same shards. Each loader runs in its own process, and the
memory of its workers is included. Pages that processes share count once; pages of libraries do not count, as
they depend on other programs. The exit code is 1 if the last epoch needs over 1.05 times the memory of the
first.
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

from lgq.data import EncodedImage, LoaderSettings, open_dataset
from lgq.data.shard_writer import shard
from lgq.data.stream import PipeDataset, training_loader

LOADERS = {
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
    parser.add_argument("--loader", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.loader is not None:
        for megabytes in read_epochs(options.loader, options.folder, options.images, options.epochs):
            print(json.dumps(megabytes), flush=True)
        return
    with tempfile.TemporaryDirectory() as folder:
        size = make_shards(Path(folder), options.images, options.shards)
        measured = {
            loader: in_new_process(loader, folder, options.images, options.epochs) for loader in LOADERS
        }
    show(measured, f"{options.images:,} images in {options.shards} shards, {size / 1e6:,.0f} MB")
    if max(values[-1] / values[0] for values in measured.values()) > HIGHEST_RATIO:
        sys.exit(1)


class NoiseImages:
    """Data set of `images` JPEG images of noise."""

    def __init__(self, images: int):
        self.images = images

    def __repr__(self) -> str:
        return f"NoiseImages({self.images})"

    def __len__(self) -> int:
        return self.images

    def __getitem__(self, index: int) -> EncodedImage:
        pixels = np.random.default_rng(index).integers(0, 256, (64, 64, 3), dtype=np.uint8)
        buffer = BytesIO()
        Image.fromarray(pixels).resize((256, 256)).save(buffer, "JPEG", quality=92)
        return EncodedImage(buffer.getvalue(), index % 10, f"{index}.jpg")


def make_shards(folder: Path, images: int, shards: int) -> int:
    """Write the shards; return their size in bytes."""
    return shard(NoiseImages(images), folder, shard_size=-(-images // shards)).bytes


def in_new_process(loader: str, folder: str, images: int, epochs: int) -> list[float]:
    arguments = ["--loader", loader, "--folder", folder, "--images", str(images), "--epochs", str(epochs)]
    done = subprocess.run(
        [sys.executable, __file__, *arguments], check=True, stdout=subprocess.PIPE, text=True
    )
    return [float(line) for line in done.stdout.splitlines()]


def read_epochs(loader: str, folder: str, images: int, epochs: int) -> Iterator[float]:
    """Yield the resident megabytes after each epoch."""
    spec, workers = LOADERS[loader]
    last = f"000000..{len(list(Path(folder).glob('*.tar'))) - 1:06d}"
    data = open_dataset(spec.format(folder=folder, last=last))
    if isinstance(data, PipeDataset):
        data = PipeDataset(data.commands, buffer=BUFFER)
    batches = training_loader(data, LoaderSettings(image_size=64, batch_size=BATCH, workers=workers)).stream()
    for _ in range(epochs):
        for _ in islice(batches, images // BATCH):
            pass
        yield sum(map(megabytes_of, [os.getpid(), *children_of(os.getpid())]))


def children_of(process: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def megabytes_of(process: int) -> float:
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):  # a process that has just ended
        return 0.0
    counted = [line.split()[1] for line in lines if line.startswith(("Pss_Anon:", "Pss_Shmem:"))]
    return sum(map(int, counted)) / 1024


def show(measured: dict[str, list[float]], title: str) -> None:
    table = Table(title=title, box=box.MARKDOWN)
    table.add_column("MB after epoch")
    for epoch in range(1, 1 + max(map(len, measured.values()))):
        table.add_column(str(epoch), justify="right")
    table.add_column("last ÷ first", justify="right")
    for loader, values in measured.items():
        table.add_row(loader, *(f"{value:.0f}" for value in values), f"{values[-1] / values[0]:.3f}")
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
