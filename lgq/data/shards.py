"""WebDataset shards on a local disk: tar files with the members `<key>.jpg|png|webp` and `<key>.cls`.

A file name splits at its first dot into key and suffix; folders belong to the key. The offsets of the members
are read once, at opening; an image is then one `pread`. Nothing is extracted, so links and members with
absolute or `..` paths cannot reach outside the shard. A `classes.json` beside the shards holds the names of
the classes: a list, label i is item i. An item is a name, as `lgq shard` writes it, or an object with a
`name` and whatever else a publisher knows of the class.   n = members of a shard.
"""

import json
import os
import re
import tarfile
from collections.abc import Sequence
from glob import glob, has_magic
from itertools import product
from math import prod
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

import numpy as np
from jaxtyping import Int64, Shaped

from lgq.data.images import UNLABELLED, BrokenImage, DataError, EncodedImage, require_readable_size

IMAGE_MEMBERS = ("jpg", "jpeg", "png", "webp")
LABEL_MEMBER = "cls"
CLASSES = "classes.json"
NAMING = f"members must be named <key>.{'|'.join(IMAGE_MEMBERS)}, with no other dot in the file name"

_LABEL_BYTES = 20  # a number below `_MOST_CLASSES` has fewer
_LONGEST_NAME = 4096  # that of a path; all names of a data set take the space of the longest
_MOST_CLASSES = 10**6  # a label becomes a row of some table: a larger one is not a class
_MOST_SHARDS = 10**6
_OPEN_FILES = 64  # far below the usual limit of 1,024 per process
_BLOCK = 512
_BRACES = re.compile(r"\{(.*?)\}")
_RANGE = re.compile(r"(\d{1,18})\.\.(\d{1,18})")


class ShardDataset:
    """Images in local tar files, in the order of the files and of their members."""

    def __init__(self, paths: Sequence[str | Path]):
        self._files: dict[int, BinaryIO] = {}
        if not paths:
            raise DataError("a shard data set needs at least one tar file, got none.")
        self.paths = tuple(Path(path) for path in paths)
        # Arrays, since workers that touch a million Python objects end up copying all of them; shard by
        # shard, since a million of them would take hundreds of megabytes.
        indexes = [_index(shard, path) for shard, path in enumerate(self.paths)]
        self._places = np.concatenate([places for places, _ in indexes])
        if not len(self._places):
            raise DataError(f"{self} holds no image; {NAMING}.")
        self._names = np.concatenate([names for _, names in indexes])
        self.classes = _class_names(self.paths[0].parent, int(self._places[:, 3].max()) + 1)
        """Label i is `classes[i]`; without a `classes.json`, every number up to the largest label."""

    @classmethod
    def from_pattern(cls, pattern: str) -> "ShardDataset":
        """Open `train-{000..005}.tar`, `{a,b}.tar`, `train-*.tar`, or any mix of these."""
        paths = (path for part in expand_braces(pattern) for path in _match(part))
        return cls(list(dict.fromkeys(paths)))

    def __repr__(self) -> str:
        return f"ShardDataset({str(self.paths[0])!r}{self._more()})"

    def __str__(self) -> str:
        return f"{self.paths[0]}{self._more()}"

    def _more(self) -> str:
        return f" and {len(self.paths) - 1} more" if len(self.paths) > 1 else ""

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index: int) -> EncodedImage:
        shard, offset, size, label = self._places[index].tolist()
        name = os.fsdecode(self._names[index].item())
        require_readable_size(size, name)
        try:
            data = os.pread(self._file(shard).fileno(), size, offset)
        except OSError as error:
            raise BrokenImage(name, error.strerror or str(error)) from error
        return EncodedImage(data, None if label == UNLABELLED else label, name)

    def __getstate__(self) -> dict[str, object]:
        # Open files cannot be pickled. Forked workers may share them: pread moves no file position.
        return self.__dict__ | {"_files": {}}

    def __del__(self) -> None:
        for file in self._files.values():
            file.close()

    def _file(self, shard: int) -> BinaryIO:
        if shard not in self._files:
            if len(self._files) >= _OPEN_FILES:
                self._files.pop(next(iter(self._files))).close()
            self._files[shard] = open(self.paths[shard], "rb", buffering=0)  # noqa: SIM115 - stays open
        return self._files[shard]


def split_key(member: str) -> tuple[str, str]:
    """Return WebDataset's key and suffix of a member."""
    folder, _, base = member.rpartition("/")
    stem, _, suffix = base.partition(".")
    return f"{folder}/{stem}", suffix.lower()


