"""Features of the images that others are compared with: computed once, then found by the images' content."""

import hashlib
import logging
from dataclasses import astuple
from pathlib import Path

from lgq.data.images import BrokenImage, ImageDataset
from lgq.evaluation.feature_set import SAMPLE, FeatureSet
from lgq.evaluation.fid import StatisticsError
from lgq.models.inception import FeatureConvention
from lgq.weights import cache_directory

_VERSION = 1
_log = logging.getLogger(__name__)


def content_hash(dataset: ImageDataset) -> str:
    """sha256 over the files of a data set, in its order; names and places do not matter."""
    digest = hashlib.sha256()
    for index in range(len(dataset)):
        try:
            digest.update(hashlib.sha256(dataset[index].data).digest())
        except BrokenImage:
            digest.update(b"unreadable")
    return digest.hexdigest()


def reference_path(content: str, image_size: int, convention: FeatureConvention) -> Path:
    """Where the features of these images, cropped to this size and seen by this network, are kept."""
    key = repr((_VERSION, content, image_size, SAMPLE, astuple(convention)))
    return cache_directory() / "references" / f"{hashlib.sha256(key.encode()).hexdigest()}.safetensors"


def find_reference(path: Path) -> FeatureSet | None:
    """What an earlier evaluation left; none where there is nothing, or nothing whole."""
    if not path.exists():
        return None
    try:
        return FeatureSet.load(path)
    except StatisticsError as error:
        _log.warning("%s", error)
        return None
