"""Images to tokens on disk, and back to images: the work behind `lgq encode`, `decode` and `reconstruct`.

b = images, h w = height and width in pixels.

    tokens = encode_dataset(tokenizer, open_dataset("photos"), "tokens", image_size=256)
    tokens[0].tokens, tokens[0].label, tokens[0].name, tokens.broken
    decode_tokens(tokenizer, "tokens", "pictures")
    reconstruct_images(tokenizer, ["cat.jpg", "dog.png"], "side-by-side")

Beside the tokens is their tokenizer, in tokens/tokenizer/, so that what learns from them can decode them.
Encoding and decoding go on where a killed process stopped. Under torchrun, each process takes a share.
"""

import json
import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from lgq.companion import COPY, leave_copy, require_room_for_copy
from lgq.data.images import BrokenImage, DataError, ImageDataset, StoredImage
from lgq.data.loader import Batch, ImageLoader, Loading
from lgq.data.subset import Subset
from lgq.data.token_format import AGAIN, Encoding, TokenError
from lgq.data.token_writer import EncodedBatch, TokenWriter, write_whole
from lgq.data.tokens import TokenDataset
from lgq.data.transforms import to_png, to_tensor
from lgq.distributed import rank, wait_for_all, world_size
from lgq.evaluation.passes import Progress
from lgq.evaluation.reconstruction import psnr
from lgq.tokenizer import Tokenizer

_DECODED_FROM = "decoded-from.json"

_log = logging.getLogger(__name__)


class ReconstructedImage(NamedTuple):
    """An image beside what the tokenizer makes of it."""

    path: Path
    """Of the original."""
    file: Path
    """The picture: original on the left, reconstruction on the right."""
    psnr: float
    """In dB, over the part of the image that is shown."""


class Reconstructions(NamedTuple):
    """Result of `reconstruct_images`."""

    images: list[ReconstructedImage]
    broken: dict[str, str]
    """Paths that were skipped, with the reason."""


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
    on_progress: Progress | None = None,
) -> TokenDataset:
    """Encode the centre crop of every image into shards of tokens (`lgq.data.tokens`).

    shard_size: images a file; what an interruption loses is the file that was being made.
    flips: encode each image a second time, mirrored left and right.

    An interrupted call is continued by the same call: whole shards are kept, and the result is the
    same, byte for byte. Broken images are left out, logged, and listed in the result's `broken`.
    """
    encoding = plan_encoding(tokenizer, dataset, image_size=image_size, shard_size=shard_size, flips=flips)
    loading = Loading(image_size=image_size, batch_size=batch_size, workers=workers)
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
            _report(on_progress, done + batch.position, total)
        writer.write(shard, batches, loader.broken)
        done += len(part)
        _report(on_progress, done, total)
    wait_for_all()
    if rank() == 0:
        writer.finish()
    wait_for_all()
    return TokenDataset(out)


def tokenizer_of(tokens: TokenDataset) -> Tokenizer:
    """The tokenizer that `encode_dataset` left beside its tokens; in eval mode, on the CPU."""
    folder = tokens.path / COPY
    if not folder.is_dir():
        raise TokenError(
            f"{tokens.path} holds no {COPY}/, by which its tokens can be decoded: {AGAIN}, or name the "
            "tokenizer yourself."
        )
    tokenizer = Tokenizer.from_pretrained(folder)
    tokens.require_fingerprint(tokenizer.fingerprint())
    return tokenizer


