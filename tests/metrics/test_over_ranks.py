"""Two processes with a share of the images each give what one process gives with all of them."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from cheap_inception import FEATURES, CheapInception
from process_groups import on_processes

from lgq.distributed import rank, world_size
from lgq.metrics import quality
from lgq.metrics.code_usage import CodeUsage
from lgq.metrics.codebook_study import CodeAtlas
from lgq.metrics.features import FeatureSample, FeatureSet
from lgq.metrics.fid import FeatureStatistics
from lgq.metrics.geometry import CodeGeometry
from lgq.metrics.inception_score import InceptionScore
from lgq.metrics.metric_networks import MetricNetworks
from lgq.metrics.quality import TokenizerQuality
from lgq.metrics.reconstruction import ReconstructionQuality

IMAGES, CODES, SIDE, GRID = 23, 150, 16, (4, 4)
# Shares of different sizes; neither has the first patches of all codes.
SHARES = [torch.arange(0, IMAGES, 3), torch.tensor([i for i in range(IMAGES) if i % 3])]


class Data:
    """Images, reconstructions, tokens and features of some images of the data set."""

    def __init__(self, numbers: torch.Tensor):
        generator = torch.Generator().manual_seed(5)
        self.numbers = numbers
        self.features = torch.randn(IMAGES, FEATURES, generator=generator)[numbers]
        self.tokens = torch.randint(0, CODES, (IMAGES, *GRID), generator=generator)[numbers]
        self.images = torch.rand(IMAGES, 3, SIDE, SIDE, generator=generator)[numbers] * 2 - 1
        self.reconstructions = (self.images + 0.1).clamp(-1, 1)


def code_usage(data: Data) -> Any:
    usage = CodeUsage.empty(CODES)
    usage.update(data.tokens)
    return usage.over_ranks().counts


def geometry(data: Data) -> Any:
    result = CodeGeometry.empty(CODES, grid=GRID)
    result.update(data.tokens)
    return result.over_ranks().summary()


def atlas(data: Data) -> Any:
    result = CodeAtlas.empty(CODES, grid=GRID, patch=SIDE // GRID[0], keep=2)
    result.update(data.images, data.tokens, data.numbers)
    merged = result.over_ranks()
    return [merged.places, merged.patches]


def sample(data: Data) -> Any:
    result = FeatureSample.empty(9, dim=FEATURES)
    result.update(data.features, data.numbers)
    return result.over_ranks().features


def statistics(data: Data) -> Any:
    result = FeatureStatistics.empty(FEATURES)
    result.update(data.features)
    gaussian = result.over_ranks().gaussian()
    return [gaussian.mean, gaussian.covariance, gaussian.count]


def feature_set(data: Data) -> Any:
    result, shifted = FeatureSet.empty(FEATURES, sample=9), FeatureSet.empty(FEATURES, sample=9)
    result.update(data.features, data.numbers)
    shifted.update(data.features + 1, data.numbers)
    return result.over_ranks().compare(shifted.over_ranks())


def inception_score(data: Data) -> Any:
    result = InceptionScore.empty(FEATURES, splits=4)
    result.update(data.features, data.numbers % 4)
    return result.over_ranks().compute()


def pixels(data: Data) -> Any:
    result = ReconstructionQuality()
    result.update(data.images, data.reconstructions)
    return result.over_ranks().summary()


def tokenizer_quality(data: Data) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quality, "FEATURES", FEATURES)
        networks = MetricNetworks(None, CheapInception())
        result = TokenizerQuality.empty(networks, CODES, images=IMAGES, feature_images=torch.arange(12))
        result.update(data.images, data.reconstructions, data.tokens, data.numbers)
        return result.over_ranks().metrics()


EXACT = (code_usage, geometry, atlas, sample)
TO_ROUNDING = (statistics, feature_set, inception_score, pixels, tokenizer_quality)


def measure(numbers: torch.Tensor) -> dict[str, Any]:
    values = {metric.__name__: metric(Data(numbers)) for metric in (*EXACT, *TO_ROUNDING)}
    return values | {"world_size": world_size()}


def measure_share() -> dict[str, Any]:
    return measure(SHARES[rank()])


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    results: list[dict[str, Any]] = on_processes(2, tmp_path_factory.mktemp("ranks"), measure_share)
    assert [result["world_size"] for result in results] == [2, 2]
    return results


@pytest.fixture(scope="module")
def whole() -> dict[str, Any]:
    return measure(torch.arange(IMAGES))


@pytest.mark.parametrize("metric", EXACT)
def test_counts_and_choices_are_equal_in_every_bit(ranks, whole, metric: Callable[[Data], Any]):
    for result in ranks:
        torch.testing.assert_close(result[metric.__name__], whole[metric.__name__], rtol=0, atol=0)


@pytest.mark.parametrize("metric", TO_ROUNDING)
def test_sums_are_equal_to_rounding(ranks, whole, metric: Callable[[Data], Any]):
    for result in ranks:
        torch.testing.assert_close(result[metric.__name__], whole[metric.__name__], rtol=1e-6, atol=1e-12)
