"""Images beside their reconstructions, as `lgq reconstruct` shows them.   h w = height and width.

reconstruct("runs/photos", ["cat.jpg", "holidays"], "side-by-side")
"""

import logging
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from lgq.data.folder import FileDataset, require_apart
from lgq.data.images import BrokenImage, DataError, to_rgb
from lgq.data.transforms import centre_square, padded_to_multiple, to_png, to_tensor
from lgq.errors import LGQError, LGQWarning
from lgq.files import WeightsChoice, write_file
from lgq.inference import Device, TokenizerSource, tokenizer_on_device
from lgq.inference.decode import distinct_files, require_no_picture
from lgq.metrics.reconstruction import psnr
from lgq.model_sources import require_findable
from lgq.progress import Progress, unwatched
from lgq.tokenizer import ImageTooLargeError, Tokenizer

_MANY_POSITIONS = 2**14
"""Positions of attention that take so long that the log says so: several seconds on a CPU core."""
_ENDING = "-reconstructed"
"""Ending of the names of pictures, before a number where two would share a name."""
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
    image_size: int | None = None,
    weights: WeightsChoice = "best",
    device: Device = "auto",
    on_progress: Progress = unwatched,
) -> Reconstructions:
    """Write each image beside its reconstruction, as `<name>-reconstructed.png` in a directory.

    images: files, and folders that stand for all images below them; pictures of those keep their subfolders.
    out: directory for the pictures, outside of folders that stand for images.
    image_size: side to which the centre square of each image is resized; None keeps the size of the images.

    Without `image_size`, the last row and column are repeated to a multiple of f, and cut off again in the
    result. Tokenizers whose backbone is local (`Backbone.reach`) compute large images in tiles, whose
    borders cannot be told in the result.
    Files that cannot be read, and images too large for a tokenizer with attention, are skipped and listed; if
    nothing is left, it is an error.
    """
    if not isinstance(images, str | Path) and not images:
        raise LGQError("there is nothing to reconstruct: name image files or folders.")
    require_no_picture(Path(out))
    if isinstance(tokenizer, str | Path):
        require_findable(tokenizer)
    given = [images] if isinstance(images, str | Path) else images
    if not any(os.path.lexists(path) for path in given):
        raise DataError(f"{given[0]} does not exist: name image files or folders.")
    files = FileDataset(given)
    require_apart(Path(out), files, has_pictures=True)
    tokenizer = tokenizer_on_device(tokenizer, weights, device)
    side = None if image_size is None else tokenizer.resolve_image_size(image_size)
    done: list[ReconstructedImage] = []
    broken: dict[str, str] = {}
    names = distinct_files(f"{Path(name).with_suffix('')}{_ENDING}" for name in files.names)
    on_progress(0, len(files))
    for number, (path, name) in enumerate(zip(files.paths, names, strict=True), 1):
        try:
            original = (to_tensor(to_rgb(path)) if side is None else centre_square(path, side))[None]
            reconstruction = _reconstruction(tokenizer, original, path)
        except BrokenImage as error:
            broken[error.name] = error.reason
            _log.warning("broken image no. %d: %s", len(broken), error)
        except ImageTooLargeError as error:
            if len(files) == 1:
                raise
            broken[str(path)] = str(error)
            _log.warning("%s is skipped: %s", path, error)
        else:
            write_file(Path(out, name), to_png(original[0], reconstruction[0]))
            done.append(ReconstructedImage(path, Path(out, name), psnr(original, reconstruction).item()))
        on_progress(number, len(files))
    if not done:
        name, reason = next(iter(broken.items()))
        example = f"{name} ({reason.rstrip('.')})"
        raise DataError(f"none of {len(files)} images can be reconstructed, such as {example}.")
    _warn_of_earlier([image.file for image in done])
    return Reconstructions(done, broken)


def _warn_of_earlier(files: list[Path]) -> None:
    """Warn of pictures of earlier calls beside those of this one, whose numbers count other images."""
    beside = {path for folder in {file.parent for file in files} for path in folder.glob(f"*{_ENDING}*.png")}
    if earlier := sorted(beside - set(files)):
        pictures = f"{len(earlier):,} picture{'s' * (len(earlier) > 1)}"
        warnings.warn(
            f"{files[0].parent} has {pictures} of earlier calls, such as {earlier[0].name}, which this call "
            "did not write: give a new directory as `out` to keep calls apart.",
            LGQWarning,
            stacklevel=3,
        )


def _reconstruction(
    tokenizer: Tokenizer, original: Float[Tensor, "1 3 h w"], path: Path
) -> Float[Tensor, "1 3 h w"]:
    height, width = original.shape[2:]
    tokenizer.require_few_positions(height, width)
    if tokenizer.attention_positions(height, width) > _MANY_POSITIONS:
        _log.info("%s: attention over all of its %d x %d pixels takes a while", path, width, height)
    padded = padded_to_multiple(original, tokenizer.factor)
    grid = (padded.shape[2] // tokenizer.factor, padded.shape[3] // tokenizer.factor)
    decoded = tokenizer.decode(tokenizer.encode(padded.to(tokenizer.device)), grid)
    return decoded[..., :height, :width].to("cpu", original.dtype)
