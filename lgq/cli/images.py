"""`lgq reconstruct`, `lgq encode` and `lgq decode`: images to tokens, and back."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from lgq.cli.console import progress_of, say
from lgq.data import open_dataset
from lgq.distributed import join_processes, rank
from lgq.errors import LGQError
from lgq.hub import WeightsChoice, image_size_of
from lgq.inference.decode import decode_tokens
from lgq.inference.encode import EncodingCost, encode_dataset, estimate_encoding
from lgq.inference.reconstruct import Reconstructions, reconstruct_images
from lgq.tokenizer import Tokenizer, load_tokenizer

Run = Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]


@dataclass(frozen=True, kw_only=True)
class Reconstruct:
    """Write images beside what a tokenizer makes of them, and their PSNR."""

    tokenizer: Run
    """A run directory, a directory that `save_pretrained` wrote, or owner/name on the Hub."""
    images: Annotated[tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="IMAGE")]
    """Files; each keeps its size, but for up to f - 1 rows and columns at the borders."""
    out: Path
    """Directory for the pictures."""
    weights: WeightsChoice = "best"
    """Weights of a run to load: of the best validation, or of the last checkpoint."""

    def run(self) -> int:
        if not self.images:
            raise LGQError("reconstruct needs at least one image: lgq reconstruct RUN IMAGE... --out DIR")
        tokenizer = _load(self.tokenizer, self.weights)
        with progress_of("reconstructing") as report:
            done = reconstruct_images(tokenizer, self.images, self.out, on_progress=report)
        Console().print(_table(done, self.out))
        return 0


@dataclass(frozen=True, kw_only=True)
class Encode:
    """Encode a data set to shards of tokens; the same command continues what was stopped."""

    tokenizer: Run
    """A run directory, a directory that `save_pretrained` wrote, or owner/name on the Hub."""
    data: str
    """Images: a folder, a shard pattern such as train-{000..005}.tar, or `sample`."""
    out: Path
    """Directory for the tokens."""
    image_size: int | None = None
    """Side of the centre crop that is encoded; by default that of the run."""
    batch_size: int = 32
    """Images at a time."""
    shard_size: int = 4096
    """Images a file; an interruption loses at most the one that was being made."""
    flips: bool = False
    """Encode each image a second time, mirrored left and right."""
    workers: int = 0
    """Processes that decode images ahead."""
    weights: WeightsChoice = "best"
    """Weights of a run to load: of the best validation, or of the last checkpoint."""
    dry_run: bool = False
    """Encode a few batches, print how long all of them would take and what they would fill, and write
    nothing."""

    def run(self) -> int:
        data, size = open_dataset(self.data), image_size_of(self.tokenizer, self.image_size)
        tokenizer = _load(self.tokenizer, self.weights)
        how: dict[str, Any] = {
            "image_size": size,
            "batch_size": self.batch_size,
            "shard_size": self.shard_size,
            "flips": self.flips,
            "workers": self.workers,
        }
        if self.dry_run:
            return _show(estimate_encoding(tokenizer, data, **how))
        with progress_of("encoding") as report:
            tokens = encode_dataset(tokenizer, data, self.out, **how, on_progress=report)
        broken = f", {len(tokens.broken):,} could not be read" if tokens.broken else ""
        grid = " x ".join(map(str, tokens.encoding.token_shape))
        say(f"{len(tokens):,} images of {grid} tokens{broken}: {self.out}")
        return 0


@dataclass(frozen=True, kw_only=True)
class Decode:
    """Write the images of encoded tokens as PNG files; the same command continues what was stopped."""

    tokenizer: Run
    """The tokenizer that made the tokens: a run directory, or what `encode` was given."""
    tokens: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="TOKENS")]
    """Directory of tokens."""
    out: Path
    """Directory for the images."""
    batch_size: int = 32
    """Images at a time."""
    weights: WeightsChoice = "best"
    """Weights of a run to load: of the best validation, or of the last checkpoint."""

    def run(self) -> int:
        tokenizer = _load(self.tokenizer, self.weights)
        with progress_of("decoding") as report:
            size = self.batch_size
            count = decode_tokens(tokenizer, self.tokens, self.out, batch_size=size, on_progress=report)
        say(f"{count:,} images: {self.out}")
        return 0


def _load(run: str, which: WeightsChoice) -> Tokenizer:
    tokenizer: Tokenizer = load_tokenizer(run, which).to(join_processes())
    return tokenizer


def _show(cost: EncodingCost) -> int:
    table = Table(box=box.SIMPLE_HEAD, show_header=False)
    table.add_row("images", f"{cost.images:,}")
    table.add_row("shards of tokens", f"{cost.shards:,}; an interruption loses one at most")
    table.add_row("tokens", f"{cost.bytes / 1e6:,.1f} MB")
    rate = f"{cost.images_per_second:,.1f} images a second, on {cost.measured:,} images"
    table.add_row("measured", f"{rate} and {cost.processes} process{'es' * (cost.processes > 1)}")
    table.add_row("time", _duration(cost.seconds))
    table.add_row("a million images", _duration(1e6 / cost.images_per_second))
    if rank() == 0:
        Console().print(table)
    return 0


def _duration(seconds: float) -> str:
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours:,} h {minutes:02d} min" if seconds >= 60 else f"{seconds:.0f} s"


def _table(done: Reconstructions, out: Path) -> Table:
    broken = f"; {len(done.broken)} could not be read" if done.broken else ""
    table = Table(box=box.SIMPLE_HEAD, caption=Text(f"pictures in {out}{broken}"))
    table.add_column("image", overflow="fold")
    table.add_column("PSNR (dB)", justify="right")
    table.add_column("side by side", overflow="fold")
    for image in done.images:
        table.add_row(Text(str(image.path)), f"{image.psnr:.2f}", Text(image.file.name))
    return table
