"""Small random networks in place of Inception, and pictures to measure."""

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from lgq.metrics.fid import FeatureStatistics, Gaussian
from lgq.metrics.metric_networks import MetricNetworks
from lgq.models.inception import FeatureConvention, InceptionV3

FEATURES, LOGITS = 12, 7


class CheapInception(InceptionV3):
    """12 features of coarse pixels; counts the images it sees."""

    def __init__(self, *, seed: int = 0):
        torch.nn.Module.__init__(self)
        self.convention = FeatureConvention(weights="cheap", weights_sha256=f"none, seed {seed}")
        generator = torch.Generator().manual_seed(seed)
        self.register_buffer("mixing", torch.randn(12, FEATURES, generator=generator))
        self.seen = 0

    def forward(self, images: Tensor) -> Tensor:
        self.seen += len(images)
        return (F.adaptive_avg_pool2d(images, 2).flatten(1) @ self.mixing + 1).relu()


class CheapClassifier(CheapInception):
    def logits(self, features: Tensor) -> Tensor:
        return 3 * features[:, :LOGITS]


def expect_cheap_networks(patch: pytest.MonkeyPatch) -> None:
    """Let metrics expect the features and classes of these networks."""
    for module in ("quality", "generation", "reference"):
        patch.setattr(f"lgq.metrics.{module}.FEATURES", FEATURES)
    patch.setattr("lgq.metrics.generation.CLASSES", LOGITS)


def use_cheap_networks(patch: pytest.MonkeyPatch, cache: Path) -> MetricNetworks:
    """Let evaluations load one of these networks for everything but LPIPS, and cache features there."""
    network = CheapClassifier()
    networks = MetricNetworks(None, network, {}, network)
    expect_cheap_networks(patch)
    patch.setattr(MetricNetworks, "available", lambda device, **_: networks)
    patch.setenv("LGQ_CACHE", str(cache))
    return networks


def put_pictures(folder: Path, count: int, broken: tuple[int, ...] = ()) -> Path:
    folder.mkdir(parents=True)
    for seed in range(count):
        coarse = np.random.default_rng(seed).integers(0, 256, (5, 5, 3), dtype=np.uint8)
        Image.fromarray(coarse).resize((20, 20), Image.Resampling.BICUBIC).save(folder / f"{seed:02}.png")
    for number in broken:
        (folder / f"{number:02}.png").write_bytes(b"no picture")
    return folder


def gaussian(features: Tensor) -> Gaussian:
    statistics = FeatureStatistics.empty(features.shape[1])
    statistics.update(features)
    return statistics.gaussian()
