"""The benchmark of an evaluation measures what it claims to."""

import pytest
import torch
from cheap_inception import FEATURES, CheapInception

from lgq.bench import evaluate
from lgq.bench.evaluate import EvaluateBenchmark, distance_by_sqrtm, networks_alone
from lgq.bench.tables import evaluate_table
from lgq.data import open_dataset
from lgq.data.images import random_subset
from lgq.metrics import quality
from lgq.metrics.fid import Gaussian
from lgq.metrics.metric_networks import MetricNetworks
from lgq.metrics.quality import evaluate_tokenizer
from lgq.models.autoencoder import Backbone
from lgq.models.lpips import LPIPS
from lgq.tokenizer import Tokenizer

SMALL = EvaluateBenchmark(images=4, batch_size=2, rounds=2, features=24)


@pytest.fixture(autouse=True)
def cheap_networks(monkeypatch, tmp_path):
    monkeypatch.setenv("LGQ_CACHE", str(tmp_path))
    monkeypatch.setattr(evaluate, "InceptionV3", CheapInception)
    monkeypatch.setattr(quality, "FEATURES", FEATURES)


def test_every_row_of_the_plan_is_measured(tmp_path):
    rows = list(evaluate.run(SMALL))
    assert tuple(row.name for row in rows) == evaluate.plan(SMALL)
    assert len(rows) == 3
    assert all(row.seconds > 0 and row.ratio > 0 and row.reference_seconds > 0 for row in rows)
    assert all(row.difference < 1e-6 for row in rows[1:])
    assert evaluate_table(rows).row_count == 3
    assert list(tmp_path.iterdir()) == [], "no features are cached"


def test_both_sides_run_the_networks_on_the_same_images():
    tokenizer = Tokenizer(Backbone(widths=(8, 16), blocks=1, groups=4, latent_channels=8), "lgq", 16).eval()
    lpips, inception = LPIPS(), CheapInception()
    networks_alone(tokenizer, lpips, inception, [torch.zeros(2, 3, 16, 16)] * 3)()
    assert inception.seen == 2 * 6
    data = random_subset(open_dataset("sample"), 6)
    networks = MetricNetworks(lpips, inception)
    evaluate_tokenizer(tokenizer, data, networks, image_size=16, batch_size=2, use_cache=False)
    assert inception.seen == 4 * 6


def test_the_distance_by_scipy_is_right():
    a, b = torch.tensor([1.0, 4.0, 9.0]).double(), torch.tensor([4.0, 4.0, 1.0]).double()
    mean = torch.tensor([1.0, 0.0, -2.0]).double()
    distance = distance_by_sqrtm(Gaussian(mean, a.diag()), Gaussian(0 * mean, b.diag()))
    assert distance == pytest.approx(5 + 1 + 0 + 4)
