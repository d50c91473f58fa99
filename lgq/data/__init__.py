"""Images to train and evaluate on: folders, local shards, and photographs that come along."""

import os
from pathlib import Path

from lgq.data.folder import FolderDataset
from lgq.data.images import BrokenImage, DataError, EncodedImage, ImageDataset, StoredImage, decode
from lgq.data.loader import Batch, ImageLoader, Loading
from lgq.data.sample import SampleDataset
from lgq.data.shards import ShardDataset
from lgq.data.transforms import RandomCrop, to_png, to_tensor

__all__ = [
    "Batch",
    "BrokenImage",
    "DataError",
    "EncodedImage",
    "FolderDataset",
    "ImageDataset",
    "ImageLoader",
    "Loading",
    "RandomCrop",
    "SampleDataset",
    "ShardDataset",
    "StoredImage",
    "decode",
    "open_dataset",
    "to_png",
    "to_tensor",
]


def open_dataset(spec: str | Path) -> FolderDataset | ShardDataset | SampleDataset:
    """Open a folder, a shard pattern such as `train-{000..005}.tar`, or the embedded photographs.

    `sample` is short for `sample:train`; the other split is `sample:held-out`. A folder of that name
    is `./sample`. Whatever cannot be opened is a `DataError`.
    """
    text = os.path.expanduser(spec)
    if not text:
        raise DataError("no data is named: give a folder of images, a pattern of .tar files, or `sample`.")
    if text == "sample":
        return SampleDataset()
    if text.startswith("sample:"):
        return SampleDataset(text.removeprefix("sample:"))
    if "://" in text or text.startswith("pipe:"):
        raise DataError(f"{text} is not on this machine: download the shards, and pass their path.")
    if text.endswith(".tar") and not os.path.isdir(text):
        return ShardDataset.from_pattern(text)
    return FolderDataset(text)
