"""Two processes with a share of the images each give what one process gives with all of them."""

from typing import Any

import pytest
import torch
from cheap_inception import FEATURES, CheapInception, expect_cheap_networks
from process_groups import on_processes
from torch import Tensor

from lgq.distributed import rank, world_size
from lgq.metrics.code_usage import CodeUsage
from lgq.metrics.codebook_study import CodeAtlas
from lgq.metrics.features import FeatureSample, FeatureSet
from lgq.metrics.geometry import CoOccurrence, PositionPairs
from lgq.metrics.inception_score import InceptionScore
from lgq.metrics.metric_networks import MetricNetworks
from lgq.metrics.quality import TokenizerQuality

IMAGES, CODES, SIDE, GRID = 23, 150, 16, (4, 4)
# Shares of different sizes; neither has the first patches of all codes.
SHARES = [torch.arange(0, IMAGES, 3), torch.tensor([i for i in range(IMAGES) if i % 3])]
EXACT = ("usage", "pairs", "positions", "atlas", "sample")
TO_ROUNDING = ("feature set", "score", "quality")


def measure(n: Tensor) -> dict[str, Any]:
    """Every accumulator on the images of these numbers, then over all processes."""
    generator = torch.Generator().manual_seed(5)
    features = torch.randn(IMAGES, FEATURES, generator=generator)[n]
    tokens = torch.randint(0, CODES, (IMAGES, *GRID), generator=generator)[n]
    images = torch.rand(IMAGES, 3, SIDE, SIDE, generator=generator)[n] * 2 - 1
    outputs = (images + 0.1).clamp(-1, 1)
    with pytest.MonkeyPatch.context() as patch:
        expect_cheap_networks(patch)
        quality = TokenizerQuality.empty(
            MetricNetworks(None, CheapInception()), CODES, images=IMAGES, feature_images=torch.arange(12)
        )
    accumulators: dict[str, tuple[Any, tuple[Tensor, ...]]] = {
        "usage": (CodeUsage.empty(CODES), (tokens,)),
        "pairs": (CoOccurrence.empty(CODES), (tokens,)),
        "positions": (PositionPairs.empty(GRID[0] * GRID[1]), (tokens,)),
        "atlas": (CodeAtlas.empty(CODES, factor=4, patches=2), (images, tokens, n)),
        "sample": (FeatureSample.empty(9, dim=FEATURES), (features, n)),
        "feature set": (FeatureSet.empty(FEATURES, sample=9), (features, n)),
        "score": (InceptionScore.empty(FEATURES, splits=4), (features, n % 4)),
        "quality": (quality, (images, outputs, tokens, n)),
    }
    for accumulator, batch in accumulators.values():
        accumulator.update(*batch)
    total = {name: accumulator.over_ranks() for name, (accumulator, _) in accumulators.items()}
    reference = FeatureSet.empty(FEATURES)
    reference.update(torch.randn(9, FEATURES, generator=generator), torch.arange(9))
    return {
        "world_size": world_size(),
        "usage": total["usage"].counts,
        "pairs": total["pairs"].pairs,
        "positions": total["positions"].summary(),
        "atlas": [total["atlas"].places, total["atlas"].patches],
        "sample": total["sample"].features,
        "feature set": total["feature set"].compare(reference),
        "score": total["score"].compute(),
        "quality": total["quality"].metrics(),
    }


def measure_share() -> dict[str, Any]:
    return measure(SHARES[rank()])


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Those of one process, and of each of two."""
    both = on_processes(2, tmp_path_factory.mktemp("ranks"), measure_share)
    return [measure(torch.arange(IMAGES)), *both]


@pytest.mark.parametrize("metric", [*EXACT, *TO_ROUNDING])
def test_counts_and_choices_are_equal_in_every_bit_and_sums_to_rounding(results, metric):
    tolerance = {"rtol": 0, "atol": 0} if metric in EXACT else {"rtol": 1e-6, "atol": 1e-12}
    whole, *both = results
    assert [result["world_size"] for result in both] == [2, 2]
    for result in both:
        torch.testing.assert_close(result[metric], whole[metric], **tolerance)
