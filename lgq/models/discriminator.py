"""The patch discriminator of pix2pix (Isola et al. 2017): real or not, a verdict for each patch.

b = images, h w = their height and width in pixels, p q = patches down and across.
"""

from itertools import pairwise

from jaxtyping import Float
from torch import Tensor, nn

from lgq.errors import LGQError

_KERNEL = 4
_WIDEST = 8  # the width doubles up to this multiple of the base width


class PatchDiscriminator(nn.Module):
    """Images in [-1, 1] to logits, positive for real; the defaults have 2,765,633 parameters.

    base_width: channels after the first convolution.
    layers: convolutions of stride 2. Each doubles the patch and the least image side, 3 * 2**layers.

    On several ranks, `nn.SyncBatchNorm.convert_sync_batchnorm` shares the batch statistics.
    """

    def __init__(self, *, base_width: int = 64, layers: int = 3):
        super().__init__()
        _check_settings(base_width, layers)
        widths = [base_width * min(2**depth, _WIDEST) for depth in range(layers + 1)]
        strides = [2] * (layers - 1) + [1]
        hidden = [_normalised(*pair, stride) for pair, stride in zip(pairwise(widths), strides, strict=True)]
        first = nn.Conv2d(3, base_width, _KERNEL, stride=2, padding=1)
        last = nn.Conv2d(widths[-1], 1, _KERNEL, padding=1)
        self.smallest_side = 3 * 2**layers
        self.layers = nn.Sequential(first, nn.LeakyReLU(0.2, inplace=True), *hidden, last)
        self.apply(_start)

    def forward(self, images: Float[Tensor, "b 3 h w"]) -> Float[Tensor, "b 1 p q"]:
        _check_images(images, self.smallest_side)
        logits: Tensor = self.layers(images)
        return logits


def _normalised(width: int, next_width: int, stride: int) -> nn.Sequential:
    # No bias: the normalisation that follows would subtract it again.
    convolution = nn.Conv2d(width, next_width, _KERNEL, stride=stride, padding=1, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(next_width), nn.LeakyReLU(0.2, inplace=True))


def _start(module: nn.Module) -> None:
    """Weights from N(0, 0.02), the scales of BatchNorm around 1, biases 0: as in DCGAN."""
    if isinstance(module, nn.Conv2d | nn.BatchNorm2d):
        nn.init.normal_(module.weight, 1.0 if isinstance(module, nn.BatchNorm2d) else 0.0, 0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)


def _check_settings(base_width: int, layers: int) -> None:
    for name, value in (("base_width", base_width), ("layers", layers)):
        if value < 1:
            raise LGQError(f"{name} must be at least 1, got {value}.")


def _check_images(images: Tensor, smallest_side: int) -> None:
    if images.ndim != 4 or images.shape[1] != 3:
        raise LGQError(f"images must be RGB of shape (b, 3, h, w), got shape {tuple(images.shape)}.")
    height, width = images.shape[2:]
    if min(height, width) < smallest_side:
        raise LGQError(
            f"a side must have at least {smallest_side} pixels, got {height} x {width}; "
            "take larger images, or a discriminator with fewer layers."
        )