def member_name(shard: str, member: str) -> str:
    """Return the name of an image within its data set: file name of the shard, and path in it."""
    if len(member) > _LONGEST_NAME:
        raise DataError(f"{shard}: {member:.40}... is a name of over {_LONGEST_NAME:,} characters.")
    # Without `/` and `..` at the front: somebody may write a file of this name one day.
    parts = [part for part in PurePosixPath(member).parts if part not in ("/", "//", "..")]
    return "/".join([shard, *parts])


def parse_label(text: bytes, name: str) -> int:
    """Return the class number in a label member of this name."""
    digits = text[:_LABEL_BYTES].strip()
    if not digits.isdigit() or int(digits) >= _MOST_CLASSES:
        raise DataError(f"{name}: a label is a number from 0 to {_MOST_CLASSES - 1}, got {digits!r}.")
    return int(digits)


def expand_braces(pattern: str) -> list[str]:
    """Expand as a shell does: `{000..002}` keeps its zeros, `{a,b}` lists; braces repeat, but do not nest."""
    # Split at a pattern with a group: literal text and the insides of braces alternate.
    parts = _BRACES.split(pattern)
    choices = [_words(part, pattern) if i % 2 else [part] for i, part in enumerate(parts)]
    _require_few(prod(map(len, choices)), pattern)
    return ["".join(words) for words in product(*choices)]


def _words(inside: str, pattern: str) -> list[str]:
    if numbers := _RANGE.fullmatch(inside):
        first, last = numbers.groups()
        _require_few(abs(int(first) - int(last)), pattern)
        step = 1 if int(first) <= int(last) else -1
        return [f"{i:0{len(first)}d}" for i in range(int(first), int(last) + step, step)]
    if "," not in inside or "{" in inside:
        raise DataError(f"{pattern:.200}: braces hold {{000..005}} or {{a,b}}, but not {{{inside:.200}}}.")
    return inside.split(",")


def _require_few(shards: int, pattern: str) -> None:
    if shards > _MOST_SHARDS:
        raise DataError(f"{pattern:.200} names over {_MOST_SHARDS:,} shards: check the ranges in braces.")


def _match(pattern: str) -> list[str]:
    if os.path.isfile(pattern):
        return [pattern]
    matches = sorted(glob(pattern)) if has_magic(pattern) else []
    if not matches:
        raise DataError(f"no shard at {pattern}: check the path, and any range in braces.")
    return matches


def _index(shard: int, path: Path) -> tuple[Int64[np.ndarray, "n 4"], Shaped[np.ndarray, " n"]]:
    """Read shard, offset, size and label of each image, and its name."""
    try:
        with tarfile.open(path, "r:") as tar:
            assert tar.fileobj is not None
            files = [member for member in tar if member.isreg() and not member.issparse()]
            # tarfile takes a damaged header for the end of the archive; a real end is zeros, or nothing.
            tar.fileobj.seek(tar.offset)
            if any(tar.fileobj.read(_BLOCK)):
                way_out = "download it again, or leave it out"
                raise DataError(f"{path} is damaged at byte {tar.offset:,}: {way_out}.")
            labels = {}
            for file in files:
                key, suffix = split_key(file.name)
                if suffix == LABEL_MEMBER:
                    tar.fileobj.seek(file.offset_data)
                    text = tar.fileobj.read(min(file.size, _LABEL_BYTES))
                    labels[key] = parse_label(text, member_name(path.name, file.name))
    except DataError:
        raise
    except Exception as error:  # hostile headers make tarfile raise ValueError, MemoryError, ...
        raise DataError(f"{path} is not a whole, uncompressed tar file ({error}).") from error
    places, names = [], []
    for file in files:
        key, suffix = split_key(file.name)
        if suffix in IMAGE_MEMBERS:
            places.append((shard, file.offset_data, file.size, labels.get(key, UNLABELLED)))
            names.append(os.fsencode(member_name(path.name, file.name)))
    return np.array(places, np.int64).reshape(-1, 4), np.array(names, np.bytes_)


def _class_names(folder: Path, number: int) -> tuple[str, ...]:
    """Read the names of at least `number` classes."""
    path = folder / CLASSES
    if not path.exists():
        return tuple(map(str, range(number)))
    try:
        entries = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"cannot read {path} ({error}): correct it, or remove it.") from error
    names: list[Any] = [
        entry.get("name") if isinstance(entry, dict) and entry.get("class", label) == label else entry
        for label, entry in enumerate(entries if isinstance(entries, list) else [None])
    ]
    if not all(isinstance(name, str) for name in names):
        rule = 'a list of names, or of objects {"name": ...} with a "class", if any, that counts from 0'
        raise DataError(f"{path} must be {rule}: correct it, or remove it.")
    if len(names) < number:
        raise DataError(
            f"{path} names {len(names)} classes, but a label is {number - 1}: correct or remove it."
        )
    return tuple(names)
