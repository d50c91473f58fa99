"""Some images of a data set, as a data set."""

from collections.abc import Sequence

from lgq.checks import require_at_least
from lgq.data.images import EncodedImage, ImageDataset
from lgq.data.transforms import random_order

_SUBSET_KEY = 4  # every use of `random_order` has its own first part


class Subset:
    """The images at `indices`, in that order; labels and names stay."""

    def __init__(self, dataset: ImageDataset, indices: Sequence[int]):
        self.dataset, self.indices = dataset, indices
        self.classes: tuple[str, ...] = tuple(getattr(dataset, "classes", ()))

    def __repr__(self) -> str:
        if isinstance(self.indices, range) and self.indices:
            return f"{self.dataset!r}, images {self.indices[0]:,} to {self.indices[-1]:,}"
        return f"{len(self):,} images of {self.dataset!r}"

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> EncodedImage:
        return self.dataset[self.indices[index]]


def random_subset(dataset: ImageDataset, images: int, *, seed: int = 0) -> Subset:
    """The same images whenever data set, number and seed are; all of them if there are no more."""
    require_at_least(1, images=images)
    chosen = random_order(len(dataset), _SUBSET_KEY, seed)[:images]
    return Subset(dataset, sorted(chosen.tolist()))
