"""Writing of token shards (`lgq.data.token_format`): whole files, in any order, from any process.

n = images of a shard, h w = tokens along the height and the width.
"""

import json
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
from lgq.files import require_writable, sealed_json, write_file


class EncodedBatch(NamedTuple):
    """Images on their way into a shard."""

    tokens: Int64[Tensor, "n h w *stages"]
    flipped: Int64[Tensor, "n h w *stages"] | None
    labels: Int64[Tensor, " n"]
    """Class numbers, -1 where an image has none."""
    names: list[str]


class TokenWriter:
    """Fills a directory with shards, in any order and from any process; then `finish` makes it readable.

    Shards of the same encoding that a killed writer left are kept if they are whole. Those of another
    encoding are an error, before anything is written.
    """

    def __init__(self, folder: str | Path, encoding: Encoding):
        self.folder, self.encoding = Path(folder), encoding
        require_writable(self.folder)
        self.written: set[int] = set()
        """Numbers of the shards that existed at the start."""
        for path in sorted(self.folder.glob("tokens-*.safetensors")):
            note = read_note(path)
            if note is not None:
                self._require_same(note["encoding"], path)
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
        write_file(self.folder / shard_name(number), save(tensors, {NOTE: sealed}))

    def finish(self) -> None:
        """Write the header, once every shard exists."""
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
        write_file(self.folder / HEADER, sealed_json(header))

    def _require_note(self, path: Path) -> dict[str, Any]:
        note = read_note(path)
        if note is None:
            raise TokenError(f"{path} is missing or damaged: {AGAIN}.")
        self._require_same(note["encoding"], path)
        return note

    def _require_same(self, stored: dict[str, Any], path: Path) -> None:
        expected = to_json(self.encoding)
        for field in fields(Encoding):
            if stored.get(field.name) != expected[field.name]:
                before, now = stored.get(field.name), expected[field.name]
                raise TokenError(
                    f"{path} belongs to another encoding: its {field.name} is {before!r:.80}, not "
                    f"{now!r:.80}. Repeat its arguments, or choose another directory."
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
