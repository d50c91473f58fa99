import numpy as np
import pytest
import torch

from lgq.metrics.inception_score import InceptionScore


def score(logits: torch.Tensor, splits: int = 10, batch: int = 5, order: torch.Tensor | None = None) -> float:
    """Image i is in split i modulo `splits`."""
    accumulator = InceptionScore.empty(logits.shape[1], splits=splits)
    for numbers in (torch.arange(len(logits)) if order is None else order).split(batch):
        accumulator.update(logits[numbers], numbers % splits)
    return accumulator.compute()


def brute_force(logits: np.ndarray, splits: int) -> float:
    scores = []
    for split in range(splits):
        part = np.exp(logits[split::splits])
        p = part / part.sum(1, keepdims=True)
        marginal = p.mean(0)
        divergences = [sum(q * np.log(q / m) for q, m in zip(row, marginal, strict=True)) for row in p]
        scores.append(np.exp(np.mean(divergences)))
    return float(np.mean(scores))


@pytest.mark.parametrize("splits", [1, 3, 10])
def test_the_score_is_the_plain_formula(splits):
    logits = 3 * torch.randn(47, 6, dtype=torch.float64)
    assert score(logits, splits) == pytest.approx(brute_force(logits.numpy(), splits))


def test_order_and_batches_change_rounding_only():
    logits = torch.randn(47, 6)
    assert score(logits, order=torch.randperm(47), batch=3) == pytest.approx(score(logits), rel=1e-12)


def test_bad_input_is_refused_by_name():
    with pytest.raises(ValueError, match="10 splits need one image each, got 9 images"):
        score(torch.zeros(9, 3))
    with pytest.raises(ValueError, match="logits hold NaN"):
        score(torch.full((10, 3), torch.nan))
