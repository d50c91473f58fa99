"""Token shards (`lgq.data.token_format`) as a data set: encoded once, read at random.

h w = tokens along the height and the width.

`TokenDataset` reads the header when it opens a directory. It reads a whole shard once, for the sha256, when
the first of its images is asked for; from then on the shard is mapped into memory, and an image costs the
pages that it lies on. `TokenMeaning` tells whether two sets, or a set and a generator, agree on what a token
stands for: the same codes, at the same places, of the same classes.
"""

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Int64
from safetensors import SafetensorError, safe_open
from torch import Tensor

from lgq.config import from_json
from lgq.data.images import UNLABELLED
from lgq.data.token_format import AGAIN, FORMAT, HEADER, Encoding, Header, TokenError, sha256_of, shard_name
from lgq.errors import LGQError
from lgq.files import sealed_json

_LARGEST = 2**48
_WHOLE_NUMBERS = ("U8", "U16", "U32", "I64")


class TokenizedImage(NamedTuple):
    """An item of a token data set."""

    tokens: Int64[Tensor, "*tokens"]
    label: int | None
    name: str
    """Name of the image within the data set that was encoded."""


class TokenDataset:
    """Random access to the tokens, labels and names in a directory; picklable for workers."""

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

    def flipped(self, index: int) -> Int64[Tensor, "*tokens"]:
        """Return the tokens of an image mirrored left and right."""
        if not self.encoding.flips:
            raise TokenError(
                f"{self.path} has no mirrored images: encode with `flips` into another directory."
            )
        shard, row = self._place(index)
        return shard.tokens("flipped", row)

    def require_fingerprint(self, fingerprint: str) -> None:
        """Check that a tokenizer is the one that made the tokens."""
        if fingerprint != self.encoding.fingerprint:
            expected, given = self.encoding.fingerprint[:12], fingerprint[:12]
            raise TokenError(
                f"{self.path} holds tokens of tokenizer {expected}, not of {given}: "
                "use the one that encoded it, or encode again with yours."
            )

    def __getstate__(self) -> dict[str, object]:
        # Maps cannot be pickled; verified shards stay verified.
        return self.__dict__ | {"_mapped": {}}

    def _place(self, index: int) -> tuple["_MappedShard", int]:
        position = range(len(self))[index]
        number = int(np.searchsorted(self._ends, position, side="right"))
        shard = self.header.shards[number]
        if number not in self._mapped:
            path = self.path / shard.file
            if number not in self._verified and sha256_of(path) != shard.sha256:
                raise TokenError(
                    f"{path} is cut short or altered, for its sha256 is not that in {HEADER}: "
                    f"copy it again, or {AGAIN}."
                )
            self._verified.add(number)
            self._mapped[number] = _MappedShard(path, self.encoding, shard.images)
        return self._mapped[number], position - int(self._ends[number]) + shard.images


class _MappedShard:
    """Views of the tensors of a shard; only what is asked for is read."""

    def __init__(self, path: Path, encoding: Encoding, images: int):
        self._path, self._encoding = path, encoding
        try:
            self._file = safe_open(path, "np")
            self._views = {name: self._file.get_slice(name) for name in self._file.keys()}  # noqa: SIM118
            forms = {name: (view.get_shape(), view.get_dtype()) for name, view in self._views.items()}
            shape = [images, *encoding.token_shape]
            expected = {"tokens": shape, "labels": [images], "name_ends": [images]}
            expected |= {"flipped": shape} if encoding.flips else {}
            for name, form in expected.items():
                if forms[name][0] != form or forms[name][1] not in _WHOLE_NUMBERS:
                    raise LGQError(f"{name} has form {forms[name]} instead of whole numbers of {form}")
            if len(forms["names"][0]) != 1 or forms["names"][1] != "U8":
                raise LGQError("names are no row of bytes")
        except (SafetensorError, KeyError, ValueError) as error:
            raise self._not_as_described(f"{error!s:.200}") from error

    def tokens(self, kind: str, row: int) -> Tensor:
        # int64: torch computes little with unsigned integers, and takes uint8 for a mask.
        tokens = torch.from_numpy(self._views[kind][row].astype(np.int64))
        if tokens.min() < 0 or tokens.max() >= self._encoding.codebook_size:
            raise self._not_as_described(f"image {row} has tokens outside the codebook")
        return tokens

    def label(self, row: int) -> int | None:
        label = int(self._views["labels"][row])
        classes = self._encoding.classes
        if label < UNLABELLED or (classes and label >= len(classes)):
            raise self._not_as_described(f"image {row} has label {label}, which no class has")
        return None if label == UNLABELLED else label

    def name(self, row: int) -> str:
        start = int(self._views["name_ends"][row - 1]) if row else 0
        end = int(self._views["name_ends"][row])
        # safetensors gives no empty slice at the end of a tensor.
        if start == end:
            return ""
        if not 0 <= start < end <= self._views["names"].get_shape()[0]:
            raise self._not_as_described(f"image {row} has a name from byte {start} to {end}")
        try:
            return bytes(self._views["names"][start:end]).decode("utf-8", "surrogatepass")
        except UnicodeDecodeError as error:
            raise self._not_as_described(f"image {row} has a name that is no text") from error

    def _not_as_described(self, what: str) -> TokenError:
        return TokenError(f"{self._path} is not what {HEADER} says ({what}): copy it again, or {AGAIN}.")


