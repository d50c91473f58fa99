"""LPIPS 0.1 (Zhang et al. 2018): perceptual distance of two images, by the features of a classifier.

b = images, h w = height and width in pixels, c = channels, p q = positions down and across.

The network is frozen: its weights are buffers, so no optimizer updates them, and gradients reach the images
alone. Only images that require gradients take the memory of a backward pass.
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
from lgq.checks import require_images
from lgq.errors import LGQError
from lgq.ops.numerics import outside_autocast

Net = Literal["vgg16", "alex"]

_SHIFT = (-0.030, -0.088, -0.188)
_SCALE = (0.458, 0.448, 0.450)
_EPSILON = 1e-10


class _Layer(NamedTuple):
    width: int
    kernel: int = 3
    stride: int = 1
    padding: int = 1


@dataclass(frozen=True, kw_only=True)
class _Architecture:
    stages: tuple[tuple[_Layer, ...], ...]
    """Convolutions of each stage, all followed by a ReLU; features are compared at the end of each stage."""
    pooled: tuple[int, ...]
    """Stages with a pool of stride 2 before them."""
    pool_kernel: int
    min_side: int


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
        min_side=16,
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
        min_side=31,
    ),
}


class LPIPS(nn.Module):
    """Maps two batches of images in [-1, 1] to one distance per pair; 0 for equal images.

    net: "vgg16" for training and reports, as in VQ-GAN and its successors; "alex" is smaller.
    seed: seed of the random weights before others are loaded; `pretrained` has the published ones.
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
    def pretrained(cls, net: Net = "vgg16", *, dtype: torch.dtype = torch.float32) -> "LPIPS":
        """Load the published weights from the cache; `lgq weights fetch` puts them there.

        dtype: precision of the convolutions; distances are computed in float32.
        """
        network, name = cls(net), f"lpips-{net}"
        network.load_state_dict(weights.load(name))
        network.convolutions.to(dtype)
        network.weights_sha256 = weights.SETS[name].fingerprint.sha256
        return network

    def forward(self, x: Float[Tensor, "b 3 h w"], y: Float[Tensor, "b 3 h w"]) -> Float[Tensor, " b"]:
        require_images(x)
        require_images(y)
        if x.shape != y.shape:
            shapes = f"{tuple(x.shape)} and {tuple(y.shape)}"
            raise LGQError(f"LPIPS compares images of equal shape, got {shapes}.")
        if min(x.shape[2:]) < self.architecture.min_side:
            raise LGQError(
                f"LPIPS needs sides of at least {self.architecture.min_side} pixels, "
                f"got {x.shape[2]} x {x.shape[3]}: use larger images, or resize these."
            )
        # float32: squared differences of unit vectors, and their gradients, vanish in half precision.
        with outside_autocast(x):
            distance = x.new_zeros(len(x), dtype=self.shift.dtype)
            for index, (ours, theirs) in enumerate(zip(self._features(x), self._features(y), strict=True)):
                distance = distance + _difference(ours, theirs, self.get_buffer(f"head_{index}"))
        return distance

    def _features(self, images: Float[Tensor, "b 3 h w"]) -> Iterator[Float[Tensor, "b _ _ _"]]:
        """Yield one stage at a time, so that without gradients only one is kept in memory."""
        features = (images.to(self.shift.dtype) - self.shift) / self.scale
        features = features.to(self.convolutions[0].weight.dtype)  # type: ignore[arg-type]  # a tensor
        convolutions = iter(self.convolutions)
        for index, stage in enumerate(self.architecture.stages):
            if index in self.architecture.pooled:
                features = F.max_pool2d(features, self.architecture.pool_kernel, stride=2)
            for _ in stage:
                features = F.relu_(next(convolutions)(features))
            yield features.to(self.shift.dtype)


class _Convolution(nn.Module):
    weight: Tensor
    bias: Tensor

    def __init__(self, inputs: int, layer: _Layer, generator: torch.Generator):
        super().__init__()
        self.stride, self.padding = layer.stride, layer.padding
        std = math.sqrt(2 / (inputs * layer.kernel**2))  # keeps the scale of features from layer to layer
        shape = (layer.width, inputs, layer.kernel, layer.kernel)
        self.register_buffer("weight", std * torch.randn(shape, generator=generator))
        self.register_buffer("bias", torch.zeros(layer.width))

    def forward(self, x: Float[Tensor, "b _ _ _"]) -> Float[Tensor, "b _ _ _"]:
        return F.conv2d(x, self.weight, self.bias, self.stride, self.padding)


def _difference(
    x: Float[Tensor, "b c p q"], y: Float[Tensor, "b c p q"], head: Float[Tensor, " c"]
) -> Float[Tensor, " b"]:
    """Squared differences of the normalized features, weighted by channel, averaged over positions."""
    squares = (_normalized(x) - _normalized(y)).square()
    return F.conv2d(squares, head.view(1, -1, 1, 1)).mean((1, 2, 3))


def _normalized(features: Float[Tensor, "b c p q"]) -> Float[Tensor, "b c p q"]:
    # vector_norm, not the square root of a sum: where all features are 0, its gradient is 0 and not NaN.
    return features / (torch.linalg.vector_norm(features, dim=1, keepdim=True) + _EPSILON)
