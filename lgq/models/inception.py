"""The Inception network of FID (Szegedy et al. 2016; Heusel et al. 2017): images to 2,048 features.

b = images, h w = height and width in pixels, c = channels.

This is the TensorFlow network of 2015-12-05, layer by layer, on which published FIDs are based;
torchvision's Inception differs in its pools, normalisation and weights. Preprocessing is part of the
convention, so images are rounded to bytes, resized and normalised in here, and `convention` records how.
"""

import math
from collections import OrderedDict
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from lgq import weights
from lgq.checks import require_images
from lgq.errors import LGQError
from lgq.ops.numerics import outside_autocast

FEATURES = 2048
CLASSES = 1008
_SIDE = 299
_EPSILON = 1e-3

Kernel = int | tuple[int, int]
Layer = tuple[int, Kernel]
"""Output channels and kernel of a convolution."""


@dataclass(frozen=True, kw_only=True)
class FeatureConvention:
    """Conditions under which features were computed; only features with equal ones can be compared."""

    weights: str
    """Name of the weights, or "random"."""
    weights_sha256: str
    """Hash of the published file of the weights."""
    quantisation: str = "uint8, round half to even"
    resize: str = f"bilinear to {_SIDE}x{_SIDE}, half-pixel centres, no antialias"
    normalisation: str = "(x - 128) / 128"


class InceptionV3(nn.Module):
    """Maps images in [-1, 1] of any size to features; `pretrained` gives those of FID.

    classifier: whether to have the classifier, which `logits` needs.
    seed: seed of the random weights before others are loaded.

    The network is frozen: its weights are buffers, and rounding stops gradients. In contiguous memory format
    its features equal the original's to the last bit. After `.to(memory_format=torch.channels_last)` a CPU
    takes about 30% less time and rounds differently (by up to 6e-6 where features reach 4).
    """

    classifier: Tensor | None

    def __init__(self, *, classifier: bool = False, seed: int = 0):
        super().__init__()
        self.convention = FeatureConvention(weights="random", weights_sha256=f"none, seed {seed}")
        self.network = _network()
        self.register_buffer("classifier", torch.empty(CLASSES, FEATURES) if classifier else None)
        generator = torch.Generator().manual_seed(seed)
        for weight in (buffer for buffer in self.buffers() if buffer.ndim > 1):
            weight.normal_(std=math.sqrt(2 / weight[0].numel()), generator=generator)

    @classmethod
    def pretrained(cls, *, classifier: bool = False) -> "InceptionV3":
        """Load the published weights from the cache.

        `lgq weights fetch` puts the weights for features there. Those with the classifier, which Inception
        Score needs, come from a file that `lgq weights import` takes.
        """
        name = "inception-full" if classifier else "inception-fid"
        network = cls(classifier=classifier)
        network.load_state_dict(weights.load(name))
        digest = weights.SETS[name].fingerprint.sha256
        network.convention = FeatureConvention(weights=name, weights_sha256=digest)
        return network

    @torch.no_grad()
    def forward(self, images: Float[Tensor, "b 3 h w"]) -> Float[Tensor, "b 2048"]:
        require_images(images)
        with outside_autocast(images):
            features: Tensor = self.network(_preprocess(images))
        return features.flatten(1)

    @torch.no_grad()
    def logits(self, features: Float[Tensor, "b 2048"]) -> Float[Tensor, "b 1008"]:
        """Return the class logits of features, whose softmax Inception Score (Salimans et al. 2016) averages.

        As in that paper's code, the classifier's bias is left out.
        """
        if self.classifier is None:
            raise LGQError("this network has no classifier: use InceptionV3.pretrained(classifier=True).")
        with outside_autocast(features):
            return features @ self.classifier.T


