"""Images in files: single ones, or those below a folder, whose first-level directories are classes."""

import logging
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from lgq.data.images import (
    SUFFIXES,
    UNLABELLED,
    BrokenImage,
    DataError,
    EncodedImage,
    ImageDataset,
    Subset,
    require_readable_size,
)

_FILES_SHOWN = 3
_UNREAD_SUFFIXES = (".heic", ".heif", ".avif", ".jxl", ".jp2", ".jfif", ".dng", ".cr2", ".nef", ".arw")
"""Suffixes of pictures in formats that are not read, which are counted."""

_log = logging.getLogger(__name__)


class FolderDataset:
    """Images below `root`, sorted by path; hidden files and directories are skipped, links are followed."""

    def __init__(self, root: str | Path):
        self.root = Path(root)
        paths = list_images(self.root)
        tops = [path.partition("/")[0] if "/" in path else None for path in paths]
        self.classes = tuple(sorted({top for top in tops if top is not None}))
        """First-level directories with images in them, sorted: label i is `classes[i]`."""
        number = {name: i for i, name in enumerate(self.classes)}
        # Arrays, since workers that touch a million Python strings end up copying all of them.
        self._paths = np.array([os.fsencode(path) for path in paths])
        self._labels = np.array([UNLABELLED if top is None else number[top] for top in tops])

    def __repr__(self) -> str:
        return f"FolderDataset({str(self.root)!r})"

    def __str__(self) -> str:
        return str(self.root)

    def __len__(self) -> int:
        return len(self._paths)

    @property
    def unlabelled(self) -> int:
        """Number of images that lie outside of the class directories."""
        return int((self._labels == UNLABELLED).sum())

    def __getitem__(self, index: int) -> EncodedImage:
        name = os.fsdecode(self._paths[index].item())
        label = self._labels[index].item()
        try:
            require_readable_size(os.path.getsize(self.root / name), name)
            data = (self.root / name).read_bytes()
        except OSError as error:
            raise BrokenImage(name, error.strerror or str(error)) from error
        return EncodedImage(data, None if label == UNLABELLED else label, name)


class FileDataset:
    """Images that are named one by one, in that order; a folder stands for all images below it.

    No image has a label. Its name is that of its file, or its path below the folder.
    """

    classes: tuple[str, ...] = ()

    def __init__(self, paths: Sequence[str | Path]):
        if not paths:
            raise DataError("no image is named: give files or folders.")
        self.paths: list[Path] = []
        self.names: list[str] = []
        for path in map(Path, paths):
            below = list_images(path) if path.is_dir() else None
            self.paths += [path] if below is None else [path / name for name in below]
            self.names += [path.name] if below is None else below
        self.given = [Path(path) for path in paths]

    def __repr__(self) -> str:
        return f"FileDataset({self}: {len(self):,} images)"

    def __str__(self) -> str:
        few = len(self.given) <= _FILES_SHOWN
        return ", ".join(map(str, self.given if few else [self.given[0], "...", self.given[-1]]))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> EncodedImage:
        path = self.paths[index]
        try:
            require_readable_size(os.path.getsize(path), str(path))
            return EncodedImage(path.read_bytes(), None, self.names[index])
        except OSError as error:
            raise BrokenImage(str(path), error.strerror or str(error)) from error


def require_apart(out: Path, dataset: ImageDataset, *, has_pictures: bool) -> None:
    """Refuse to write into a folder whose images are a data set; images that are named one by one have none.

    has_pictures: whether pictures are written, which would be images of the data set in a folder below too.
    """
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    if isinstance(dataset, FolderDataset):
        given = [dataset.root]
    else:
        given = dataset.given if isinstance(dataset, FileDataset) else []
    place = out.resolve()
    for path in filter(Path.is_dir, given):
        root = path.resolve()
        if place == root:
            raise DataError(f"{out} is the folder of the images: give a new directory as `out`.")
        if not has_pictures or not place.is_relative_to(root):
            continue
        if not any(part.startswith(".") for part in place.relative_to(root).parts):
            raise DataError(
                f"{out} lies in the folder of images {path}, where pictures that are written would be taken "
                "for images: give a directory outside of it as `out`."
            )


def list_images(root: Path) -> list[str]:
    """Return the paths of all images below a folder, sorted; a folder without any is an error."""
    if not root.is_dir():
        problem = "is a file" if root.exists() else "does not exist"
        raise DataError(f"{root} {problem}: give a folder of images, a pattern of .tar files, or `sample`.")
    try:
        paths = [os.path.relpath(path, root).replace(os.sep, "/") for path in _images_below(str(root), ())]
    except OSError as error:
        raise DataError(f"cannot list {error.filename}: {error.strerror}.") from error
    files = [path for path in paths if path.lower().endswith(SUFFIXES)]
    unread = _unread([path for path in paths if not path.lower().endswith(SUFFIXES)])
    if not files:
        shards = f" It has shards: did you mean {root}/*.tar?" if any(root.glob("*.tar")) else ""
        others = f" It has {unread}." if unread else ""
        raise DataError(f"{root} and its subfolders hold no image ({' '.join(SUFFIXES)}).{shards}{others}")
    if unread:
        _log.info("%s has %s", root, unread)
    return files


def _unread(names: list[str]) -> str:
    """Count pictures whose formats are not read, in words; empty if there are none."""
    if not names:
        return ""
    files = f"{len(names):,} file{'s' * (len(names) > 1)}"
    suffixes = ", ".join(sorted({Path(name).suffix.lower() for name in names}))
    return f"{files} with a suffix that is not read: {suffixes}"


def _images_below(folder: str, above: tuple[str, ...]) -> Iterator[str]:
    here = os.path.realpath(folder)
    if here in above:  # a link back to a parent would never end
        return
    with os.scandir(folder) as entries:
        visible = sorted((entry for entry in entries if entry.name[0] != "."), key=lambda entry: entry.name)
    for entry in visible:
        if entry.is_dir():
            yield from _images_below(entry.path, (*above, here))
        # A dangling link counts, and is reported as broken later; a pipe or a device would block the reader.
        elif entry.name.lower().endswith(SUFFIXES + _UNREAD_SUFFIXES) and (
            entry.is_file() or not os.path.exists(entry.path)
        ):
            yield entry.path
