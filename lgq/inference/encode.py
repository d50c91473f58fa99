"""Images to tokens on disk, as `lgq encode` makes them.

    tokens = encode("runs/photos", "photos", "tokens")
    tokens[0].tokens, tokens[0].label, tokens[0].name, tokens.broken

A copy of the tokenizer, in tokens/tokenizer/, makes the tokens complete: they can be decoded without the run.
Under torchrun, each process encodes a share.
"""

import hashlib
import logging
import time
import warnings
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset

from lgq.checks import require_at_least
from lgq.data import open_dataset
from lgq.data.folder import FolderDataset, require_apart
from lgq.data.images import BrokenImage, DataError, ImageDataset, Subset
from lgq.data.loader import (
    Batch,
    ImageLoader,
    LoaderSettings,
    in_processes,
    note_broken,
    rendered,
    warn_of_enlarged,
)
from lgq.data.token_format import AGAIN, HEADER, EncodedBatch, Encoding, TokenError, TokenWriter
from lgq.data.tokens import TokenDataset
from lgq.data.transforms import centre_crop
from lgq.distributed import rank, sum_over_ranks, wait_for_all, world_size
from lgq.errors import LGQWarning
from lgq.files import WeightsChoice, json_bytes, named_disk_errors, require_no_other_files
from lgq.hub import TOKENIZER, copy_tokenizer, require_room_for_copy
from lgq.inference import Device, TokenizerSource, tokenizer_on_device
from lgq.progress import Progress, unwatched
from lgq.tokenizer import Tokenizer

_TIMED_BATCHES = 8
_BYTES_PER_IMAGE = 16
"""Bytes on disk beside tokens and name: the label, and where the name ends."""

_log = logging.getLogger(__name__)


def encode(
    tokenizer: TokenizerSource,
    data: ImageDataset | str | Path | Sequence[str | Path],
    out: str | Path,
    *,
    image_size: int | None = None,
    batch_size: int = 32,
    shard_size: int = 4096,
    flips: bool = False,
    workers: int = 0,
    weights: WeightsChoice = "best",
    device: Device = "auto",
    on_progress: Progress = unwatched,
) -> TokenDataset:
    """Encode the centre crop of every image into shards of tokens (`lgq.data.tokens`).

    data: a data set, or what `open_dataset` takes.
    image_size: side of the crop; None takes that of the images that the tokenizer's run trained on. Smaller
        images are enlarged, with a warning.
    shard_size: images per file; an interruption loses at most the file that was being made.
    flips: encode each image a second time, mirrored left and right.
    workers: processes that decode images ahead.

    The same call continues an interrupted one, and the result is the same, byte for byte. A whole shard is
    kept if its images are the same: names, labels and bytes. If some have changed, or a broken one can be
    read now, its images are encoded again. Broken images are left out, logged, and listed in the result's
    `broken`; if no image can be read, it is an error, and nothing is written.
    """
    dataset = open_dataset(data)
    require_apart(Path(out), dataset, has_pictures=False)
    _require_place_for_tokens(Path(out))
    tokenizer = tokenizer_on_device(tokenizer, weights, device)
    encoding = _plan(tokenizer, dataset, image_size, shard_size, flips)
    loading = LoaderSettings(image_size=encoding.image_size, batch_size=batch_size, workers=workers)
    writer = TokenWriter(out, encoding)
    _require_readable_image(dataset, encoding.image_size)
    # On every rank: an error on one alone would leave the others waiting.
    require_room_for_copy(tokenizer, Path(out))
    wait_for_all()
    if rank() == 0:
        with named_disk_errors(out):
            copy_tokenizer(tokenizer, Path(out))
    wait_for_all()
    # By number and not by what is missing: processes that look at different moments still agree.
    mine = range(rank(), encoding.shards, world_size())
    images = {i: range(len(dataset))[i * shard_size : (i + 1) * shard_size] for i in mine}
    stored = {i: writer.written[i] for i in mine if i in writer.written}
    kept = {i for i, note in stored.items() if _is_current(note, Subset(dataset, images[i]), loading)}
    known_broken: dict[str, str] = {}
    for i in sorted(kept):
        note_broken(known_broken, [(name, reason) for name, reason in stored[i]["broken"]], dataset)
    new, changed = sum_over_ranks(torch.tensor([len(mine) - len(stored), len(stored) - len(kept)])).tolist()
    if rank() == 0:
        _prepare(writer, new, changed)
    wait_for_all()
    total = sum(map(len, images.values()))
    done = sum(len(images[i]) for i in kept)
    sides = torch.zeros(len(dataset), dtype=torch.int64)
    for shard in (i for i in mine if i not in kept):
        subset = Subset(dataset, images[shard])
        # Before they are encoded: an image that changes in between is encoded again by the next call.
        data_sha256 = _data_sha256(subset, loading)
        loader = ImageLoader(subset, loading)
        batches = []
        for batch in loader.one_pass(may_be_empty=True):
            batches.append(_encode_batch(tokenizer, batch, flips))
            sides[shard * shard_size + batch.indices] = batch.sides
            on_progress(done + batch.position, total)
        writer.write(shard, batches, loader.broken, data_sha256=data_sha256)
        done += len(images[shard])
        on_progress(done, total)
    wait_for_all()
    if rank() == 0:
        writer.finish()
    wait_for_all()
    sides = sum_over_ranks(sides)
    if sides.any():  # an earlier call may have encoded all
        warn_of_enlarged(sides[sides > 0], encoding.image_size, tokenizer.factor)
    return TokenDataset(out)