def _read_header(folder: Path) -> tuple[Header, str]:
    path = folder / HEADER
    try:
        data = path.read_bytes()
    except OSError as error:
        raise TokenError(_why_no_header(folder, error)) from error
    damaged = TokenError(f"{path} is cut short or altered: copy it again, or {AGAIN}.")
    try:
        content = json.loads(data)
        version, checksum = content["format"], content.pop("checksum")
        if isinstance(version, int) and version > FORMAT:
            raise TokenError(
                f"{path} has format {version!s:.40}, and this lgq reads up to {FORMAT}: update lgq."
            )
        if data != sealed_json(content):
            raise damaged
        header = from_json(Header, content)
        _require_consistent(header)
        return header, checksum
    except TokenError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise damaged from error


def _require_consistent(header: Header) -> None:
    """Check for what no writer writes, such as a shard elsewhere on the disk."""
    encoding, shards = header.encoding, header.shards
    sizes = (*encoding.grid, encoding.codebook_size, encoding.stages, encoding.image_size)
    if min(*sizes, encoding.shard_size, encoding.source_images, header.images) < 1 or max(sizes) > _LARGEST:
        raise LGQError("a size is out of range")
    if not 0 <= encoding.length <= _LARGEST or bool(encoding.length) != bool(encoding.scales):
        raise LGQError("the number of tokens is out of range")
    if [shard.file for shard in shards] != [shard_name(number) for number in range(len(shards))]:
        raise LGQError("shards are not named by their numbers")
    counts = [shard.images for shard in shards]
    if min(counts) < 0 or sum(counts) != header.images or len(shards) != encoding.shards:
        raise LGQError("the numbers of images do not add up")


def _why_no_header(folder: Path, error: OSError) -> str:
    if not folder.is_dir():
        problem = "is a file" if folder.exists() else "does not exist"
        return f"{folder} {problem}: name a directory of tokens, as `lgq encode` makes them."
    if (folder / HEADER).exists():
        return f"cannot read {folder / HEADER} ({error.strerror or error}): check its permissions."
    shards = len(list(folder.glob("tokens-*.safetensors")))
    if shards:
        return f"{folder} is unfinished, with {shards} shards but no {HEADER}: {AGAIN}."
    return f"{folder} has no {HEADER}: name a directory of tokens, as `lgq encode` makes them."


@dataclass(frozen=True, kw_only=True)
class TokenMeaning:
    """Meaning of the tokens of a data set or of a generator."""

    owner: str
    """The data set or generator, as errors name it."""
    fingerprint: str
    """Fingerprint of the tokenizer."""
    codebook_size: int
    stages: int
    scales: tuple[int, ...]
    grid: tuple[int, int]
    """Tokens along the height and the width of an image."""
    image_size: int
    """Side in pixels of the square images that have this grid."""
    classes: tuple[str, ...]
    """Label i is `classes[i]`; empty for images without labels."""

    @classmethod
    def of(cls, tokens: TokenDataset) -> "TokenMeaning":
        meaning = {field.name: getattr(tokens.encoding, field.name) for field in fields(cls)[1:]}
        return cls(owner=str(tokens.path), **meaning)

    def require_of(self, tokens: TokenDataset) -> None:
        """Check that tokens mean the same; the last classes may be missing.

        Shards name classes up to their largest label only.
        """
        tokens.require_fingerprint(self.fingerprint)
        if difference := self._difference(tokens.encoding):
            raise TokenError(f"{tokens.path} does not suit {self.owner}: {difference}.")

    def _difference(self, encoding: Encoding) -> str | None:
        """Describe the first difference and the way out."""
        for name in ("codebook_size", "stages", "scales"):
            given, expected = getattr(encoding, name), getattr(self, name)
            if given != expected:
                return f"its {name} is {given}, not {expected}; use the same tokenizer"
        if encoding.grid != self.grid:
            given, expected, size = (
                f"{h} x {w}" for h, w in (encoding.grid, self.grid, [self.image_size] * 2)
            )
            return f"its grid is {given}, not {expected}; encode images of {size} pixels"
        way_out = "encode images of the same classes, in the same order"
        for number, (given, expected) in enumerate(zip(encoding.classes, self.classes, strict=False)):
            if given != expected:
                return f"its class {number} is {given!r}, not {expected!r}; {way_out}"
        # Labels of images without classes are no first class, whatever that is called.
        if len(encoding.classes) > len(self.classes) or bool(encoding.classes) != bool(self.classes):
            given, expected = (
                f"{len(classes):,} class{'es' * (len(classes) > 1)}" if classes else "no classes"
                for classes in (encoding.classes, self.classes)
            )
            return f"it has {given}, and {self.owner} has {expected}; {way_out}"
        return None


def require_same_meaning(*sets: TokenDataset) -> None:
    """Check that all sets mean the same; the last classes may be missing in any of them."""
    meaning = TokenMeaning.of(max(sets, key=lambda tokens: len(tokens.classes)))
    for tokens in sets:
        meaning.require_of(tokens)
