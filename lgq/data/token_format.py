"""Format of token shards, and its records.   n = images of a shard, h w = tokens along height and width.

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
shard, images, broken, and a checksum of all this and the tensors), which identifies it while there is no
header yet:

    tokens      (n, h, w), or (n, h, w, stages) where there are several; in the first of uint8, uint16,
                uint32 and int64 that holds the codebook
    flipped     the same for the images mirrored left and right, if `encoding.flips`
    labels      (n,) int64, -1 for none
    names       all names one after the other, in UTF-8 (`surrogatepass`: any string of Python), as uint8
    name_ends   (n,) int64: where each name ends in `names`

Every file is written under another name and then renamed, so it is whole or absent.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Shaped
from safetensors import SafetensorError, safe_open

from lgq.data.images import DataError
from lgq.files import Fingerprint, json_bytes

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

    @property
    def shards(self) -> int:
        return -(-self.source_images // self.shard_size)

    @property
    def token_shape(self) -> tuple[int, ...]:
        """Shape of the tokens of one image."""
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
    intact = checksum == checksum_of(note, tensors) and path.name == shard_name(note["shard"])
    return note if intact else None


def checksum_of(content: dict[str, Any], tensors: dict[str, Array]) -> str:
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
