"""What this machine does by itself: decode photographs, encode images, write a checkpoint."""

import tempfile
from dataclasses import dataclass
from io import BytesIO
from itertools import islice
from pathlib import Path

import torch

from lgq.bench.timing import milliseconds
from lgq.bench.train import OnOneBatch
from lgq.data import ImageLoader, Loading, open_dataset
from lgq.data.images import EncodedImage
from lgq.data.sample import photograph_pixels
from lgq.data.subset import Subset
from lgq.evaluation.encoding import encode_dataset
from lgq.tokenizer import Tokenizer
from lgq.training.checkpoint import Checkpoints
from lgq.training.processes import prepare_accelerator
from lgq.training.recipe import TokenizerRun

_CPU = torch.device("cpu")
_PHOTOGRAPH, _SIZE = "coffee.png", (500, 375)
"""Of the size that photographs of ImageNet mostly have."""
_BATCH = 8


@dataclass(frozen=True, kw_only=True)
class Local:
    threads: int
    decoded: float
    """Photographs a second, from a JPEG of 500 x 375 pixels to a random crop of 256, on one core."""
    photograph_bytes: int
    """Of that JPEG."""
    encoded: float
    """Images a second that become tokens on disk, with the run that is measured."""
    shard_bytes: float
    """Of the tokens, labels and names of an image."""
    checkpoint_bytes: int
    """Of the run that is measured."""


class _OnePhotograph:
    """A data set of copies of one JPEG."""

    def __init__(self) -> None:
        buffer = BytesIO()
        photograph_pixels(_PHOTOGRAPH).resize(_SIZE).save(buffer, "JPEG", quality=95)
        self.data = buffer.getvalue()

    def __len__(self) -> int:
        return 10**6

    def __getitem__(self, index: int) -> EncodedImage:
        return EncodedImage(self.data, None, f"{index}.jpg")


def measure_local(run: TokenizerRun, *, images: int, rounds: int) -> Local:
    photographs = _OnePhotograph()
    rates, shard_bytes = zip(*[_encoded(run, images) for _ in range(rounds)], strict=True)
    return Local(
        threads=torch.get_num_threads(),
        decoded=max(_decoded(photographs, images) for _ in range(rounds)),
        photograph_bytes=len(photographs.data),
        encoded=max(rates),
        shard_bytes=shard_bytes[0],
        checkpoint_bytes=_checkpoint_bytes(run),
    )


def _decoded(photographs: _OnePhotograph, images: int) -> float:
    batches = ImageLoader(photographs, Loading(image_size=256, batch_size=_BATCH, workers=0)).stream()
    next(batches)
    turns = -(-images // _BATCH)
    spent = milliseconds(lambda: list(islice(batches, turns)), _CPU) / 1e3
    return turns * _BATCH / spent


def _encoded(run: TokenizerRun, images: int) -> tuple[float, float]:
    data = open_dataset("sample")
    part = Subset(data, range(min(images, len(data))))
    tokenizer = Tokenizer(run.backbone, run.quantizer, run.codebook_size).eval()
    with tempfile.TemporaryDirectory() as folder:
        spent = milliseconds(lambda: encode_dataset(tokenizer, part, folder, image_size=run.image_size), _CPU)
        stored = sum(path.stat().st_size for path in Path(folder).glob("*.safetensors"))
    return len(part) / spent * 1e3, stored / len(part)


def _checkpoint_bytes(run: TokenizerRun) -> int:
    data = open_dataset("sample")
    with tempfile.TemporaryDirectory() as folder:
        training = OnOneBatch(run, data, data, Path(folder), prepare_accelerator())
        training.train_step(0)  # AdamW keeps nothing before its first step
        saved = Checkpoints(folder).save(1, training.state())
        return sum(path.stat().st_size for path in saved.iterdir())
