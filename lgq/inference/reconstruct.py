"""Images beside their reconstructions, as `lgq reconstruct` shows them.   h w = height and width.

reconstruct("runs/photos", ["cat.jpg", "dog.png"], "side-by-side")
"""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from lgq.checks import require_at_least
from lgq.data.images import BrokenImage, DataError, read_stored_image
from lgq.data.transforms import to_png, to_tensor
from lgq.files import write_file
from lgq.hub import WeightsChoice
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
    """PSNR in dB, over the part of the image that is shown."""


class Reconstructions(NamedTuple):
    """Result of `reconstruct`."""

    images: list[ReconstructedImage]
    broken: dict[str, str]
    """Paths that were skipped, with the reason."""


def reconstruct(
    tokenizer: TokenizerSource,
    images: Sequence[str | Path],
    out: str | Path,
    *,
    weights: WeightsChoice = "best",
    device: Device = "auto",
    on_progress: Progress = unwatched,
) -> Reconstructions:
    """Write each image beside its reconstruction, as `<name>-reconstructed.png` in a directory.

    Images keep their size, except for up to f - 1 rows and columns at the borders, as f must divide it.
    Files that cannot be read are skipped and listed; if none can be read, it is an error.
    """
    require_at_least(1, images=len(images))
    tokenizer = tokenizer_on_device(tokenizer, weights, device)
    done: list[ReconstructedImage] = []
    broken: dict[str, str] = {}
    names = distinct_files(f"{Path(path).stem}-reconstructed" for path in images)
    for number, (path, name) in enumerate(zip(map(Path, images), names, strict=True), 1):
        try:
            original = _read(path, tokenizer.factor)[None].to(tokenizer.device)
        except BrokenImage as error:
            broken[error.name] = error.reason
            _log.warning("broken image no. %d: %s", len(broken), error)
        else:
            reconstruction = tokenizer.decode(tokenizer.encode(original)).to(original.dtype)
            write_file(Path(out, name), to_png(torch.cat([original, reconstruction], dim=3)[0]))
            done.append(ReconstructedImage(path, Path(out, name), psnr(original, reconstruction).item()))
        on_progress(number, len(images))
    if not done:
        name, reason = next(iter(broken.items()))
        raise DataError(f"none of {len(images)} images can be read, such as {name} ({reason}).")
    return Reconstructions(done, broken)


def _read(path: Path, factor: int) -> Float[Tensor, "3 h w"]:
    stored = read_stored_image(path)
    width, height = (side - side % factor for side in stored.size)
    if not width or not height:
        size = " x ".join(map(str, stored.size))
        raise BrokenImage(str(path), f"{size} pixels hold no token of {factor} x {factor}")
    left, top = (stored.size[0] - width) // 2, (stored.size[1] - height) // 2
    return to_tensor(stored.rgb().crop((left, top, left + width, top + height)))
