"""WebDataset shards on a local disk: `<key>.jpg|png|webp` and `<key>.cls` members of tar files.

The members' offsets are read once, at opening; an image is then one `pread`. Nothing is extracted,
so links and members with absolute or `..` paths cannot reach outside of the shard.
"""

import os
import re
import tarfile
from collections.abc import Iterator, Sequence
from glob import glob, has_magic
from itertools import product
from pathlib import Path, PurePosixPath
from typing import BinaryIO, NamedTuple

import numpy as np

from lgq.data.images import UNLABELLED, BrokenImage, DataError, EncodedImage

IMAGE_MEMBERS = ("jpg", "jpeg", "png", "webp")
_OPEN_FILES = 64  # far below the usual limit of 1,024 a process
_MOST_CLASSES = 10**6  # a label becomes a row of some table: a larger one is not a class
_LABEL_BYTES = 20
_BLOCK = 512
_BRACES = re.compile(r"\{(.*?)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")


class ShardDataset:
    """Images in local tar files, in the order of the files and of their members."""

    def __init__(self, paths: Sequence[str | Path]):
        self._files: dict[int, BinaryIO] = {}
        if not paths:
            raise DataError("a shard data set needs at least one tar file, got none.")
        self.paths = tuple(Path(path) for path in paths)
        members = [member for shard, path in enumerate(self.paths) for member in _index(shard, path)]
        if not members:
            rule = f"<key>.{'|'.join(IMAGE_MEMBERS)}, with no other dot in the file name"
            raise DataError(f"{self!r} holds no image; members must be named {rule}.")
        # Arrays, since workers that touch a million Python objects end up copying all of them.
        self._places = np.array([(m.shard, m.offset, m.size, m.label) for m in members], np.int64)
        self._names = np.array([os.fsencode(m.name) for m in members])

    @classmethod
    def from_pattern(cls, pattern: str) -> "ShardDataset":
        """Open `train-{000..005}.tar`, `{a,b}.tar`, `train-*.tar`, or any mix of these."""
        paths = (path for part in expand_braces(pattern) for path in _match(part))
        return cls(list(dict.fromkeys(paths)))

    @property
    def classes(self) -> tuple[str, ...]:
        """Every number up to the largest label: shards do not carry the names of classes."""
        return tuple(map(str, range(self._places[:, 3].max() + 1)))

    def __repr__(self) -> str:
        more = f" and {len(self.paths) - 1} more" if len(self.paths) > 1 else ""
        return f"ShardDataset({str(self.paths[0])!r}{more})"

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index: int) -> EncodedImage:
        shard, offset, size, label = self._places[index].tolist()
        name = os.fsdecode(self._names[index].item())
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


def expand_braces(pattern: str) -> list[str]:
    """As a shell does: `{000..002}` counts with its zeros, `{a,b}` lists; braces repeat, but do not nest."""
    # Split at a pattern with a group: literal text and the insides of braces take turns.
    parts = _BRACES.split(pattern)
    choices = [_words(part, pattern) if i % 2 else [part] for i, part in enumerate(parts)]
    return ["".join(words) for words in product(*choices)]


def _words(inside: str, pattern: str) -> list[str]:
    if counting := _RANGE.fullmatch(inside):
        first, last = counting.groups()
        step = 1 if int(first) <= int(last) else -1
        return [f"{i:0{len(first)}d}" for i in range(int(first), int(last) + step, step)]
    if "," not in inside or "{" in inside:
        raise DataError(f"{pattern}: braces hold {{000..005}} or {{a,b}}, but not {{{inside}}}.")
    return inside.split(",")


def _match(pattern: str) -> list[str]:
    if os.path.isfile(pattern):
        return [pattern]
    matches = sorted(glob(pattern)) if has_magic(pattern) else []
    if not matches:
        raise DataError(f"no shard at {pattern}: check the path, and any range in braces.")
    return matches


class _Member(NamedTuple):
    shard: int
    offset: int
    size: int
    label: int
    name: str


def _index(shard: int, path: Path) -> list[_Member]:
    try:
        with tarfile.open(path, "r:") as tar:
            files = [member for member in tar if member.isreg() and not member.issparse()]
            _check_end(tar, path)
            labels = dict(_labels(tar, files, path))
    except (tarfile.TarError, OSError) as error:
        raise DataError(f"{path} is not a whole, uncompressed tar file ({error}).") from error
    images = [file for file in files if _split(file)[1] in IMAGE_MEMBERS]
    numbers = [labels.get(_split(file)[0], UNLABELLED) for file in images]
    return [
        _Member(shard, file.offset_data, file.size, label, _name(path, file))
        for file, label in zip(images, numbers, strict=True)
    ]


def _check_end(tar: tarfile.TarFile, path: Path) -> None:
    # tarfile takes a damaged header for the end of the archive; a real end is zeros, or nothing.
    assert tar.fileobj is not None
    tar.fileobj.seek(tar.offset)
    if any(tar.fileobj.read(_BLOCK)):
        raise DataError(f"{path} is damaged at byte {tar.offset:,}: fetch it again, or leave it out.")


def _labels(tar: tarfile.TarFile, files: list[tarfile.TarInfo], path: Path) -> Iterator[tuple[str, int]]:
    assert tar.fileobj is not None
    for file in files:
        key, suffix = _split(file)
        if suffix == "cls":
            tar.fileobj.seek(file.offset_data)
            text = tar.fileobj.read(min(file.size, _LABEL_BYTES)).strip()
            if not text.isdigit() or int(text) >= _MOST_CLASSES:
                rule = f"a label is a number from 0 to {_MOST_CLASSES - 1}"
                raise DataError(f"{_name(path, file)}: {rule}, got {text!r}.")
            yield key, int(text)


def _split(file: tarfile.TarInfo) -> tuple[str, str]:
    """WebDataset's key and suffix: a file name parts at its first dot."""
    folder, _, base = file.name.rpartition("/")
    stem, _, suffix = base.partition(".")
    return f"{folder}/{stem}", suffix.lower()


def _name(path: Path, file: tarfile.TarInfo) -> str:
    # Without `/` and `..` at the front: somebody may write a file of this name one day.
    parts = [part for part in PurePosixPath(file.name).parts if part not in ("/", "//", "..")]
    return "/".join([path.name, *parts])
