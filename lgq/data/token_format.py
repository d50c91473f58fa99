"""Token shards: format, records and writer.   n = images of a shard, h w = tokens along height and width.

A directory of tokens holds, in format 1:

    tokens.json                 the header, written last: a directory without it is unfinished
    tokens-00000.safetensors    the first `shard_size` images of the data set, in its order, without
    tokens-00001.safetensors    those that could not be read; then the next, and so on

The header is UTF-8 JSON, as `json.dumps(..., indent=2, ensure_ascii=False)` writes it:

    format      1
    encoding    data, tokenizer and settings: the fields of `Encoding`
    images      number of images in all shards
    shards      file, images and sha256 of each
    broken      name and reason of each image that could not be read
    checksum    sha256 of the header without this field

A shard holds these tensors, and under the key `lgq` of its metadata a note in JSON (format, encoding,
shard, images, broken, `data_sha256`, and a checksum of all this and the tensors), which identifies it while
there is no header yet. `data_sha256` is the sha256 of names, labels and bytes of the images, by which those
that have changed are found. Shards of earlier versions do not have it.

    tokens      (n, h, w), or (n, h, w, stages) where there are several, or (n, length) for all scales of a
                multi-scale tokenizer; in the first of uint8, uint16, uint32 and int64 that holds the codebook
    flipped     the same for the images mirrored left and right, if `encoding.flips`
    labels      (n,) int64, -1 for none
    names       all names one after the other, in UTF-8 (`surrogatepass`: any string of Python), as uint8
    name_ends   (n,) int64: where each name ends in `names`

Every file is written under another name and then renamed, so it is whole or absent.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Int64, Shaped
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save
from torch import Tensor

from lgq.config import to_json
from lgq.data.images import DataError
from lgq.files import (
    Fingerprint,
    json_bytes,
    named_disk_errors,
    require_writable,
    sealed_json,
    sync_directory,
    write_file,
)

FORMAT = 1
HEADER = "tokens.json"
NOTE = "lgq"
"""Key of the note in the metadata of a shard."""
AGAIN = "encode again with the same arguments, which replaces what is missing or damaged"

_DTYPES = (np.uint8, np.uint16, np.uint32, np.int64)

Array = Shaped[np.ndarray, "..."]


class TokenError(DataError):
    """Tokens that cannot be read or written."""


@dataclass(frozen=True, kw_only=True)
class Encoding:
    """Data, tokenizer and settings of tokens, which must all be equal for an encoding to be continued."""

    fingerprint: str
    """Fingerprint of the tokenizer."""
    codebook_size: int
    """Number of codes: tokens are below it."""
    stages: int
    """Tokens per place; above 1, tokens have a trailing axis of stages."""
    grid: tuple[int, int]
    """Tokens along the height and the width of an image."""
    image_size: int
    """Side in pixels of the square images that were encoded."""
    flips: bool
    """True if each image has a second encoding, of its mirror image."""
    classes: tuple[str, ...]
    """Names of the classes: label i is `classes[i]`."""
    source: str
    """The data set, as its `repr`."""
    source_images: int
    """Images in the data set, including those that could not be read."""
    shard_size: int
    """Images of the data set per shard; the last one may cover fewer."""
    scales: tuple[int, ...] = ()
    """Sides of the grids of a multi-scale tokenizer, whose tokens are one sequence; none for a grid."""
    length: int = 0
    """Tokens of all scales; 0 without scales."""

    @property
    def shards(self) -> int:
        return -(-self.source_images // self.shard_size)

    @property
    def token_shape(self) -> tuple[int, ...]:
        """Shape of the tokens of one image."""
        if self.scales:
            return (self.length,)
        return self.grid if self.stages == 1 else (*self.grid, self.stages)

    @property
    def dtype(self) -> Any:
        """Narrowest type that holds the codebook."""
        return next(kind for kind in _DTYPES if self.codebook_size - 1 <= np.iinfo(kind).max)


@dataclass(frozen=True, kw_only=True)
class Shard:
    """Record of a shard in the header."""

    file: str
    images: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Header:
    """Content of tokens.json."""

    format: int
    encoding: Encoding
    images: int
    shards: tuple[Shard, ...]
    broken: tuple[tuple[str, str], ...]


def shard_name(number: int) -> str:
    return f"tokens-{number:05d}.safetensors"


def read_note(path: Path) -> dict[str, Any] | None:
    """Read the note of a shard; None where the shard is absent, damaged or has the name of another."""
    try:
        with safe_open(path, "np") as file:
            note: dict[str, Any] = json.loads(file.metadata()[NOTE])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        checksum = note.pop("checksum")
    except (OSError, SafetensorError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    intact = checksum == _checksum_of(note, tensors) and path.name == shard_name(note["shard"])
    return note if intact else None


def _checksum_of(content: dict[str, Any], tensors: dict[str, Array]) -> str:
    digest = hashlib.sha256(json_bytes(content))
    for name, tensor in sorted(tensors.items()):
        digest.update(name.encode())
        digest.update(tensor.tobytes())
    return digest.hexdigest()


def sha256_of(path: Path) -> str:
    try:
        return Fingerprint.of_file(path).sha256
    except OSError as error:
        raise TokenError(f"cannot read {path} ({error.strerror or error}): {AGAIN}.") from error


class EncodedBatch(NamedTuple):
    """Images on their way into a shard."""

    tokens: Int64[Tensor, "n *tokens"]
    flipped: Int64[Tensor, "n *tokens"] | None
    labels: Int64[Tensor, " n"]
    """Class numbers, -1 where an image has none."""
    names: list[str]


class TokenWriter:
    """Fills a directory with shards, in any order and from any process; then `finish` makes it readable.

    Whole shards of the same encoding are kept, unless they are written again. Those of another encoding are
    an error, before anything is written.
    """

    def __init__(self, folder: str | Path, encoding: Encoding):
        self.folder, self.encoding = Path(folder), encoding
        require_writable(self.folder)
        self.written: dict[int, dict[str, Any]] = {}
        """Notes of the shards that existed at the start, by number."""
        for path in sorted(self.folder.glob("tokens-*.safetensors")):
            if (note := read_note(path)) is not None:
                self._require_same(note["encoding"], path)
                self.written[note["shard"]] = note

    def reopen(self) -> None:
        """Remove the header before shards are written again: until `finish`, the directory is unfinished."""
        header = self.folder / HEADER
        if header.exists():
            with named_disk_errors(header):
                header.unlink()
                sync_directory(self.folder)

    def write(
        self, number: int, batches: Sequence[EncodedBatch], broken: dict[str, str], *, data_sha256: str = ""
    ) -> None:
        """Write one shard, whole or not at all.

        data_sha256: sha256 of the images that it covers, those that could not be read included.
        """
        tensors = self._tensors(batches)
        note = self._note(number, len(tensors["labels"]), broken, data_sha256)
        sealed = json.dumps({**note, "checksum": _checksum_of(note, tensors)})
        write_file(self.folder / shard_name(number), save(tensors, {NOTE: sealed}))

    def _note(self, number: int, images: int, broken: dict[str, str], data_sha256: str) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "encoding": to_json(self.encoding),
            "shard": number,
            "images": images,
            "broken": [list(pair) for pair in broken.items()],
            "data_sha256": data_sha256,
        }

    def finish(self) -> None:
        """Write the header, once every shard exists."""
        paths = [self.folder / shard_name(number) for number in range(self.encoding.shards)]
        notes = []
        for path in paths:
            if (note := read_note(path)) is None:
                raise TokenError(f"{path} is missing or damaged: {AGAIN}.")
            self._require_same(note["encoding"], path)
            notes.append(note)
        header = {
            "format": FORMAT,
            "encoding": to_json(self.encoding),
            "images": sum(note["images"] for note in notes),
            "shards": [
                {"file": path.name, "images": note["images"], "sha256": sha256_of(path)}
                for path, note in zip(paths, notes, strict=True)
            ],
            "broken": [pair for note in notes for pair in note["broken"]],
        }
        if header["images"] == 0:
            name, reason = header["broken"][0]
            source, count = self.encoding.source, self.encoding.source_images
            raise DataError(f"none of {count:,} images can be read in {source}, such as {name} ({reason}).")
        write_file(self.folder / HEADER, sealed_json(header))

    def _require_same(self, stored: dict[str, Any], path: Path) -> None:
        for name, now in to_json(self.encoding).items():
            if (before := stored.get(name)) != now:
                raise TokenError(
                    f"{path} belongs to another encoding: its `{name}` is {before!r:.80}, not {now!r:.80}. "
                    "Repeat its arguments, or choose another directory."
                )

    def _tensors(self, batches: Sequence[EncodedBatch]) -> dict[str, Array]:
        names = [name.encode("utf-8", "surrogatepass") for batch in batches for name in batch.names]
        labels = [batch.labels.long().numpy() for batch in batches]
        tensors = {
            "tokens": self._narrow([batch.tokens for batch in batches]),
            "labels": np.concatenate([np.zeros(0, np.int64), *labels]),
            "names": np.frombuffer(b"".join(names), np.uint8),
            "name_ends": np.cumsum([len(name) for name in names], dtype=np.int64),
        }
        if self.encoding.flips:
            flipped = [batch.flipped for batch in batches if batch.flipped is not None]
            tensors["flipped"] = self._narrow(flipped)
        assert all(len(tensors[name]) == len(names) for name in tensors if name != "names")
        return tensors

    def _narrow(self, parts: list[Tensor]) -> Array:
        shape, size = self.encoding.token_shape, self.encoding.codebook_size
        tokens = torch.cat([torch.zeros(0, *shape, dtype=torch.int64), *parts]).numpy()
        # Narrowing wraps around silently.
        assert ((tokens >= 0) & (tokens < size)).all(), f"tokens outside a codebook of {size}"
        return tokens.astype(self.encoding.dtype)
