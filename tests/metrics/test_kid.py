import itertools

import numpy as np
import pytest
import torch

from lgq.metrics.kid import kernel_distance
from lgq.ops import numerics as tiles


def sets(n: int = 13, m: int = 9, dim: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(n, dim), 0.7 * torch.randn(m, dim) + 0.4


def brute_force(x: np.ndarray, y: np.ndarray) -> float:
    """Sum over pairs, one at a time; an image and itself are no pair."""

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


@pytest.mark.usefixtures("without_shape_checks")
def test_bad_input_is_refused_by_name():
    x, y = sets()
    with pytest.raises(ValueError, match=r"got \(13, 5\) and \(1, 5\)"):
        kernel_distance(x, y[:1])
    with pytest.raises(ValueError, match=r"same features, got \(13, 5\) and \(9, 4\)"):
        kernel_distance(x, y[:, :4])