def _require_readable_image(dataset: ImageDataset, image_size: int) -> None:
    """Read images until one can be read, so that nothing is written where none can."""
    problems: list[BrokenImage] = []
    for index in range(len(dataset)):
        try:
            rendered(dataset[index], index, centre_crop, image_size)
            return
        except BrokenImage as error:
            problems.append(error)
    example = f"{problems[0].name} ({problems[0].reason})"
    raise DataError(f"none of {len(problems):,} images can be read in {dataset}, such as {example}.")


def _is_current(note: dict[str, Any], images: Subset, settings: LoaderSettings) -> bool:
    """Tell whether a shard was made of the images as they are now, and its broken ones still are."""
    # Shards of earlier versions do not tell, and are encoded again.
    return note.get("data_sha256") == _data_sha256(images, settings, dict(note["broken"]))


def _data_sha256(images: Subset, settings: LoaderSettings, broken: Collection[str] = ()) -> str:
    """Return the sha256 of names, labels and bytes of images.

    broken: names of images that could not be read; if one can be read now, the result is another.
    """
    reader = _StoredImages(images, settings.image_size, broken)
    digest = hashlib.sha256()
    for one in in_processes(reader, settings, range(len(images))):
        digest.update(one)
    return digest.hexdigest()


class _StoredImages(Dataset[bytes]):
    """What identifies each image, in whichever process: the sha256 of its bytes, its name and its label."""

    def __init__(self, dataset: ImageDataset, image_size: int, broken: Collection[str]):
        self.dataset, self.image_size, self.broken = dataset, image_size, broken

    def __getitem__(self, index: int) -> bytes:
        try:
            image = self.dataset[index]
        except BrokenImage as error:
            return json_bytes([error.name, error.reason])
        identity = [image.name, image.label, hashlib.sha256(image.data).hexdigest()]
        if image.name in self.broken:
            with suppress(BrokenImage):
                rendered(image, index, centre_crop, self.image_size)
                identity.append("can be read")
        return json_bytes(identity)


def _prepare(writer: TokenWriter, new: int, changed: int) -> None:
    """Make way for shards that are encoded, and log what an earlier call has left to do.

    new, changed: number of shards that do not exist, and of those whose images are others now.
    """
    if changed:
        _log.info(
            "%d of %d token files in %s do not have the images as they are now: encoding them again",
            *(changed, writer.encoding.shards, writer.folder),
        )
    if new or changed:
        writer.reopen()
    else:
        _log.info("%s is already complete: nothing was encoded", writer.folder)


def tokenizer_of(tokens: TokenDataset) -> Tokenizer:
    """Load the copy of the tokenizer that `encode` wrote beside its tokens; in eval mode, on the CPU."""
    folder = tokens.path / TOKENIZER
    if not folder.is_dir():
        raise TokenError(
            f"{tokens.path} holds no {TOKENIZER}/, which decodes its tokens: {AGAIN}, or give the "
            "tokenizer yourself."
        )
    tokenizer = Tokenizer.from_pretrained(folder)
    tokens.require_fingerprint(tokenizer.fingerprint())
    return tokenizer


