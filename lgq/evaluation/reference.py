"""Features of the images that others are compared with: computed once, then found by the images' content."""

import hashlib
import logging
from dataclasses import astuple, dataclass
from pathlib import Path

import torch

from lgq.data.images import BrokenImage, ImageDataset
from lgq.distributed import rank, sum_over_ranks, world_size
from lgq.evaluation.feature_set import SAMPLE, FeatureSet
from lgq.evaluation.fid import StatisticsError
from lgq.models.inception import FeatureConvention
from lgq.weights import cache_directory

_VERSION = 1
"""Of whatever else decides the features: decoding, cropping, and the format of the file."""

_log = logging.getLogger(__name__)


def content_hash(dataset: ImageDataset) -> str:
    """sha256 over the files of a data set, in its order; their names and places do not matter.

    Each process reads a share, and all get the same.
    """
    digests = torch.zeros(len(dataset), hashlib.sha256().digest_size, dtype=torch.uint8)
    for index in range(rank(), len(dataset), world_size()):
        try:
            digest = hashlib.sha256(dataset[index].data).digest()
        except BrokenImage:
            continue
        digests[index] = torch.frombuffer(bytearray(digest), dtype=torch.uint8)
    return hashlib.sha256(sum_over_ranks(digests).numpy().data).hexdigest()


@dataclass(frozen=True)
class Reference:
    """The features of a data set's images, as far as an earlier evaluation left them in the cache."""

    content: str
    """Hash of the images."""
    path: Path
    """Where these images' features, cropped to this size and seen by this network, are kept."""
    features: FeatureSet | None

    @classmethod
    def find(cls, dataset: ImageDataset, image_size: int, convention: FeatureConvention) -> "Reference":
        """Without features where some process finds nothing, or nothing whole."""
        content = content_hash(dataset)
        key = hashlib.sha256(repr((_VERSION, content, image_size, SAMPLE, astuple(convention))).encode())
        path = cache_directory() / "references" / f"{key.hexdigest()}.features"
        features = _load(path)
        # Processes that disagree, over a file that is just being made, would wait for each other forever.
        finders = int(sum_over_ranks(torch.tensor(int(features is not None))))
        return cls(content, path, features if finders == world_size() else None)

    def keep(self, features: FeatureSet) -> None:
        """Leave features for later; a full or read-only cache costs time then, and no result now."""
        try:
            features.save(self.path)
        except OSError as error:
            _log.warning("features of images cannot be kept in %s: %s", self.path, error.strerror or error)


def _load(path: Path) -> FeatureSet | None:
    if not path.exists():
        return None
    try:
        return FeatureSet.load(path)
    except StatisticsError as error:
        _log.warning("%s", error)
        return None
