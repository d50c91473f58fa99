"""Token shards: the images of a data set as tokens, encoded once, read at random.

n = images of a shard, h w = tokens along the height and the width.

A directory of tokens holds, in format 1:

    tokens.json                 the header, written last: a directory without it is unfinished
    tokens-00000.safetensors    the first `shard_size` images of the data set, in its order, without
    tokens-00001.safetensors    those that could not be read; then the next, and so on

The header is UTF-8 JSON, as `json.dumps(..., indent=2, ensure_ascii=False)` writes it:

    format      1
    encoding    what was encoded, and how: the fields of `Encoding`
    images      number of images in all shards
    shards      file, images and sha256 of each
    broken      name and reason of each image that could not be read
    checksum    sha256 of the header without this field

A shard holds these tensors, and under the key `lgq` of its metadata a note in JSON (format, encoding,
shard, images, broken, and a checksum of all this and the tensors), by which it can be told apart
while there is no header yet:

    tokens      (n, h, w), or (n, h, w, stages) where there are several; in the first of uint8, uint16,
                uint32 and int64 that holds the codebook
    flipped     the same for the images mirrored left and right, if `encoding.flips`
    labels      (n,) int64, -1 for none
    names       all names one after the other, in UTF-8 (`surrogatepass`: any string of Python), as uint8
    name_ends   (n,) int64: where each name ends in `names`

Every file is written beside its place and then renamed, so it is whole or absent. `TokenDataset`
reads the header when it opens a directory. It reads a whole shard once, for the sha256, when the
first image of it is asked for; from then on the shard is mapped into memory, and an image costs
the pages that it lies on.
"""

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Int64, Shaped
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save
from torch import Tensor

from lgq.config import ConfigError, from_json, to_json
from lgq.data.images import DataError
from lgq.files import Fingerprint, json_bytes, make_directory, replace_file, sealed_json

FORMAT = 1
HEADER = "tokens.json"

_NOTE = "lgq"
_UNLABELLED = -1
_DTYPES = (np.uint8, np.uint16, np.uint32, np.int64)
_AGAIN = "encode again with the same arguments, which makes anew what is missing or damaged"

Array = Shaped[np.ndarray, "..."]


class TokenError(DataError):
    """Tokens that cannot be read or written; the message names the file, the rule and the way out."""


