"""Reference: the real images that others are compared with, as Inception sees them.

reference = Reference.from_images(dataset, 256, inception, device)      # cached by the images' content
reference = Reference.from_file("statistics.npz")                       # mu and sigma, as published for FID
"""

import hashlib
import logging
from dataclasses import astuple, dataclass
from pathlib import Path

import torch

from lgq.data.images import BrokenImage, DataError, ImageDataset
from lgq.data.loader import ImageLoader, LoaderSettings, loaded_onto
from lgq.distributed import rank, sum_over_ranks, world_size
from lgq.metrics.features import SAMPLE, FeatureSet
from lgq.metrics.fid import Gaussian, StatisticsError
from lgq.models.inception import FEATURES, FeatureConvention, InceptionV3
from lgq.progress import Progress, unwatched
from lgq.weights import cache_directory

_CACHE_VERSION = 1
"""Stands for all that decides the features besides the key: decoding, cropping, the file format."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Reference:
    """Statistics of real images, and where they come from."""

    name: str
    sha256: str
    """Hash of the image files, or of the numbers in a file of statistics."""
    gaussian: Gaussian
    features: FeatureSet | None = None
    """None for a file of statistics, which holds only a mean and a covariance."""
    image_size: int | None = None
    """Side in pixels; None where a file does not say, as with `convention`."""
    convention: FeatureConvention | None = None

    @classmethod
    def from_images(
        cls,
        dataset: ImageDataset,
        image_size: int,
        inception: InceptionV3,
        device: torch.device,
        *,
        batch_size: int = 32,
        workers: int = 0,
        on_progress: Progress = unwatched,
    ) -> "Reference":
        """Compute the features of the centre crops, or take them from the cache; each process takes a share.

        A tokenizer's evaluation on the same images shares the cached features.
        """
        cached, total = CachedFeatures.find(dataset, image_size, inception.convention), len(dataset)
        features = cached.features
        if features is None:
            features = FeatureSet.empty(FEATURES, sample=min(SAMPLE, total))
            settings = LoaderSettings.of_process(
                device, image_size=image_size, batch_size=batch_size, workers=workers
            )
            for batch in ImageLoader(dataset, settings).one_pass(may_be_empty=True):
                features.update(inception(loaded_onto(device, batch.images)), batch.indices)
                on_progress(batch.position, total)
            features = features.over_ranks()
            if features.statistics.count == 0:
                raise DataError(f"none of {total:,} images can be read in {dataset}.")
            if rank() == 0:
                cached.save(features)
        return cls(
            name=repr(dataset),
            sha256=cached.content_sha256,
            gaussian=features.statistics.gaussian(),
            features=features,
            image_size=image_size,
            convention=inception.convention,
        )

    @classmethod
    def from_file(cls, path: str | Path) -> "Reference":
        """Read an .npz file with `mu` and `sigma`."""
        gaussian = Gaussian.load(path)
        return cls(name=str(path), sha256=gaussian.sha256, gaussian=gaussian)

    def require_comparable(self, inception: InceptionV3) -> None:
        """Check, before images are generated for hours, that `inception` made the reference's features."""
        dim = len(self.gaussian.mean)
        if dim != FEATURES:
            raise StatisticsError(
                f"{self.name} has {dim:,} features per image, and Inception has {FEATURES:,}: "
                "take statistics of the Inception of FID."
            )
        if self.convention not in (None, inception.convention):
            raise StatisticsError(
                f"{self.name} has features of {self.convention}, and generated images would have those of "
                f"{inception.convention}: make the reference with the same network."
            )


@dataclass(frozen=True)
class CachedFeatures:
    """Place of a data set's features in the cache, and the features if an earlier evaluation left them."""

    content_sha256: str
    """Hash of the images."""
    path: Path
    features: FeatureSet | None

    @classmethod
    def find(cls, dataset: ImageDataset, image_size: int, convention: FeatureConvention) -> "CachedFeatures":
        """Look for features of these images, cropped to this size and seen by this network.

        `features` is None where any process finds none, or a damaged file.
        """
        content = content_sha256(dataset)
        key = repr((_CACHE_VERSION, content, image_size, SAMPLE, astuple(convention)))
        name = f"{hashlib.sha256(key.encode()).hexdigest()}.features"
        path = cache_directory() / "references" / name
        features = None
        if path.exists():
            try:
                features = FeatureSet.load(path)
            except StatisticsError as error:
                _log.warning("%s", error)
        # Processes that disagree, over a file that is just being written, would wait for each other forever.
        successes = int(sum_over_ranks(torch.tensor(int(features is not None))))
        return cls(content, path, features if successes == world_size() else None)

    def save(self, features: FeatureSet) -> None:
        """Store features for later; a full or read-only cache gives a warning and no error."""
        try:
            features.save(self.path)
        except OSError as error:
            _log.warning("cannot cache image features in %s: %s", self.path, error.strerror or error)


def content_sha256(dataset: ImageDataset) -> str:
    """Return the sha256 over the files of a data set in its order; names and directories do not matter.

    Each process reads a share, and all return the same.
    """
    digests = torch.zeros(len(dataset), hashlib.sha256().digest_size, dtype=torch.uint8)
    for index in range(rank(), len(dataset), world_size()):
        try:
            digest = hashlib.sha256(dataset[index].data).digest()
        except BrokenImage:
            continue
        digests[index] = torch.frombuffer(bytearray(digest), dtype=torch.uint8)
    return hashlib.sha256(sum_over_ranks(digests).numpy().data).hexdigest()
