"""The patch discriminator of pix2pix (Isola et al. 2017): one logit, real or not, per patch.

b = images, h w = height and width in pixels, p q = patches down and across.
"""

from itertools import pairwise

from jaxtyping import Float
from torch import Tensor, nn

from lgq.checks import require_at_least, require_images
from lgq.errors import LGQError

_KERNEL = 4
_MAX_WIDENING = 8  # the width doubles up to this multiple of the base width


class PatchDiscriminator(nn.Module):
    """Maps images in [-1, 1] to logits, positive for real; the defaults have 2,765,633 parameters.

    base_width: number of channels after the first convolution.
    layers: number of convolutions of stride 2; each doubles the patch and the minimum side, 3 * 2**layers.

    On several ranks, `nn.SyncBatchNorm.convert_sync_batchnorm` shares the batch statistics.
    """

    def __init__(self, *, base_width: int = 64, layers: int = 3):
        super().__init__()
        require_at_least(1, base_width=base_width, layers=layers)
        widths = [base_width * min(2**depth, _MAX_WIDENING) for depth in range(layers + 1)]
        strides = [2] * (layers - 1) + [1]
        hidden = [_normalised(*pair, stride) for pair, stride in zip(pairwise(widths), strides, strict=True)]
        first = nn.Conv2d(3, base_width, _KERNEL, stride=2, padding=1)
        last = nn.Conv2d(widths[-1], 1, _KERNEL, padding=1)
        self.min_side = 3 * 2**layers
        self.layers = nn.Sequential(first, nn.LeakyReLU(0.2, inplace=True), *hidden, last)
        self.apply(_init_weights)

    def forward(self, images: Float[Tensor, "b 3 h w"]) -> Float[Tensor, "b 1 p q"]:
        require_images(images)
        if min(images.shape[2:]) < self.min_side:
            raise LGQError(
                f"sides must have at least {self.min_side} pixels, "
                f"got {images.shape[2]} x {images.shape[3]}: "
                "use larger images, or a discriminator with fewer layers."
            )
        logits: Tensor = self.layers(images)
        return logits


def _normalised(width: int, next_width: int, stride: int) -> nn.Sequential:
    # No bias: the normalisation that follows would subtract it again.
    convolution = nn.Conv2d(width, next_width, _KERNEL, stride=stride, padding=1, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(next_width), nn.LeakyReLU(0.2, inplace=True))


def _init_weights(module: nn.Module) -> None:
    """Draw weights from N(0, 0.02) and BatchNorm scales from N(1, 0.02), and set biases to 0, as in DCGAN."""
    if isinstance(module, nn.Conv2d | nn.BatchNorm2d):
        nn.init.normal_(module.weight, 1.0 if isinstance(module, nn.BatchNorm2d) else 0.0, 0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