@dataclass(frozen=True, kw_only=True)
class Encoding:
    """What was encoded, and how: an unfinished directory is continued only where all of it is equal."""

    fingerprint: str
    """Of the tokenizer."""
    codebook_size: int
    """Number of codes: tokens are below it."""
    stages: int
    """Tokens at each place; above 1, tokens have a trailing axis of stages."""
    grid: tuple[int, int]
    """Tokens along the height and the width of an image."""
    image_size: int
    """Side in pixels of the square images that were encoded."""
    flips: bool
    """Whether each image has a second encoding, of its mirror image."""
    classes: tuple[str, ...]
    """Label i is `classes[i]`."""
    source: str
    """The data set, as it shows itself."""
    source_images: int
    """Images in the data set, with those that could not be read."""
    shard_size: int
    """Images of the data set that a shard covers; the last one may cover fewer."""

    @property
    def shards(self) -> int:
        return -(-self.source_images // self.shard_size)

    @property
    def token_shape(self) -> tuple[int, ...]:
        """Of one image."""
        return self.grid if self.stages == 1 else (*self.grid, self.stages)

    @property
    def dtype(self) -> Any:
        """The narrowest type on disk that holds the codebook."""
        return next(kind for kind in _DTYPES if self.codebook_size - 1 <= np.iinfo(kind).max)


class EncodedBatch(NamedTuple):
    """Some images on their way into a shard."""

    tokens: Int64[Tensor, "n h w *stages"]
    flipped: Int64[Tensor, "n h w *stages"] | None
    labels: Int64[Tensor, " n"]
    """-1 where an image has none."""
    names: list[str]


class TokenizedImage(NamedTuple):
    """An item of a token data set."""

    tokens: Int64[Tensor, "h w *stages"]
    label: int | None
    name: str
    """Of the image within the data set that was encoded."""


@dataclass(frozen=True, kw_only=True)
class Shard:
    """What the header says of a shard."""

    file: str
    images: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Header:
    """The content of tokens.json."""

    format: int
    encoding: Encoding
    images: int
    shards: tuple[Shard, ...]
    broken: tuple[tuple[str, str], ...]


class TokenDataset:
    """The tokens in a directory, as random access to (tokens, label, name); picklable for workers."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.header, self.checksum = _read_header(self.path)
        self.encoding = self.header.encoding
        self.classes = self.encoding.classes
        self.broken = dict(self.header.broken)
        """Images that could not be read when they were encoded, with the reason."""
        self._ends = np.cumsum([shard.images for shard in self.header.shards])
        self._verified: set[int] = set()
        self._mapped: dict[int, _MappedShard] = {}

    def __repr__(self) -> str:
        return f"TokenDataset({str(self.path)!r})"

    def __len__(self) -> int:
        return self.header.images

    def __getitem__(self, index: int) -> TokenizedImage:
        shard, row = self._place(index)
        return TokenizedImage(shard.tokens("tokens", row), shard.label(row), shard.name(row))

    def flipped(self, index: int) -> Int64[Tensor, "h w *stages"]:
        """The tokens of an image mirrored left and right."""
        if not self.encoding.flips:
            raise TokenError(f"{self.path} has no mirrored images: encode with flips into another directory.")
        shard, row = self._place(index)
        return shard.tokens("flipped", row)

    def require_fingerprint(self, fingerprint: str) -> None:
        """Refuse to go on with any other tokenizer than the one that made the tokens."""
        if fingerprint != self.encoding.fingerprint:
            made, given = self.encoding.fingerprint[:12], fingerprint[:12]
            raise TokenError(
                f"{self.path} holds tokens of tokenizer {made}, not of {given}: "
                "use the one that encoded it, or encode again with yours."
            )

    def verify(self) -> None:
        """Read every shard and compare its sha256 now; before a fork, it spares the workers doing so."""
        for number in range(len(self.header.shards)):
            self._verify(number)

    def __getstate__(self) -> dict[str, object]:
        # Maps cannot be pickled; what was verified stays so.
        return self.__dict__ | {"_mapped": {}}

    def _place(self, index: int) -> tuple["_MappedShard", int]:
        position = range(len(self))[index]
        number = int(np.searchsorted(self._ends, position, side="right"))
        if number not in self._mapped:
            self._mapped[number] = _MappedShard(self._verify(number))
        return self._mapped[number], position - int(self._ends[number]) + self.header.shards[number].images

    def _verify(self, number: int) -> Path:
        shard = self.header.shards[number]
        path = self.path / shard.file
        if number not in self._verified:
            if _sha256(path) != shard.sha256:
                raise TokenError(
                    f"{path} is cut short or altered, for its sha256 is not that in {HEADER}: "
                    f"copy it again, or {_AGAIN}."
                )
            self._verified.add(number)
        return path


class _MappedShard:
    """Views of a shard's tensors; only what is asked for is read."""

    def __init__(self, path: Path):
        self._file = safe_open(path, "np")
        self._views = {name: self._file.get_slice(name) for name in self._file.keys()}  # noqa: SIM118

    def tokens(self, kind: str, row: int) -> Tensor:
        # int64 in hand: torch computes little with unsigned integers, and takes uint8 for a mask.
        return torch.from_numpy(self._views[kind][row].astype(np.int64))

    def label(self, row: int) -> int | None:
        label = int(self._views["labels"][row])
        return None if label == _UNLABELLED else label

    def name(self, row: int) -> str:
        start = int(self._views["name_ends"][row - 1]) if row else 0
        end = int(self._views["name_ends"][row])
        # safetensors gives no empty slice at the end of a tensor.
        return bytes(self._views["names"][start:end]).decode("utf-8", "surrogatepass") if start < end else ""


class TokenWriter:
    """Fills a directory with shards, in any order and from any process; then `finish` makes it readable.

    Shards of the same encoding that a killed writer left are kept if they are whole. Those of another
    encoding are refused, before anything is written.
    """

    def __init__(self, folder: str | Path, encoding: Encoding):
        self.folder, self.encoding = Path(folder), encoding
        _require_writable(self.folder)
        self.written: set[int] = set()
        """Numbers of the shards that were there at the start."""
        for path in sorted(self.folder.glob("tokens-*.safetensors")):
            note = _read_note(path)
            if note is not None:
                _require_same(note["encoding"], to_json(encoding), path)
                self.written.add(note["shard"])

    def write(self, number: int, batches: Sequence[EncodedBatch], broken: dict[str, str]) -> None:
        """Write one shard, whole or not at all."""
        tensors = self._tensors(batches)
        note = {
            "format": FORMAT,
            "encoding": to_json(self.encoding),
            "shard": number,
            "images": len(tensors["labels"]),
            "broken": [list(pair) for pair in broken.items()],
        }
        sealed = json.dumps({**note, "checksum": _checksum(note, tensors)})
        write_whole(self.folder / shard_name(number), save(tensors, {_NOTE: sealed}))

    def finish(self) -> None:
        """Write the header, once every shard is there."""
        paths = [self.folder / shard_name(number) for number in range(self.encoding.shards)]
        notes = [self._require_note(path) for path in paths]
        header = {
            "format": FORMAT,
            "encoding": to_json(self.encoding),
            "images": sum(note["images"] for note in notes),
            "shards": [
                {"file": path.name, "images": note["images"], "sha256": _sha256(path)}
                for path, note in zip(paths, notes, strict=True)
            ],
            "broken": [pair for note in notes for pair in note["broken"]],
        }
        if header["images"] == 0:
            name, reason = header["broken"][0]
            source, count = self.encoding.source, self.encoding.source_images
            raise DataError(f"none of {count:,} images can be read in {source}, such as {name} ({reason}).")
        write_whole(self.folder / HEADER, sealed_json(header))

    def _require_note(self, path: Path) -> dict[str, Any]:
        note = _read_note(path)
        if note is None:
            raise TokenError(f"{path} is missing or damaged: {_AGAIN}.")
        _require_same(note["encoding"], to_json(self.encoding), path)
        return note

    def _tensors(self, batches: Sequence[EncodedBatch]) -> dict[str, Array]:
        names = [name.encode("utf-8", "surrogatepass") for batch in batches for name in batch.names]
        tensors = {
            "tokens": self._narrow([batch.tokens for batch in batches]),
            "labels": np.concatenate([np.zeros(0, np.int64), *(batch.labels.numpy() for batch in batches)]),
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
        # Narrowing wraps around without a word.
        assert ((tokens >= 0) & (tokens < size)).all(), f"tokens outside of a codebook of {size}"
        return tokens.astype(self.encoding.dtype)


def shard_name(number: int) -> str:
    return f"tokens-{number:05d}.safetensors"


def write_whole(path: Path, data: bytes) -> None:
    """Write a file so that nobody, not even after a crash, meets a part of it."""
    try:
        make_directory(path.parent)
        replace_file(path, data)
    except OSError as error:
        raise _cannot_write(path, error) from error


def _cannot_write(path: Path, error: OSError) -> TokenError:
    return TokenError(
        f"cannot write {path} ({error.strerror or error}): make room, or choose a place that you may "
        "write to; what is finished stays, and the same command goes on from there."
    )


def _require_writable(folder: Path) -> None:
    # Now, and not when the first shard is done.
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _cannot_write(folder, error) from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise TokenError(f"cannot write {folder} (no permission): choose a directory that you may write to.")


def _require_same(found: dict[str, Any], wanted: dict[str, Any], path: Path) -> None:
    for field in fields(Encoding):
        if found.get(field.name) != wanted[field.name]:
            raise TokenError(
                f"{path} is of another encoding: its {field.name} is {_short(found.get(field.name))}, not "
                f"{_short(wanted[field.name])}. Repeat its arguments, or choose another directory."
            )


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _read_header(folder: Path) -> tuple[Header, str]:
    path = folder / HEADER
    try:
        data = path.read_bytes()
    except OSError as error:
        raise TokenError(_why_no_header(folder, error)) from error
    damaged = TokenError(f"{path} is cut short or altered: copy it again, or {_AGAIN}.")
    try:
        content = json.loads(data)
        version, checksum = content["format"], content.pop("checksum")
        if isinstance(version, int) and version > FORMAT:
            raise TokenError(f"{path} has format {version}, and this lgq reads up to {FORMAT}: update lgq.")
        if data != sealed_json(content):
            raise damaged
        return from_json(Header, content), checksum
    except TokenError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, ConfigError) as error:
        raise damaged from error


def _why_no_header(folder: Path, error: OSError) -> str:
    if not folder.is_dir():
        found = "is a file" if folder.exists() else "does not exist"
        return f"{folder} {found}: name a directory of tokens, as `lgq encode` makes them."
    if (folder / HEADER).exists():
        return f"cannot read {folder / HEADER} ({error.strerror or error}): check its permissions."
    shards = len(list(folder.glob("tokens-*.safetensors")))
    if shards:
        return f"{folder} is unfinished, with {shards} shards but no {HEADER}: {_AGAIN}."
    return f"{folder} has no {HEADER}: name a directory of tokens, as `lgq encode` makes them."


def _read_note(path: Path) -> dict[str, Any] | None:
    """What a shard says of itself; none where it is absent, damaged or under another's name."""
    try:
        with safe_open(path, "np") as file:
            note: dict[str, Any] = json.loads(file.metadata()[_NOTE])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        checksum = note.pop("checksum")
    except (OSError, SafetensorError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    intact = checksum == _checksum(note, tensors) and path.name == shard_name(note["shard"])
    return note if intact else None


def _checksum(content: dict[str, Any], tensors: dict[str, Array]) -> str:
    digest = hashlib.sha256(json_bytes(content))
    for name, tensor in sorted(tensors.items()):
        digest.update(name.encode())
        digest.update(tensor.tobytes())
    return digest.hexdigest()


def _sha256(path: Path) -> str:
    try:
        return Fingerprint.of_file(path).sha256
    except OSError as error:
        raise TokenError(f"cannot read {path} ({error.strerror or error}): {_AGAIN}.") from error
