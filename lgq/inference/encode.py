"""Images to tokens on disk, as `lgq encode` makes them.

    tokens = encode_dataset(tokenizer, open_dataset("photos"), "tokens", image_size=256)
    tokens[0].tokens, tokens[0].label, tokens[0].name, tokens.broken

Beside the tokens is their tokenizer, in tokens/tokenizer/, so that what learns from them can decode them.
Encoding goes on where a killed process stopped. Under torchrun, each process takes a share.

What will it take to encode a data set? A few batches, encoded as all would be, tell.
"""

import time
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch

from lgq.data.images import DataError, ImageDataset, Subset
from lgq.data.loader import Batch, ImageLoader, LoaderSettings
from lgq.data.token_format import AGAIN, Encoding, TokenError
from lgq.data.token_writer import EncodedBatch, TokenWriter
from lgq.data.tokens import TokenDataset
from lgq.distributed import rank, sum_over_ranks, wait_for_all, world_size
from lgq.errors import LGQError
from lgq.hub import TOKENIZER, copy_tokenizer, require_room_for_copy
from lgq.progress import Progress, unwatched
from lgq.tokenizer import Tokenizer


def encode_dataset(
    tokenizer: Tokenizer,
    dataset: ImageDataset,
    out: str | Path,
    *,
    image_size: int,
    batch_size: int = 32,
    shard_size: int = 4096,
    flips: bool = False,
    workers: int = 0,
    on_progress: Progress = unwatched,
) -> TokenDataset:
    """Encode the centre crop of every image into shards of tokens (`lgq.data.tokens`).

    shard_size: images a file; what an interruption loses is the file that was being made.
    flips: encode each image a second time, mirrored left and right.

    An interrupted call is continued by the same call: whole shards are kept, and the result is the
    same, byte for byte. Broken images are left out, logged, and listed in the result's `broken`.
    """
    encoding = plan_encoding(tokenizer, dataset, image_size=image_size, shard_size=shard_size, flips=flips)
    loading = LoaderSettings(image_size=image_size, batch_size=batch_size, workers=workers)
    writer = TokenWriter(out, encoding)
    _leave_tokenizer(tokenizer, Path(out))
    # By number and not by what is missing: processes that look at different moments still agree.
    mine = range(rank(), encoding.shards, world_size())
    parts = {shard: _part(dataset, shard, shard_size) for shard in mine}
    missing = {shard: part for shard, part in parts.items() if shard not in writer.written}
    total = sum(map(len, parts.values()))
    done = total - sum(map(len, missing.values()))
    for shard, part in missing.items():
        loader = ImageLoader(part, loading)
        batches = []
        for batch in loader.one_pass(may_be_empty=True):
            batches.append(encode_batch(tokenizer, batch, flips))
            on_progress(done + batch.position, total)
        writer.write(shard, batches, loader.broken)
        done += len(part)
        on_progress(done, total)
    wait_for_all()
    if rank() == 0:
        writer.finish()
    wait_for_all()
    return TokenDataset(out)


def tokenizer_of(tokens: TokenDataset) -> Tokenizer:
    """The tokenizer that `encode_dataset` left beside its tokens; in eval mode, on the CPU."""
    folder = tokens.path / TOKENIZER
    if not folder.is_dir():
        raise TokenError(
            f"{tokens.path} holds no {TOKENIZER}/, by which its tokens can be decoded: {AGAIN}, or name the "
            "tokenizer yourself."
        )
    tokenizer = Tokenizer.from_pretrained(folder)
    tokens.require_fingerprint(tokenizer.fingerprint())
    return tokenizer


def _part(dataset: ImageDataset, shard: int, shard_size: int) -> Subset:
    """The images of a data set that one shard covers."""
    return Subset(dataset, range(len(dataset))[shard * shard_size : (shard + 1) * shard_size])


