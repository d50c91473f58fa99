"""Data sets of Hugging Face `datasets`: their images as a data set of ours, and our tokens as one of theirs.

images = HuggingFaceImages(datasets.load_dataset("cifar10", split="train"), image="img")
lgq.shard(images, "shards")                      # or as DATA of lgq.encode, lgq.evaluate and lgq.train
tokens = tokens_to_datasets("tokens")            # a datasets.Dataset
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lgq.data.images import BrokenImage, DataError, EncodedImage, require_readable_size
from lgq.data.tokens import TokenDataset
from lgq.errors import LGQError

if TYPE_CHECKING:
    import datasets


class HuggingFaceImages:
    """The images of a `datasets.Dataset` as they are stored, with the labels of one of its columns.

    dataset: a `datasets.Dataset`, one split.
    image: name of the column of images.
    label: name of the column of labels, which are class labels or whole numbers; None leaves them out.
    """

    def __init__(self, dataset: "datasets.Dataset", *, image: str = "image", label: str | None = "label"):
        hub: Any = _datasets()
        if not isinstance(dataset, hub.Dataset):
            rule = "a datasets.Dataset is one split with a length"
            raise DataError(f"{rule}, got {type(dataset).__name__}: choose a split, and no streaming.")
        features = dataset.features
        if not isinstance(features.get(image), hub.Image):
            known = [name for name, feature in features.items() if isinstance(feature, hub.Image)]
            way_out = f"its images are in {', '.join(known)}" if known else "cast one to datasets.Image"
            raise DataError(f"`image` must name a column of images, got {image!r}: {way_out}.")
        self.classes: tuple[str, ...] = ()
        label = label if label in features else None
        if label is not None:
            self.classes = _class_names(dataset, label)
        self._image, self._label = image, label
        columns = [image] if label is None else [image, label]
        # Bytes as stored: pixels that were decoded and encoded again would be others.
        self._dataset = dataset.select_columns(columns).cast_column(image, hub.Image(decode=False))
        self._identity = dataset._fingerprint

    def __repr__(self) -> str:
        return f"HuggingFaceImages({self._identity!r}, image={self._image!r}, label={self._label!r})"

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> EncodedImage:
        row, name = self._dataset[index], f"{range(len(self))[index]:08d}"
        stored = row[self._image]
        if stored is None:
            raise BrokenImage(name, "there is no image in this row")
        data = stored["bytes"]
        if data is None:
            data = _read(stored["path"], name)
        label = None if self._label is None else row[self._label]
        return EncodedImage(data, None if label is None or label < 0 else label, name)


def tokens_to_datasets(
    tokens: TokenDataset | str | Path, *, cache_dir: str | Path | None = None
) -> "datasets.Dataset":
    """Return tokens on disk as a `datasets.Dataset`, whose rows lie in files of its cache.

    tokens: a directory that `lgq encode` wrote.
    cache_dir: directory of that cache; None takes the one of `datasets`.

    Columns: `tokens` in the shape of one image, `flipped` for mirrored images if there are any, `label` if
    there are classes (null where an image has none), and `name`.
    """
    hub: Any = _datasets()
    source = tokens if isinstance(tokens, TokenDataset) else TokenDataset(tokens)
    encoding = source.encoding
    kind, shape = encoding.dtype.__name__, encoding.token_shape
    arrays = {2: hub.Array2D, 3: hub.Array3D}
    grid = arrays[len(shape)](shape, kind) if len(shape) > 1 else hub.List(hub.Value(kind), length=shape[0])
    columns = {"tokens": grid}
    if encoding.flips:
        columns["flipped"] = grid
    if source.classes:
        columns["label"] = hub.ClassLabel(names=list(source.classes))
    columns["name"] = hub.Value("string")
    return hub.Dataset.from_generator(
        _rows, features=hub.Features(columns), gen_kwargs={"tokens": source}, cache_dir=cache_dir
    )


def _rows(tokens: TokenDataset) -> Iterator[dict[str, Any]]:
    for index in range(len(tokens)):
        image = tokens[index]
        row: dict[str, Any] = {"tokens": image.tokens.numpy(), "name": image.name}
        if tokens.encoding.flips:
            row["flipped"] = tokens.flipped(index).numpy()
        if tokens.classes:
            row["label"] = image.label
        yield row


def _read(path: str, name: str) -> bytes:
    try:
        require_readable_size(os.path.getsize(path), name)
        return Path(path).read_bytes()
    except OSError as error:
        raise BrokenImage(name, error.strerror or str(error)) from error


def _class_names(dataset: Any, label: str) -> tuple[str, ...]:
    feature = dataset.features[label]
    if names := getattr(feature, "names", None):
        return tuple(names)
    if not str(getattr(feature, "dtype", "")).startswith(("int", "uint")):
        way_out = "name a column of class labels or whole numbers, or None"
        raise DataError(f"`label` must name a column of labels, got {label!r} of {feature}: {way_out}.")
    largest = max((number for number in dataset[label] if number is not None), default=-1)
    return tuple(map(str, range(largest + 1)))


def _datasets() -> Any:
    try:
        import datasets
    except ImportError as error:
        way_out = "install it with: pip install 'lgq[datasets]'"
        raise LGQError(f"datasets cannot be imported ({error!s:.200}): {way_out}.") from error
    return datasets
