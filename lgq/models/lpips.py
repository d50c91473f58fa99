"""LPIPS (Zhang et al. 2018), version 0.1: how different two images look, by the features of a classifier.

b = images, h w = their height and width in pixels, c = channels, p q = positions down and across.

The network is frozen for good: its weights are buffers, so no optimizer finds them, and gradients reach
the images alone. Only images that ask for gradients cost the memory of a backward pass.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from lgq import weights
from lgq.errors import LGQError
from lgq.ops.numerics import outside_autocast

Net = Literal["vgg16", "alex"]

_SHIFT = (-0.030, -0.088, -0.188)
_SCALE = (0.458, 0.448, 0.450)
_LEAST_NORM = 1e-10


class _Layer(NamedTuple):
    width: int
    kernel: int = 3
    stride: int = 1
    padding: int = 1


@dataclass(frozen=True, kw_only=True)
class _Architecture:
    stages: tuple[tuple[_Layer, ...], ...]
    """Convolutions, each with a ReLU; the features at the end of each stage are compared."""
    pooled: tuple[int, ...]
    """Stages before which the image is halved."""
    pool_kernel: int
    least_side: int


_ARCHITECTURES: dict[str, _Architecture] = {
    "vgg16": _Architecture(
        stages=(
            (_Layer(64),) * 2,
            (_Layer(128),) * 2,
            (_Layer(256),) * 3,
            (_Layer(512),) * 3,
            (_Layer(512),) * 3,
        ),
        pooled=(1, 2, 3, 4),
        pool_kernel=2,
        least_side=16,
    ),
    "alex": _Architecture(
        stages=(
            (_Layer(64, kernel=11, stride=4, padding=2),),
            (_Layer(192, kernel=5, padding=2),),
            (_Layer(384),),
            (_Layer(256),),
            (_Layer(256),),
        ),
        pooled=(1, 2),
        pool_kernel=3,
        least_side=31,
    ),
}


class LPIPS(nn.Module):
    """Two batches of images in [-1, 1] to a distance for each pair; 0 for equal images.

    net: "vgg16" to train with and to report, as VQ-GAN and its successors do; "alex" is smaller.
    seed: of the random weights that it has until others are loaded; `pretrained` has the published ones.
    """

    shift: Tensor
    scale: Tensor

    def __init__(self, net: Net = "vgg16", *, seed: int = 0):
        super().__init__()
        self.architecture = _ARCHITECTURES[net]
        self.weights_sha256: str | None = None
        """Hash of the published file, for records; None for random weights."""
        generator = torch.Generator().manual_seed(seed)
        layers = [layer for stage in self.architecture.stages for layer in stage]
        widths = [3, *(layer.width for layer in layers)]
        pairs = zip(widths, layers, strict=False)
        self.convolutions = nn.ModuleList(_Convolution(inputs, layer, generator) for inputs, layer in pairs)
        for index, stage in enumerate(self.architecture.stages):
            self.register_buffer(f"head_{index}", torch.rand(stage[-1].width, generator=generator))
        self.register_buffer("shift", torch.tensor(_SHIFT).view(3, 1, 1), persistent=False)
        self.register_buffer("scale", torch.tensor(_SCALE).view(3, 1, 1), persistent=False)

    @classmethod
    def pretrained(cls, net: Net = "vgg16") -> "LPIPS":
        """With the published weights, from the cache: `lgq weights fetch` brings them there."""
        network, name = cls(net), f"lpips-{net}"
        network.load_state_dict(weights.load(name))
        network.weights_sha256 = weights.SETS[name].fingerprint.sha256
        return network

    def forward(self, x: Float[Tensor, "b 3 h w"], y: Float[Tensor, "b 3 h w"]) -> Float[Tensor, " b"]:
        _check_images(x, y, self.architecture.least_side)
        # float32: squared differences of unit vectors vanish in half precision, and the gradients with them.
        with outside_autocast(x):
            distance = x.new_zeros(len(x), dtype=self.shift.dtype)
            for index, (ours, theirs) in enumerate(zip(self._features(x), self._features(y), strict=True)):
                distance = distance + _difference(ours, theirs, self.get_buffer(f"head_{index}"))
        return distance

    def _features(self, images: Float[Tensor, "b 3 h w"]) -> Iterator[Float[Tensor, "b _ _ _"]]:
        """One stage at a time, so that without gradients no more than one is kept."""
        features = (images.to(self.shift.dtype) - self.shift) / self.scale
        convolutions = iter(self.convolutions)
        for index, stage in enumerate(self.architecture.stages):
            if index in self.architecture.pooled:
                features = F.max_pool2d(features, self.architecture.pool_kernel, stride=2)
            for _ in stage:
                features = F.relu_(next(convolutions)(features))
            yield features


class _Convolution(nn.Module):
    weight: Tensor
    bias: Tensor

    def __init__(self, inputs: int, layer: _Layer, generator: torch.Generator):
        super().__init__()
        self.stride, self.padding = layer.stride, layer.padding
        spread = math.sqrt(2 / (inputs * layer.kernel**2))  # keeps the features' size from layer to layer
        shape = (layer.width, inputs, layer.kernel, layer.kernel)
        self.register_buffer("weight", spread * torch.randn(shape, generator=generator))
        self.register_buffer("bias", torch.zeros(layer.width))

    def forward(self, x: Float[Tensor, "b _ _ _"]) -> Float[Tensor, "b _ _ _"]:
        return F.conv2d(x, self.weight, self.bias, self.stride, self.padding)


def _difference(
    x: Float[Tensor, "b c p q"], y: Float[Tensor, "b c p q"], head: Float[Tensor, " c"]
) -> Float[Tensor, " b"]:
    """Squared differences of the directions, weighted by channel, averaged over positions."""
    squares = (_directions(x) - _directions(y)).square()
    return F.conv2d(squares, head.view(1, -1, 1, 1)).mean((1, 2, 3))


def _directions(features: Float[Tensor, "b c p q"]) -> Float[Tensor, "b c p q"]:
    # vector_norm, over a square root of a sum: where all features are 0, its gradient is 0 and not NaN.
    return features / (torch.linalg.vector_norm(features, dim=1, keepdim=True) + _LEAST_NORM)


def _check_images(x: Tensor, y: Tensor, least_side: int) -> None:
    if not (x.is_floating_point() and y.is_floating_point()):
        raise LGQError(
            f"images must be float in [-1, 1], got {x.dtype} and {y.dtype}; bytes become so by x / 127.5 - 1."
        )
    if x.shape != y.shape or x.ndim != 4 or x.shape[1] != 3:
        raise LGQError(
            f"LPIPS compares RGB images of one shape (b, 3, h, w), got {tuple(x.shape)} and {tuple(y.shape)}."
        )
    if min(x.shape[2:]) < least_side:
        raise LGQError(
            f"a side must have at least {least_side} pixels for LPIPS, got {x.shape[2]} x {x.shape[3]}; "
            "take larger images, or enlarge these."
        )
