"""How close reconstructions are to their images: PSNR, SSIM and l1, image by image, then averaged.

b = images.
"""

from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from lgq.distributed import sum_over_ranks
from lgq.errors import LGQError

Images = Float[Tensor, "b 3 h w"]

_WINDOW_RADIUS = 5


def psnr(images: Images, reconstructions: Images) -> Float[Tensor, " b"]:
    """Peak signal-to-noise ratio of each image in dB; infinite where the two are equal."""
    error = (_unit(images) - _unit(reconstructions)).square().flatten(1).mean(1)
    return -10 * error.log10()


def ssim(images: Images, reconstructions: Images) -> Float[Tensor, " b"]:
    """Structural similarity of each image (Wang et al. 2004): Gaussian window of sigma 1.5, 11 wide."""
    # Seconds to import, which most commands need not pay.
    from torchmetrics.functional.image import structural_similarity_index_measure

    _, everywhere = structural_similarity_index_measure(
        _unit(reconstructions), _unit(images), data_range=1.0, return_full_image=True
    )
    # As the authors and scikit-image do, and torchmetrics does not: no window beyond the border.
    whole_windows = everywhere[..., _WINDOW_RADIUS:-_WINDOW_RADIUS, _WINDOW_RADIUS:-_WINDOW_RADIUS]
    return whole_windows.flatten(1).mean(1)


def l1(images: Images, reconstructions: Images) -> Float[Tensor, " b"]:
    """Mean absolute difference of each image, on the scale [-1, 1] on which training takes it."""
    return (images.float() - reconstructions.float()).abs().flatten(1).mean(1)


def _unit(images: Images) -> Images:
    """From [-1, 1] to [0, 1]; what lies outside is not visible, and is clamped."""
    return (images.float().clamp(-1, 1) + 1) / 2


@dataclass
class ReconstructionQuality:
    """Streaming means over images; `update` per batch, `over_ranks` for all processes."""

    sums: Float[Tensor, " metrics"] = field(default_factory=lambda: torch.zeros(3, dtype=torch.float64))
    count: int = 0

    def update(self, images: Images, reconstructions: Images) -> Float[Tensor, " b"]:
        """Returns the PSNR of each image."""
        each = torch.stack([metric(images, reconstructions) for metric in (psnr, ssim, l1)])
        self.sums = self.sums + each.double().sum(1).cpu()
        self.count += len(images)
        return each[0].cpu()

    def over_ranks(self) -> "ReconstructionQuality":
        count = int(sum_over_ranks(torch.tensor(self.count)))
        return ReconstructionQuality(sum_over_ranks(self.sums), count)

    def summary(self) -> dict[str, float]:
        if self.count == 0:
            raise LGQError("no image was evaluated: give at least one to `update` first.")
        return dict(zip(("psnr", "ssim", "l1"), (self.sums / self.count).tolist(), strict=True))
