"""Writing of token shards (`lgq.data.token_format`): whole files, in any order, from any process.

n = images of a shard, h w = tokens along the height and the width.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Int64
from safetensors.numpy import save
from torch import Tensor

from lgq.config import to_json
from lgq.data.images import DataError
from lgq.data.token_format import (
    AGAIN,
    FORMAT,
    HEADER,
    NOTE,
    Array,
    Encoding,
    TokenError,
    checksum_of,
    read_note,
    sha256_of,
    shard_name,
)
from lgq.files import make_directory, replace_file, sealed_json


class EncodedBatch(NamedTuple):
    """Some images on their way into a shard."""

    tokens: Int64[Tensor, "n h w *stages"]
    flipped: Int64[Tensor, "n h w *stages"] | None
    labels: Int64[Tensor, " n"]
    """-1 where an image has none."""
    names: list[str]


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
            note = read_note(path)
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
        sealed = json.dumps({**note, "checksum": checksum_of(note, tensors)})
        write_whole(self.folder / shard_name(number), save(tensors, {NOTE: sealed}))

    def finish(self) -> None:
        """Write the header, once every shard is there."""
        paths = [self.folder / shard_name(number) for number in range(self.encoding.shards)]
        notes = [self._require_note(path) for path in paths]
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
        write_whole(self.folder / HEADER, sealed_json(header))

    def _require_note(self, path: Path) -> dict[str, Any]:
        note = read_note(path)
        if note is None:
            raise TokenError(f"{path} is missing or damaged: {AGAIN}.")
        _require_same(note["encoding"], to_json(self.encoding), path)
        return note

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
        # Narrowing wraps around without a word.
        assert ((tokens >= 0) & (tokens < size)).all(), f"tokens outside of a codebook of {size}"
        return tokens.astype(self.encoding.dtype)


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
