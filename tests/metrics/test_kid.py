import itertools

import numpy as np
import pytest
import torch

from lgq.metrics.kid import kernel_distance, kernel_inception_distance
from lgq.ops import numerics as tiles


def sets(n: int = 13, m: int = 9, dim: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(n, dim), 0.7 * torch.randn(m, dim) + 0.4


def brute_force(x: np.ndarray, y: np.ndarray) -> float:
    """Sums over pairs, one at a time; an image is no pair with itself."""

    def kernel(a: np.ndarray, b: np.ndarray) -> float:
        return (float(a @ b) / len(a) + 1) ** 3

    within = [np.mean([kernel(a, b) for a, b in itertools.permutations(rows, 2)]) for rows in (x, y)]
    return within[0] + within[1] - 2 * np.mean([kernel(a, b) for a in x for b in y])


@pytest.mark.parametrize("tile_bytes", [1, 200, 2**25])
def test_the_distance_is_the_plain_formula_in_tiles_of_any_size(monkeypatch, tile_bytes):
    monkeypatch.setattr(tiles, "_TILE_BYTES", tile_bytes)
    x, y = sets()
    expected = brute_force(x.double().numpy(), y.double().numpy())
    assert kernel_distance(x, y) == pytest.approx(expected, rel=1e-9)
    assert kernel_distance(y, x) == pytest.approx(expected, rel=1e-9)


def test_subsets_of_everything_are_the_whole():
    x, y = sets(9, 9)
    result = kernel_inception_distance(x, y, subsets=4, subset_size=9)
    assert result == pytest.approx((kernel_distance(x, y), 0), abs=1e-9)


def test_subsets_repeat_with_the_seed_and_have_the_mean_of_the_whole():
    x, y = sets(40, 30)
    result = kernel_inception_distance(x, y, subsets=100, subset_size=12)
    assert result == kernel_inception_distance(x, y, subsets=100, subset_size=12)
    assert result != kernel_inception_distance(x, y, subsets=100, subset_size=12, seed=1)
    assert abs(result.mean - kernel_distance(x, y)) < 4 * result.std / 100**0.5


def test_sets_of_one_distribution_are_at_no_distance_on_average():
    each = torch.tensor([kernel_distance(*torch.randn(2, 10, 4).unbind()) for _ in range(300)])
    assert abs(float(each.mean())) < 4 * float(each.std()) / 300**0.5
    assert (each < 0).any()


@pytest.mark.usefixtures("without_shape_checks")
def test_bad_input_is_refused_by_name():
    x, y = sets()
    with pytest.raises(ValueError, match="subsets of 1000 need as many images of both sets, got 9"):
        kernel_inception_distance(x, y)
    with pytest.raises(ValueError, match=r"got \(13, 5\) and \(1, 5\)"):
        kernel_distance(x, y[:1])
    with pytest.raises(ValueError, match=r"same features, got \(13, 5\) and \(9, 4\)"):
        kernel_distance(x, y[:, :4])
    with pytest.raises(ValueError, match="subsets must be at least 1, got 0"):
        kernel_inception_distance(x, y, subsets=0)