def plan_encoding(
    tokenizer: Tokenizer, dataset: ImageDataset, *, image_size: int, shard_size: int, flips: bool
) -> Encoding:
    """What an encoding will be; settings that make none are refused."""
    if len(dataset) == 0:
        raise DataError(f"{dataset!r} holds no image.")
    if shard_size < 1:
        raise LGQError(f"shard_size must be 1 or more, got {shard_size}.")
    side, rest = divmod(image_size, tokenizer.factor)
    if side < 1 or rest:
        raise LGQError(f"image_size must be a multiple of f = {tokenizer.factor}, got {image_size}.")
    return Encoding(
        fingerprint=tokenizer.fingerprint(),
        codebook_size=tokenizer.codebook_size,
        stages=tokenizer.stages,
        grid=(side, side),
        image_size=image_size,
        flips=flips,
        classes=tuple(getattr(dataset, "classes", ())),
        source=repr(dataset),
        source_images=len(dataset),
        shard_size=shard_size,
    )


def _leave_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    # On every rank: one that is refused alone would leave the others waiting.
    require_room_for_copy(tokenizer, folder)
    wait_for_all()
    if rank() == 0:
        try:
            copy_tokenizer(tokenizer, folder)
        except OSError as error:
            raise TokenError(
                f"cannot write {folder} ({error.strerror or error}): make room, or choose a place that you "
                "may write to."
            ) from error
    wait_for_all()


def encode_batch(tokenizer: Tokenizer, batch: Batch, flips: bool) -> EncodedBatch:
    """The tokens of a batch, on the CPU."""
    images = batch.images.to(tokenizer.device)
    flipped = tokenizer.encode(images.flip(-1)).cpu() if flips else None
    return EncodedBatch(tokenizer.encode(images).cpu(), flipped, batch.labels, batch.names)


_BATCHES = 8
_NUMBERS = 16
"""Bytes of an image beside tokens and name: its label, and where its name ends."""


@dataclass(frozen=True, kw_only=True)
class EncodingCost:
    """An estimate."""

    images: int
    shards: int
    bytes: int
    """Of the tokens, labels and names; the copy of the tokenizer beside them not included."""
    measured: int
    """Images whose encoding was timed."""
    images_per_second: float
    """Over all processes, reading and decoding included."""
    processes: int

    @property
    def seconds(self) -> float:
        return self.images / self.images_per_second


def estimate_encoding(
    tokenizer: Tokenizer,
    dataset: ImageDataset,
    *,
    image_size: int,
    batch_size: int = 32,
    shard_size: int = 4096,
    flips: bool = False,
    workers: int = 0,
) -> EncodingCost:
    """Encode some batches of images spread over the data set, and keep nothing.

    The first batch is not timed: workers start with it, and devices choose their kernels.
    """
    encoding = plan_encoding(tokenizer, dataset, image_size=image_size, shard_size=shard_size, flips=flips)
    loading = LoaderSettings(image_size=image_size, batch_size=batch_size, workers=workers)
    limit = batch_size * (1 + _BATCHES * max(1, workers))
    names: list[str] = []
    marks = [(time.perf_counter(), 0)]
    for batch in ImageLoader(dataset, loading).one_pass(limit):
        encode_batch(tokenizer, batch, flips)
        names += batch.names
        marks.append((time.perf_counter(), len(names)))
    (began, before), (ended, after) = marks[1 if len(marks) > 2 else 0], marks[-1]
    of_tokens = prod(encoding.token_shape) * encoding.dtype(0).itemsize * (1 + flips)
    of_names = sum(len(name.encode("utf-8", "surrogatepass")) for name in names) / len(names)
    rate = (after - before) / (ended - began)
    return EncodingCost(
        images=len(dataset),
        shards=encoding.shards,
        bytes=round(len(dataset) * (of_tokens + of_names + _NUMBERS)),
        measured=after - before,
        images_per_second=float(sum_over_ranks(torch.tensor(rate))),
        processes=world_size(),
    )
