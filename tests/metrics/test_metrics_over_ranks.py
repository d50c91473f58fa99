"""Metrics of two processes with a share of the images each are those of one process with all of them."""

import socket
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from lgq.distributed import world_size
from lgq.metrics.codebook_study import CodeAtlas
from lgq.metrics.features import FeatureSample
from lgq.metrics.fid import FeatureStatistics
from lgq.metrics.geometry import CodeGeometry
from lgq.metrics.inception_score import InceptionScore

IMAGES, FEATURES, CODES, PATCH = 23, 6, 150, 2
# Of different sizes, and none with all codes' first patches.
SHARES = [torch.arange(0, IMAGES, 3), torch.tensor([i for i in range(IMAGES) if i % 3])]


def everything(numbers: torch.Tensor) -> dict:
    generator = torch.Generator().manual_seed(5)
    features = torch.randn(IMAGES, FEATURES, generator=generator)[numbers]
    tokens = torch.randint(0, CODES, (IMAGES, 4, 4), generator=generator)[numbers]
    images = torch.rand(IMAGES, 3, 8, 8, generator=generator)[numbers] * 2 - 1
    statistics, sample = FeatureStatistics.of(FEATURES), FeatureSample.of(9, dim=FEATURES)
    scores, geometry = InceptionScore.of(FEATURES, splits=4), CodeGeometry.of(CODES, grid=(4, 4))
    atlas = CodeAtlas.of(CODES, grid=(4, 4), patch=PATCH, keep=2)
    statistics.update(features)
    sample.update(features, numbers)
    scores.update(features, numbers)
    geometry.update(tokens)
    atlas.update(images, tokens, numbers)
    gaussian, atlas = statistics.over_ranks().gaussian(), atlas.over_ranks()
    return {
        "world_size": world_size(),
        "gaussian": [gaussian.mean, gaussian.covariance, gaussian.count],
        "sample": sample.over_ranks().features,
        "score": list(scores.over_ranks().compute()),
        "geometry": geometry.over_ranks().summary(),
        "atlas": [atlas.places, atlas.patches, atlas.usage.counts],
    }


def in_process(rank: int, port: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    try:
        torch.save(everything(SHARES[rank]), Path(folder) / f"{rank}.pt")
    finally:
        dist.destroy_process_group()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    folder = tmp_path_factory.mktemp("ranks")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    mp.spawn(in_process, args=(port, str(folder)), nprocs=2)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2)]


@pytest.fixture(scope="module")
def whole() -> dict:
    return everything(torch.arange(IMAGES))


def test_there_are_two_processes(ranks, whole):
    assert [rank["world_size"] for rank in ranks] == [2, 2]
    assert whole["world_size"] == 1


@pytest.mark.parametrize("metric", ["sample", "geometry", "atlas"])
def test_choices_and_counts_are_equal_in_every_bit(ranks, whole, metric):
    for rank in ranks:
        torch.testing.assert_close(rank[metric], whole[metric], rtol=0, atol=0)


@pytest.mark.parametrize("metric", ["gaussian", "score"])
def test_sums_agree_to_rounding(ranks, whole, metric):
    for rank in ranks:
        torch.testing.assert_close(rank[metric], whole[metric], rtol=1e-12, atol=1e-14)
