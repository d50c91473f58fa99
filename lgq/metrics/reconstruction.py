"""PSNR, SSIM and l1 of reconstructions: one value per image, then the mean over images.   b = images."""

from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from lgq.distributed import sum_over_ranks
from lgq.errors import LGQError

Images = Float[Tensor, "b 3 h w"]

_METRICS = ("psnr", "ssim", "l1")
_WINDOW_RADIUS = 5


def psnr(images: Images, reconstructions: Images) -> Float[Tensor, " b"]:
    """Return the peak signal-to-noise ratio of each image in dB; infinite for equal images."""
    error = (_unit(images) - _unit(reconstructions)).square().flatten(1).mean(1)
    return -10 * error.log10()


def ssim(images: Images, reconstructions: Images) -> Float[Tensor, " b"]:
    """Return the SSIM of each image (Wang et al. 2004) with a Gaussian window, sigma 1.5, width 11."""
    # Imported here: it takes seconds, and most commands do not need it.
    from torchmetrics.functional.image import structural_similarity_index_measure

    _, similarity = structural_similarity_index_measure(
        _unit(reconstructions), _unit(images), data_range=1.0, return_full_image=True
    )
    # Only windows inside of the image, as in the paper and in scikit-image, and unlike torchmetrics.
    inside = similarity[..., _WINDOW_RADIUS:-_WINDOW_RADIUS, _WINDOW_RADIUS:-_WINDOW_RADIUS]
    return inside.flatten(1).mean(1)


def l1(images: Images, reconstructions: Images) -> Float[Tensor, " b"]:
    """Return the mean absolute difference of each image on the scale [-1, 1], as in training."""
    return (images.float() - reconstructions.float()).abs().flatten(1).mean(1)


def _unit(images: Images) -> Images:
    """Map [-1, 1] to [0, 1]; values outside are not visible, and are clamped."""
    return images.float().clamp(-1, 1).add_(1).div_(2)  # in place: images may be large


@dataclass
class ReconstructionQuality:
    """Streaming means over images: `update` per batch, `over_ranks`, then `summary`."""

    sums: Float[Tensor, " metrics"] = field(default_factory=lambda: torch.zeros(3, dtype=torch.float64))
    count: int = 0

    def update(self, images: Images, reconstructions: Images) -> dict[str, Float[Tensor, " b"]]:
        """Add a batch and return psnr, ssim and l1 of each image."""
        values = torch.stack([metric(images, reconstructions) for metric in (psnr, ssim, l1)])
        self.sums = self.sums + values.cpu().double().sum(1)
        self.count += len(images)
        return dict(zip(_METRICS, values.cpu(), strict=True))

    def over_ranks(self) -> "ReconstructionQuality":
        """Return the means of all processes."""
        count = int(sum_over_ranks(torch.tensor(self.count)))
        return ReconstructionQuality(sum_over_ranks(self.sums), count)

    def summary(self) -> dict[str, float]:
        if self.count == 0:
            raise LGQError("no image could be measured: check that the data holds readable images.")
        return dict(zip(_METRICS, (self.sums / self.count).tolist(), strict=True))
