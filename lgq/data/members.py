"""What the members of a WebDataset shard are: `<key>.jpg|png|webp` is an image, `<key>.cls` its label.

A file name parts at its first dot into key and suffix; folders belong to the key.
"""

import re
from pathlib import PurePosixPath

from lgq.data.images import DataError

IMAGE_MEMBERS = ("jpg", "jpeg", "png", "webp")
LABEL_MEMBER = "cls"
LABEL_BYTES = 20
"""Of a label that are read; a number below `_MOST_CLASSES` has fewer."""
NAMING = f"members must be named <key>.{'|'.join(IMAGE_MEMBERS)}, with no other dot in the file name"

_LONGEST_NAME = 4096  # as of a path; all names of a data set take the room of the longest
_MOST_CLASSES = 10**6  # a label becomes a row of some table: a larger one is not a class
_UNSAFE = re.compile(r"[\x00-\x1f\x7f\\]")


def split_key(member: str) -> tuple[str, str]:
    """WebDataset's key and suffix."""
    folder, _, base = member.rpartition("/")
    stem, _, suffix = base.partition(".")
    return f"{folder}/{stem}", suffix.lower()


def member_name(shard: str, member: str) -> str:
    """Of an image within its data set: the shard's file name, and where it is in there."""
    if len(member) > _LONGEST_NAME:
        raise DataError(f"{shard}: {member:.40}... is a name of over {_LONGEST_NAME:,} characters.")
    # Without `/` and `..` at the front: somebody may write a file of this name one day.
    parts = [part for part in PurePosixPath(member).parts if part not in ("/", "//", "..")]
    return "/".join([shard, *parts])


def safe_key(name: str) -> str:
    """A key for an image of this name: its path, without the suffix and what a key cannot hold."""
    folder, slash, base = _UNSAFE.sub("_", name).rpartition("/")
    stem = base.rpartition(".")[0] or base
    return f"{folder}{slash}{stem.replace('.', '_')}"


def parse_label(text: bytes, name: str) -> int:
    """The class in a label member of this name."""
    digits = text[:LABEL_BYTES].strip()
    if not digits.isdigit() or int(digits) >= _MOST_CLASSES:
        raise DataError(f"{name}: a label is a number from 0 to {_MOST_CLASSES - 1}, got {digits!r}.")
    return int(digits)
