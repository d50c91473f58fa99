"""`lgq shard`, `lgq reconstruct`, `lgq encode` and `lgq decode`: images to shards, to tokens, and back."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich import box
from rich.table import Table
from rich.text import Text

from lgq.cli.console import key_values, progress_of, say, show
from lgq.cli.options import Computes
from lgq.data.shard_writer import shard
from lgq.errors import LGQError
from lgq.files import WeightsChoice
from lgq.inference.decode import decode
from lgq.inference.encode import EncodingCost, encode, estimate_encoding
from lgq.inference.reconstruct import Reconstructions, reconstruct

_FEW_IMAGES = 10
"""Number of images up to which each has a line."""
Run = Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]


@dataclass(frozen=True, kw_only=True)
class Shard:
    """Write images, byte for byte, into WebDataset shards; the same command continues after a stop."""

    data: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="DATA")]
    """Images: a folder, a shard pattern such as train-{000..005}.tar, or `sample`."""
    out: Path
    """Directory for the shards."""
    shard_size: int = 10_000
    """Images per shard; the last one may have fewer."""
    shard_bytes: int | None = None
    """Bytes of images per shard, where that is reached before `shard_size`; None has no such limit."""
    seed: int | None = None
    """Seed of a shuffle of all images, so that a stream of the shards needs little shuffling; None keeps
    their order."""
    workers: int = 0
    """Processes that read and check images ahead; 0 does it in the main process."""

    def run(self) -> int:
        with progress_of("sharding") as report:
            index = shard(**vars(self), on_progress=report)
        broken = f", {len(index.broken):,} left out (listed in index.json)" if index.broken else ""
        shards = f"{len(index.shards):,} shard{'s' * (len(index.shards) > 1)}"
        say(f"{index.images:,} images in {shards}{broken}: {self.out / index.pattern}")
        return 0


@dataclass(frozen=True, kw_only=True)
class Reconstruct(Computes):
    """Write images beside their reconstructions by a tokenizer, and print the PSNR of each, or of more than
    ten images the mean and the lowest."""

    tokenizer: Run
    """A run directory, a directory that `save_pretrained` wrote, photo-f8, or owner/name on the Hub."""
    images: Annotated[tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="IMAGE")]
    """Image files, and folders of images."""
    out: Path
    """Directory for the pictures."""
    image_size: int | None = None
    """Side to which the centre square of each image is resized, in pixels; by default images keep their
    size."""
    weights: WeightsChoice = "best"
    """Weights of a run to load: of the best validation, or of the last checkpoint."""

    def run(self) -> int:
        with progress_of("reconstructing") as report:
            done = reconstruct(**vars(self), on_progress=report)
        if len(done.images) <= _FEW_IMAGES:
            show(_table(done, self.out))
            return 0
        worst = min(done.images, key=lambda image: image.psnr)
        mean = sum(image.psnr for image in done.images) / len(done.images)
        say(
            f"{len(done.images):,} images, PSNR {mean:.2f} dB on average, {worst.psnr:.2f} dB at the lowest "
            f"({worst.file.name}){_left_out(done)}: {self.out}"
        )
        return 0


@dataclass(frozen=True, kw_only=True)
class Encode(Computes):
    """Encode images into a directory of tokens; the same command continues after a stop."""

    tokenizer: Run
    """A run directory, a directory that `save_pretrained` wrote, photo-f8, or owner/name on the Hub."""
    data: tuple[str, ...]
    """Images: a folder, a shard pattern such as train-{000..005}.tar, or `sample`; or image files, which have
    no classes."""
    out: Path
    """Directory for the tokens."""
    image_size: int | None = None
    """Side in pixels to which the centre crop is brought; by default the run's image size. Smaller images are
    enlarged, with a warning."""
    batch_size: int = 32
    """Images per batch."""
    shard_size: int = 4096
    """Images per token file; a stop loses at most the unfinished file."""
    flips: bool = False
    """Encode each image a second time, mirrored left to right."""
    workers: int = 0
    """Processes that decode images ahead; 0 does it in the main process."""
    weights: WeightsChoice = "best"
    """Weights of a run to load: of the best validation, or of the last checkpoint."""
    dry_run: bool = False
    """Encode a few batches, print the time and disk space that all images would take, and write nothing."""

    def run(self) -> int:
        options = {name: value for name, value in vars(self).items() if name not in ("out", "dry_run")}
        if self.dry_run:
            return _show_cost(estimate_encoding(**options))
        with progress_of("encoding") as report:
            tokens = encode(**options, out=self.out, on_progress=report)
        broken = f", {len(tokens.broken):,} could not be read" if tokens.broken else ""
        grid = " x ".join(map(str, tokens.encoding.token_shape))
        say(f"{len(tokens):,} images of {grid} tokens{broken}: {self.out}")
        return 0


@dataclass(frozen=True, kw_only=True)
class Decode(Computes):
    """Decode a directory of tokens into PNG files; the same command continues after a stop."""

    tokenizer: Annotated[tyro.conf.Positional[str | None], tyro.conf.arg(metavar="[RUN]")] = None
    """The tokenizer that made the tokens: a run directory, or whatever `encode` was given; by default the
    copy inside of TOKENS."""
    tokens: Annotated[tyro.conf.Positional[Path | None], tyro.conf.arg(metavar="TOKENS")] = None
    """Directory that `lgq encode` wrote, with the default tokenizer."""
    out: Path
    """Directory for the images."""
    batch_size: int = 32
    """Images per batch."""
    weights: WeightsChoice = "best"
    """Weights of a run to load: of the best validation, or of the last checkpoint."""

    def run(self) -> int:
        if self.tokenizer is None:
            raise LGQError("there is nothing to decode: name a directory of tokens that lgq encode wrote.")
        options = vars(self)
        if self.tokens is None:  # the parser takes a single word for the first
            options = options | {"tokenizer": None, "tokens": self.tokenizer}
        with progress_of("decoding") as report:
            count = decode(**options, on_progress=report)
        say(f"{count:,} images: {self.out}")
        return 0


def _show_cost(cost: EncodingCost) -> int:
    processes = f"{cost.processes} process{'es' * (cost.processes > 1)}"
    rows = {
        "images": f"{cost.images:,}",
        "token files": f"{cost.shards:,}; a stop loses at most one",
        "disk space": f"{cost.bytes / 1e6:,.1f} MB",
        "measured": f"{cost.images_per_second:,.1f} images/s, on {cost.measured:,} images and {processes}",
        "time": _duration(cost.seconds),
        "a million images": _duration(1e6 / cost.images_per_second),
    }
    show(key_values(rows))
    return 0


def _duration(seconds: float) -> str:
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours:,} h {minutes:02d} min" if seconds >= 60 else f"{seconds:.0f} s"


def _left_out(done: Reconstructions) -> str:
    return f"; {len(done.broken):,} skipped" if done.broken else ""


def _table(done: Reconstructions, out: Path) -> Table:
    table = Table(box=box.SIMPLE_HEAD, caption=Text(f"pictures in {out}{_left_out(done)}"))
    table.add_column("image", overflow="fold")
    table.add_column("PSNR (dB)", justify="right")
    table.add_column("side by side", overflow="fold")
    for image in done.images:
        table.add_row(Text(str(image.path)), f"{image.psnr:.2f}", Text(image.file.name))
    return table