@dataclass(frozen=True, kw_only=True)
class EncodingCost:
    """Estimate of what `encode` will take."""

    images: int
    shards: int
    bytes: int
    """Size of tokens, labels and names, without the copy of the tokenizer."""
    measured: int
    """Number of images whose encoding was timed."""
    images_per_second: float
    """Rate over all processes, reading and decoding included."""
    processes: int

    @property
    def seconds(self) -> float:
        return self.images / self.images_per_second


def estimate_encoding(
    tokenizer: TokenizerSource,
    data: ImageDataset | str | Path | Sequence[str | Path],
    *,
    image_size: int | None = None,
    batch_size: int = 32,
    shard_size: int = 4096,
    flips: bool = False,
    workers: int = 0,
    weights: WeightsChoice = "best",
    device: Device = "auto",
) -> EncodingCost:
    """Time the encoding of a few batches spread over the data set, and write nothing.

    The first batch is not timed: workers start with it, and devices choose their kernels.
    """
    dataset = open_dataset(data)
    tokenizer = tokenizer_on_device(tokenizer, weights, device)
    encoding = _plan(tokenizer, dataset, image_size, shard_size, flips)
    loading = LoaderSettings(image_size=encoding.image_size, batch_size=batch_size, workers=workers)
    limit = batch_size * (1 + _TIMED_BATCHES * max(1, workers))
    names: list[str] = []
    sides = []
    marks = [(time.perf_counter(), 0)]
    for batch in ImageLoader(dataset, loading).one_pass(limit):
        _encode_batch(tokenizer, batch, flips)
        names += batch.names
        sides.append(batch.sides)
        marks.append((time.perf_counter(), len(names)))
    warn_of_enlarged(torch.cat(sides), encoding.image_size, tokenizer.factor)
    (start, before), (end, after) = marks[1 if len(marks) > 2 else 0], marks[-1]
    token_bytes = prod(encoding.token_shape) * encoding.dtype(0).itemsize * (1 + flips)
    name_bytes = sum(len(name.encode("utf-8", "surrogatepass")) for name in names) / len(names)
    rate = (after - before) / (end - start)
    return EncodingCost(
        images=len(dataset),
        shards=encoding.shards,
        bytes=round(len(dataset) * (token_bytes + name_bytes + _BYTES_PER_IMAGE)),
        measured=after - before,
        images_per_second=float(sum_over_ranks(torch.tensor(rate))),
        processes=world_size(),
    )


def _require_place_for_tokens(folder: Path) -> None:
    # An encoding that was stopped early has left the copy of its tokenizer alone.
    if not (folder / HEADER).exists() and not any(folder.glob("tokens-*.safetensors")):
        require_no_other_files(folder, (TOKENIZER,), "a directory of tokens")


def _plan(
    tokenizer: Tokenizer, dataset: ImageDataset, image_size: int | None, shard_size: int, flips: bool
) -> Encoding:
    if len(dataset) == 0:
        raise DataError(f"{dataset} holds no image.")
    require_at_least(1, shard_size=shard_size)
    _warn_of_unlabelled(dataset)
    image_size = tokenizer.resolve_image_size(image_size)
    side = image_size // tokenizer.factor
    return Encoding(
        fingerprint=tokenizer.fingerprint(),
        codebook_size=tokenizer.codebook_size,
        stages=tokenizer.stages,
        scales=tokenizer.scales,
        length=tokenizer.token_shape(image_size)[0] if tokenizer.scales else 0,
        grid=(side, side),
        image_size=image_size,
        flips=flips,
        classes=tuple(getattr(dataset, "classes", ())),
        source=repr(dataset),
        source_images=len(dataset),
        shard_size=shard_size,
    )


def _warn_of_unlabelled(dataset: ImageDataset) -> None:
    if not isinstance(dataset, FolderDataset) or not dataset.classes or not dataset.unlabelled:
        return
    names = ", ".join(map(repr, dataset.classes[:3])) + (", ..." if len(dataset.classes) > 3 else "")
    warnings.warn(
        f"{dataset.unlabelled:,} of {len(dataset):,} images lie beside the folders of {dataset.root}. They "
        f"have no class, and a generator on these tokens draws only images of {names}: move them into a "
        "folder of their own, or all images into one.",
        LGQWarning,
        stacklevel=3,
    )


def _encode_batch(tokenizer: Tokenizer, batch: Batch, flips: bool) -> EncodedBatch:
    images = batch.images.to(tokenizer.device)
    flipped = tokenizer.encode(images.flip(-1)).cpu() if flips else None
    return EncodedBatch(tokenizer.encode(images).cpu(), flipped, batch.labels, batch.names)
