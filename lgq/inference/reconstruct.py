"""Images beside their reconstructions, as `lgq reconstruct` shows them.   h w = height and width.

reconstruct("runs/photos", ["cat.jpg", "holidays"], "side-by-side")
"""

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from lgq.data.folder import FileDataset
from lgq.data.images import SUFFIXES, BrokenImage, DataError, to_rgb
from lgq.data.transforms import padded_to_multiple, to_png, to_tensor
from lgq.errors import LGQError
from lgq.files import WeightsChoice, write_file
from lgq.inference import Device, TokenizerSource, tokenizer_on_device
from lgq.inference.decode import distinct_files
from lgq.metrics.reconstruction import psnr
from lgq.progress import Progress, unwatched

_log = logging.getLogger(__name__)


class ReconstructedImage(NamedTuple):
    """An image and its reconstruction."""

    path: Path
    """File of the original."""
    file: Path
    """The picture: original on the left, reconstruction on the right."""
    psnr: float
    """PSNR in dB."""


class Reconstructions(NamedTuple):
    """Result of `reconstruct`."""

    images: list[ReconstructedImage]
    broken: dict[str, str]
    """Paths that were skipped, with the reason."""


def reconstruct(
    tokenizer: TokenizerSource,
    images: str | Path | Sequence[str | Path],
    out: str | Path,
    *,
    weights: WeightsChoice = "best",
    device: Device = "auto",
    on_progress: Progress = unwatched,
) -> Reconstructions:
    """Write each image beside its reconstruction, as `<name>-reconstructed.png` in a directory.

    images: files, and folders that stand for all images below them; pictures of those keep their subfolders.

    Images keep their size: the last row and column are repeated to a multiple of f, and cut off again in the
    result. Tokenizers whose backbone is local (`Backbone.reach`) compute large images in tiles, whose
    borders cannot be told in the result.
    Files that cannot be read are skipped and listed; if none can be read, it is an error.
    """
    if not isinstance(images, str | Path) and not images:
        raise LGQError("there is nothing to reconstruct: name image files or folders.")
    if Path(out).suffix.lower() in SUFFIXES:
        raise LGQError(f"`out` must be a directory, which gets a picture per image, got {out}.")
    given = [images] if isinstance(images, str | Path) else images
    if not any(os.path.lexists(path) for path in given):
        raise DataError(f"{given[0]} does not exist: name image files or folders.")
    files = FileDataset(given)
    tokenizer = tokenizer_on_device(tokenizer, weights, device)
    done: list[ReconstructedImage] = []
    broken: dict[str, str] = {}
    names = distinct_files(f"{Path(name).with_suffix('')}-reconstructed" for name in files.names)
    for number, (path, name) in enumerate(zip(files.paths, names, strict=True), 1):
        try:
            original = to_tensor(to_rgb(path))[None]
        except BrokenImage as error:
            broken[error.name] = error.reason
            _log.warning("broken image no. %d: %s", len(broken), error)
        else:
            height, width = original.shape[2:]
            padded = padded_to_multiple(original, tokenizer.factor).to(tokenizer.device)
            grid = (padded.shape[2] // tokenizer.factor, padded.shape[3] // tokenizer.factor)
            decoded = tokenizer.decode(tokenizer.encode(padded), grid)[..., :height, :width]
            reconstruction = decoded.to("cpu", original.dtype)
            write_file(Path(out, name), to_png(original[0], reconstruction[0]))
            done.append(ReconstructedImage(path, Path(out, name), psnr(original, reconstruction).item()))
        on_progress(number, len(files))
    if not done:
        name, reason = next(iter(broken.items()))
        raise DataError(f"none of {len(files)} images can be read, such as {name} ({reason}).")
    return Reconstructions(done, broken)
