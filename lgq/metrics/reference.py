"""One pass over a data set for an evaluation, of which each process takes a share.

Features of the images that others are compared with: computed once, then found by the images' content.
"""

import hashlib
import logging
from dataclasses import astuple, dataclass
from pathlib import Path

import torch

from lgq.data.images import BrokenImage, DataError, ImageDataset
from lgq.data.loader import ImageLoader, LoaderSettings
from lgq.distributed import rank, sum_over_ranks, world_size
from lgq.metrics.features import SAMPLE, FeatureSet
from lgq.metrics.fid import Gaussian, StatisticsError
from lgq.models.inception import FEATURES, FeatureConvention, InceptionV3
from lgq.progress import Progress, unwatched
from lgq.weights import cache_directory


def share_of_images(
    data: ImageDataset, device: torch.device, *, image_size: int, batch_size: int, workers: int
) -> ImageLoader:
    """Centre crops for this process, which go to a device."""
    loading = LoaderSettings(
        image_size=image_size,
        batch_size=batch_size,
        workers=workers,
        pin_memory=device.type == "cuda",
        rank=rank(),
        world_size=world_size(),
    )
    return ImageLoader(data, loading)


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


@dataclass(frozen=True, kw_only=True)
class RealImages:
    """What generated images are compared with."""

    name: str
    sha256: str
    """Of the images' files, or of the numbers in a file of statistics."""
    gaussian: Gaussian
    features: FeatureSet | None = None
    """None of a file of statistics, which holds a mean and a covariance alone."""
    image_size: int | None = None
    """Side in pixels; None where a file does not say, as with `convention`."""
    convention: FeatureConvention | None = None


def reference_of_images(
    dataset: ImageDataset,
    image_size: int,
    inception: InceptionV3,
    device: torch.device,
    *,
    batch_size: int = 32,
    workers: int = 0,
    on_progress: Progress = unwatched,
) -> RealImages:
    """Centre crops of a data set, as `inception` sees them; each process takes a share.

    An evaluation of a tokenizer on the same images leaves the same features in the cache, and finds these.
    on_progress: called with the images done and to do, of all processes; never where the cache has them.
    """
    reference = Reference.find(dataset, image_size, inception.convention)
    features = reference.features
    if features is None:
        loader = share_of_images(
            dataset, device, image_size=image_size, batch_size=batch_size, workers=workers
        )
        features = _features(loader, inception, device, on_progress)
        if rank() == 0:
            reference.keep(features)
    return RealImages(
        name=repr(dataset),
        sha256=reference.content,
        gaussian=features.statistics.gaussian(),
        features=features,
        image_size=image_size,
        convention=inception.convention,
    )


def reference_of_file(path: str | Path) -> RealImages:
    """An .npz file with `mu` and `sigma`, as they are published for FID."""
    gaussian = Gaussian.load(path)
    return RealImages(name=str(path), sha256=gaussian.sha256, gaussian=gaussian)


def _features(
    loader: ImageLoader,
    inception: InceptionV3,
    device: torch.device,
    on_progress: Progress,
) -> FeatureSet:
    total = len(loader.dataset)
    features = FeatureSet.of(FEATURES, sample=min(SAMPLE, total))
    for batch in loader.one_pass(may_be_empty=True):
        features.update(inception(batch.images.to(device, non_blocking=True)), batch.indices)
        on_progress(batch.position, total)
    everywhere = features.over_ranks()
    if everywhere.statistics.count == 0:
        raise DataError(f"none of {total:,} images can be read in {loader.dataset!r}.")
    return everywhere


def _load(path: Path) -> FeatureSet | None:
    if not path.exists():
        return None
    try:
        return FeatureSet.load(path)
    except StatisticsError as error:
        _log.warning("%s", error)
        return None
