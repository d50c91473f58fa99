"""Images to train and evaluate on: folders, local shards, streams, and photographs that come along."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lgq.data.folder import FileDataset, FolderDataset
from lgq.data.images import SUFFIXES, BrokenImage, DataError, EncodedImage, ImageDataset
from lgq.data.loader import ImageLoader, LoaderSettings
from lgq.data.photographs import SampleDataset
from lgq.data.shards import ShardDataset
from lgq.data.stream import PREFIX, PipeDataset, StreamLoader
from lgq.data.transforms import RandomCrop, to_png, to_tensor

__all__ = [
    "BrokenImage",
    "DataError",
    "EncodedImage",
    "FileDataset",
    "FolderDataset",
    "ImageDataset",
    "ImageLoader",
    "LoaderSettings",
    "PipeDataset",
    "RandomCrop",
    "SampleDataset",
    "ShardDataset",
    "StreamLoader",
    "open_dataset",
    "to_png",
    "to_tensor",
]


def open_dataset(data: ImageDataset | str | Path | Sequence[str | Path]) -> ImageDataset:
    """Open a folder, a shard pattern such as `train-{000..005}.tar`, a stream, or the embedded photographs.

    An image file is a data set of one image. Several files and folders, in a list, are one data set without
    labels.

    `pipe:cat train-{000..005}.tar` is a stream, with one command per shard; none is started yet. It can be
    trained on, and has no length. `sample` is short for `sample:train`; the other split is `sample:held-out`,
    and `sample:whole` has the centre square of each photograph. A folder of that name is `./sample`. An open
    data set is returned as it is.
    """
    if isinstance(data, list | tuple) and all(isinstance(path, str | Path) for path in data):
        return open_dataset(data[0]) if len(data) == 1 else FileDataset([os.path.expanduser(x) for x in data])
    if not isinstance(data, str | Path):
        dataset: Any = data
        return dataset
    if str(data).startswith(PREFIX):
        return PipeDataset.from_spec(str(data))
    text = os.path.expanduser(data)
    if not text:
        raise DataError("no data is named: give a folder of images, a pattern of .tar files, or `sample`.")
    if text == "sample":
        return SampleDataset()
    if text.startswith("sample:"):
        return SampleDataset(text.removeprefix("sample:"))
    if "://" in text:
        raise DataError(
            f"{text} is not on this machine: download the shards and give their path, or train on the "
            f"output of a command, such as '{PREFIX}curl -s {text}'."
        )
    if text.endswith(".tar") and not os.path.isdir(text):
        return ShardDataset.from_pattern(text)
    if text.lower().endswith(SUFFIXES) and os.path.isfile(text):
        return FileDataset([text])
    return FolderDataset(text)