def decode_tokens(
    tokenizer: Tokenizer,
    tokens: str | Path,
    out: str | Path,
    *,
    batch_size: int = 32,
    on_progress: Progress | None = None,
) -> int:
    """Write the image of each item of a token directory as a PNG; returns how many images there are.

    Files have the names of the encoded images, with their folders, and with a number where two would
    share a name. An interrupted call is continued by the same call. Tokens of another tokenizer, and
    an `out` that holds anything else, are refused.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size must be 1 or more, got {batch_size}.")
    dataset = TokenDataset(tokens)
    dataset.require_fingerprint(tokenizer.fingerprint())
    # Every name first: damage and bad names are refused before anything is written.
    stems = (_stem_inside(dataset[i].name, dataset) for i in range(len(dataset)))
    files = [Path(out, name) for name in _distinct(stems)]
    if rank() == 0:
        _claim(Path(out), dataset)
    wait_for_all()
    mine = range(rank(), len(files), world_size())
    missing = [i for i in mine if not files[i].exists()]
    done = len(mine) - len(missing)
    for chosen in _in_batches(missing, batch_size):
        images = tokenizer.decode(torch.stack([dataset[i].tokens for i in chosen]).to(_device(tokenizer)))
        for i, image in zip(chosen, images, strict=True):
            write_whole(files[i], to_png(image))
        done += len(chosen)
        _report(on_progress, done, len(mine))
    wait_for_all()
    return len(dataset)


def reconstruct_images(
    tokenizer: Tokenizer, paths: Sequence[str | Path], out: str | Path, *, on_progress: Progress | None = None
) -> Reconstructions:
    """Write each image beside its reconstruction, as `<name>-reconstructed.png`.

    Images keep their size, but for up to f - 1 rows and columns at the borders, as f must divide it.
    What cannot be read is skipped and named; if that is everything, it is an error.
    """
    images: list[ReconstructedImage] = []
    broken: dict[str, str] = {}
    names = _distinct(f"{Path(path).stem}-reconstructed" for path in paths)
    for done, (path, name) in enumerate(zip(map(Path, paths), names, strict=True), 1):
        try:
            original = _read(path, tokenizer.factor)[None].to(_device(tokenizer))
        except BrokenImage as error:
            broken[error.name] = error.reason
            _log.warning("broken image no. %d: %s", len(broken), error)
        else:
            reconstruction = tokenizer.decode(tokenizer.encode(original)).to(original.dtype)
            write_whole(Path(out, name), to_png(torch.cat([original, reconstruction], dim=3)[0]))
            quality = psnr(original, reconstruction).item()
            images.append(ReconstructedImage(path, Path(out, name), quality))
        _report(on_progress, done, len(paths))
    if not images:
        some = "".join(f", such as {name} ({reason})" for name, reason in islice(broken.items(), 1))
        raise DataError(f"none of {len(paths)} images can be read{some}.")
    return Reconstructions(images, broken)


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
        raise ValueError(f"shard_size must be 1 or more, got {shard_size}.")
    side, rest = divmod(image_size, tokenizer.factor)
    if side < 1 or rest:
        raise ValueError(f"image_size must be a multiple of f = {tokenizer.factor}, got {image_size}.")
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
            leave_copy(tokenizer, folder)
        except OSError as error:
            raise TokenError(
                f"cannot write {folder} ({error.strerror or error}): make room, or choose a place that you "
                "may write to."
            ) from error
    wait_for_all()


def encode_batch(tokenizer: Tokenizer, batch: Batch, flips: bool) -> EncodedBatch:
    """The tokens of a batch, on the CPU."""
    images = batch.images.to(_device(tokenizer))
    flipped = tokenizer.encode(images.flip(-1)).cpu() if flips else None
    return EncodedBatch(tokenizer.encode(images).cpu(), flipped, batch.labels, batch.names)


def _read(path: Path, factor: int) -> Float[Tensor, "3 h w"]:
    try:
        stored = StoredImage(path.read_bytes(), str(path))
    except OSError as error:
        raise BrokenImage(str(path), error.strerror or str(error)) from error
    width, height = (side - side % factor for side in stored.size)
    if not width or not height:
        size = " x ".join(map(str, stored.size))
        raise BrokenImage(str(path), f"{size} pixels hold no token of {factor} x {factor}")
    left, top = (stored.size[0] - width) // 2, (stored.size[1] - height) // 2
    return to_tensor(stored.rgb().crop((left, top, left + width, top + height)))


def _distinct(stems: Iterable[str]) -> Iterator[str]:
    """A file name for each stem: its own, or with its number where an earlier one has that."""
    taken: set[str] = set()
    for number, stem in enumerate(stems):
        while stem in taken:
            stem = f"{stem}-{number}"
        taken.add(stem)
        yield f"{stem}.png"


def _stem_inside(name: str, dataset: TokenDataset) -> str:
    # Token files may come from anywhere, and are not to write anywhere.
    path = PurePosixPath(name)
    try:
        fits = path.name not in ("", "..") and not path.is_absolute() and ".." not in path.parts
        fits = fits and b"\0" not in os.fsencode(name)
    except UnicodeEncodeError:
        fits = False
    if not fits:
        raise TokenError(f"{dataset.path} names an image {name!r}, which is no file inside of a folder.")
    return str(path.with_suffix(""))


def _claim(out: Path, dataset: TokenDataset) -> None:
    """Note what is being decoded, so that only the same call goes on with it."""
    note = out / _DECODED_FROM
    origin = json.dumps({"tokens": dataset.checksum}).encode()
    if not note.exists():
        # A killed process may have left a part of the note itself.
        if out.is_dir() and any(not path.name.startswith(_DECODED_FROM) for path in out.iterdir()):
            raise TokenError(f"{out} is not empty: choose a new directory for the decoded images.")
        write_whole(note, origin)
    elif note.read_bytes() != origin:
        raise TokenError(f"{out} holds images of other tokens than {dataset.path}: choose another directory.")


def _in_batches(indices: list[int], size: int) -> Iterator[list[int]]:
    return (indices[first : first + size] for first in range(0, len(indices), size))


def _device(tokenizer: Tokenizer) -> torch.device:
    return next(tokenizer.parameters()).device


def _report(on_progress: Progress | None, done: int, total: int) -> None:
    if on_progress is not None:
        on_progress(done, total)
