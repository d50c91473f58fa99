"""Images beside what a tokenizer makes of them, as `lgq reconstruct` shows them.   h w = height and width.

reconstruct_images(tokenizer, ["cat.jpg", "dog.png"], "side-by-side")
"""

import logging
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from lgq.data.images import BrokenImage, DataError, StoredImage
from lgq.data.token_writer import write_whole
from lgq.data.transforms import to_png, to_tensor
from lgq.inference.decode import distinct_files
from lgq.metrics.reconstruction import psnr
from lgq.progress import Progress, unwatched
from lgq.tokenizer import Tokenizer

_log = logging.getLogger(__name__)


class ReconstructedImage(NamedTuple):
    """An image beside what the tokenizer makes of it."""

    path: Path
    """Of the original."""
    file: Path
    """The picture: original on the left, reconstruction on the right."""
    psnr: float
    """In dB, over the part of the image that is shown."""


class Reconstructions(NamedTuple):
    """Result of `reconstruct_images`."""

    images: list[ReconstructedImage]
    broken: dict[str, str]
    """Paths that were skipped, with the reason."""


def reconstruct_images(
    tokenizer: Tokenizer, paths: Sequence[str | Path], out: str | Path, *, on_progress: Progress = unwatched
) -> Reconstructions:
    """Write each image beside its reconstruction, as `<name>-reconstructed.png`.

    Images keep their size, but for up to f - 1 rows and columns at the borders, as f must divide it.
    What cannot be read is skipped and named; if that is everything, it is an error.
    """
    images: list[ReconstructedImage] = []
    broken: dict[str, str] = {}
    names = distinct_files(f"{Path(path).stem}-reconstructed" for path in paths)
    for done, (path, name) in enumerate(zip(map(Path, paths), names, strict=True), 1):
        try:
            original = _read(path, tokenizer.factor)[None].to(tokenizer.device)
        except BrokenImage as error:
            broken[error.name] = error.reason
            _log.warning("broken image no. %d: %s", len(broken), error)
        else:
            reconstruction = tokenizer.decode(tokenizer.encode(original)).to(original.dtype)
            write_whole(Path(out, name), to_png(torch.cat([original, reconstruction], dim=3)[0]))
            quality = psnr(original, reconstruction).item()
            images.append(ReconstructedImage(path, Path(out, name), quality))
        on_progress(done, len(paths))
    if not images:
        some = "".join(f", such as {name} ({reason})" for name, reason in islice(broken.items(), 1))
        raise DataError(f"none of {len(paths)} images can be read{some}.")
    return Reconstructions(images, broken)


def _read(path: Path, factor: int) -> Float[Tensor, "3 h w"]:
    try:
        stored = StoredImage(path.read_bytes(), str(path))
    except OSError as error:
        raise BrokenImage(str(path), error.strerror or str(error)) from error
    width, height = (side - side % factor for side in stored.size)
    if not width or not height:
        size = " x ".join(map(str, stored.size))
        raise BrokenImage(str(path), f"{size} pixels hold no token of {factor} x {factor}")
    left, top = (stored.size[0] - width) // 2, (stored.size[1] - height) // 2
    return to_tensor(stored.rgb().crop((left, top, left + width, top + height)))
