import numpy as np
import pytest
import torch

from lgq.metrics.inception_score import InceptionScore, inception_score


def brute_force(logits: np.ndarray, splits: int) -> tuple[float, float]:
    scores = []
    for split in range(splits):
        part = np.exp(logits[split::splits])
        p = part / part.sum(1, keepdims=True)
        marginal = p.mean(0)
        divergences = [sum(q * np.log(q / m) for q, m in zip(row, marginal, strict=True)) for row in p]
        scores.append(np.exp(np.mean(divergences)))
    return float(np.mean(scores)), float(np.std(scores))


@pytest.mark.parametrize("splits", [1, 3, 10])
def test_the_score_is_the_plain_formula(splits):
    logits = 3 * torch.randn(47, 6, dtype=torch.float64)
    assert inception_score(logits, splits=splits) == pytest.approx(brute_force(logits.numpy(), splits))


def test_streams_and_parts_in_any_order_equal_one_pass():
    logits = torch.randn(47, 6)
    order = torch.randperm(47)
    parts = [InceptionScore.of(6) for _ in range(2)]
    for i, chosen in enumerate(order.split(5)):
        parts[i % 2].update(logits[chosen], chosen)
    merged = parts[0].merge(parts[1])
    assert merged.compute() == pytest.approx(inception_score(logits), rel=1e-12)
    assert merged.over_ranks().compute() == merged.compute()


def test_sure_answers_that_cover_all_classes_score_the_number_of_classes():
    logits = torch.where(torch.eye(5, dtype=torch.bool), 0.0, -torch.inf).repeat(8, 1)
    assert inception_score(logits, splits=4) == pytest.approx((5, 0))


def test_the_same_answer_everywhere_scores_one():
    assert inception_score(torch.randn(1, 5).repeat(12, 1), splits=3) == pytest.approx((1, 0), abs=1e-7)


@pytest.mark.usefixtures("without_shape_checks")
def test_bad_input_is_refused_by_name():
    with pytest.raises(ValueError, match="10 splits need an image each, got 9 images"):
        inception_score(torch.zeros(9, 3))
    with pytest.raises(ValueError, match="logits hold NaN"):
        inception_score(torch.full((10, 3), torch.nan))
    with pytest.raises(ValueError, match=r"expected logits of shape \(2, 3\), got \(2, 4\)"):
        InceptionScore.of(3).update(torch.zeros(2, 4), torch.arange(2))
    with pytest.raises(ValueError, match=r"got \(10, 3\) and \(5, 3\)"):
        InceptionScore.of(3).merge(InceptionScore.of(3, splits=5))
