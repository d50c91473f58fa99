"""A quantizer alone: it learns, is measured on other vectors, and sees what the other quantizers see."""

import re
from dataclasses import replace

import pytest
import torch

from lgq.experiments.quantizer_alone import AloneSettings, measure_alone, random_rows, train_alone
from lgq.quantizers import QUANTIZERS

SETTINGS = AloneSettings(
    quantizer="lgq",
    codebook_size=16,
    quantizer_options={},
    dim=4,
    vectors=64,
    steps=60,
    learning_rate=1e-2,
)


def normal(count: int, seed: int) -> torch.Tensor:
    return torch.randn(count, 4, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("quantizer", QUANTIZERS)
def test_training_lowers_the_error_on_vectors_that_were_not_seen(quantizer):
    settings, random = replace(SETTINGS, quantizer=quantizer), torch.Generator().manual_seed(0)
    unseen, errors = normal(500, 7), []
    for steps in (1, 60):
        trained = train_alone(
            replace(settings, steps=steps), lambda: torch.randn(64, 4, generator=random), seed=0
        )
        errors.append(measure_alone(trained.quantizer, [unseen])["mse"])
    assert errors[1] < errors[0]
    assert [point["step"] for point in trained.curve] == list(range(6, 61, 6))
    assert all(0 < point["batch_utilization"] <= 1 for point in trained.curve)


def test_the_error_is_that_of_the_nearest_code_whatever_the_batches():
    trained = train_alone(replace(SETTINGS, quantizer="vq", steps=5), lambda: normal(64, 0), seed=0)
    unseen = normal(9, 3)
    distances = torch.cdist(unseen, trained.quantizer.codebook).square()
    metrics = measure_alone(trained.quantizer, [unseen])
    assert metrics["mse"] == pytest.approx(float(distances.min(1).values.sum()) / unseen.numel(), rel=1e-5)
    used = distances.argmin(1).unique()
    assert metrics["utilization"] == len(used) / 16
    assert measure_alone(trained.quantizer, [unseen[:4], unseen[4:]]) == pytest.approx(metrics)


def test_a_long_training_says_how_far_it_is(monkeypatch, capsys):
    monkeypatch.setattr("lgq.progress._LINE_SECONDS", 0)
    train_alone(replace(SETTINGS, steps=3), lambda: normal(64, 0), seed=0)
    assert re.findall(r"training  (\d)/3", capsys.readouterr().err) == ["1", "2", "3"]


def test_a_run_depends_on_its_seed_alone():
    def codes(seed: int) -> torch.Tensor:
        random = torch.Generator().manual_seed(seed)
        rows = normal(100, 5).bfloat16()
        trained = train_alone(SETTINGS, lambda: random_rows(rows, 64, random), seed=seed)
        return trained.quantizer.codebook.detach()

    first = codes(0)
    torch.randn(3)
    assert torch.equal(codes(0), first)
    assert not torch.equal(codes(1), first)