class _Convolution(nn.Module):
    """Convolution, batch norm without scales, ReLU; without padding if the stride is 2."""

    weight: Tensor
    beta: Tensor
    mean: Tensor
    var: Tensor

    def __init__(self, inputs: int, width: int, kernel: Kernel, stride: int = 1, *, padded: bool = True):
        super().__init__()
        height, breadth = (kernel, kernel) if isinstance(kernel, int) else kernel
        self.stride = stride
        self.padding = (height // 2, breadth // 2) if padded and stride == 1 else (0, 0)
        self.register_buffer("weight", torch.empty(width, inputs, height, breadth))
        self.register_buffer("beta", torch.zeros(width))
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("var", torch.ones(width))

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b _ _ _"]:
        x = F.conv2d(x, self.weight, None, self.stride, self.padding)
        # Not folded into the convolution: that would take about 8% less time, but round differently.
        return F.relu_(F.batch_norm(x, self.mean, self.var, None, self.beta, eps=_EPSILON))


class _Branches(nn.ModuleDict):
    """Branches on one input, with their output channels concatenated."""

    def __init__(self, **branches: nn.Module):
        super().__init__(branches)

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b _ _ _"]:
        return torch.cat([branch(x) for branch in self.values()], 1)


def _network() -> nn.Sequential:
    """Build all layers, with the names of TensorFlow's graph."""
    layers: dict[str, nn.Module] = {
        "conv": _Convolution(3, 32, 3, 2),
        "conv_1": _Convolution(32, 32, 3, padded=False),
        "conv_2": _Convolution(32, 64, 3),
        "pool": nn.MaxPool2d(3, 2),
        "conv_3": _Convolution(64, 80, 1),
        "conv_4": _Convolution(80, 192, 3, padded=False),
        "pool_1": nn.MaxPool2d(3, 2),
        "mixed": _fine(192, pooled=32),
        "mixed_1": _fine(256, pooled=64),
        "mixed_2": _fine(288, pooled=64),
        "mixed_3": _Branches(
            conv=_Convolution(288, 384, 3, 2),
            tower=_tower(288, (64, 1), (96, 3), (96, 3), last_stride=2),
            pool=nn.MaxPool2d(3, 2),
        ),
        "mixed_4": _middle(128),
        "mixed_5": _middle(160),
        "mixed_6": _middle(160),
        "mixed_7": _middle(192),
        "mixed_8": _Branches(
            tower=_tower(768, (192, 1), (320, 3), last_stride=2),
            tower_1=_tower(768, (192, 1), (192, (1, 7)), (192, (7, 1)), (192, 3), last_stride=2),
            pool=nn.MaxPool2d(3, 2),
        ),
        "mixed_9": _coarse(1280, _average_pool()),
        "mixed_10": _coarse(2048, nn.MaxPool2d(3, 1, padding=1)),
        "pool_2": nn.AvgPool2d(8),
    }
    return nn.Sequential(OrderedDict(layers))


def _fine(inputs: int, *, pooled: int) -> _Branches:
    return _Branches(
        conv=_Convolution(inputs, 64, 1),
        tower=_tower(inputs, (48, 1), (64, 5)),
        tower_1=_tower(inputs, (64, 1), (96, 3), (96, 3)),
        tower_2=_pooled_tower(inputs, _average_pool(), pooled),
    )


def _middle(width: int) -> _Branches:
    long: list[Layer] = [(width, (7, 1)), (width, (1, 7)), (width, (7, 1))]
    return _Branches(
        conv=_Convolution(768, 192, 1),
        tower=_tower(768, (width, 1), (width, (1, 7)), (192, (7, 1))),
        tower_1=_tower(768, (width, 1), *long, (192, (1, 7))),
        tower_2=_pooled_tower(768, _average_pool(), 192),
    )


def _coarse(inputs: int, pool: nn.Module) -> _Branches:
    return _Branches(
        conv=_Convolution(inputs, 320, 1),
        tower=_split_tower(inputs, (384, 1)),
        tower_1=_split_tower(inputs, (448, 1), (384, 3)),
        tower_2=_pooled_tower(inputs, pool, 192),
    )


def _tower(inputs: int, *layers: Layer, last_stride: int = 1) -> nn.Sequential:
    modules: dict[str, nn.Module] = {}
    for index, (width, kernel) in enumerate(layers):
        stride = last_stride if index == len(layers) - 1 else 1
        modules[f"conv_{index}" if index else "conv"] = _Convolution(inputs, width, kernel, stride)
        inputs = width
    return nn.Sequential(OrderedDict(modules))


def _split_tower(inputs: int, *layers: Layer) -> nn.Sequential:
    """Build a tower that ends in a flat and a tall convolution side by side."""
    tower, width = _tower(inputs, *layers), layers[-1][0]
    flat, tall = _Convolution(width, 384, (1, 3)), _Convolution(width, 384, (3, 1))
    tower.add_module("split", _Branches(conv=flat, conv_1=tall))
    return tower


def _pooled_tower(inputs: int, pool: nn.Module, width: int) -> nn.Sequential:
    return nn.Sequential(OrderedDict(pool=pool, conv=_Convolution(inputs, width, 1)))


def _average_pool() -> nn.AvgPool2d:
    return nn.AvgPool2d(3, 1, padding=1, count_include_pad=False)


def _preprocess(images: Float[Tensor, "b 3 h w"]) -> Float[Tensor, "b 3 299 299"]:
    # Always contiguous: another memory format would round differently.
    levels = ((images.float().contiguous() + 1) * 127.5).round().clamp(0, 255)
    resized = F.interpolate(levels, (_SIDE, _SIDE), mode="bilinear", align_corners=False, antialias=False)
    return (resized - 128) / 128
