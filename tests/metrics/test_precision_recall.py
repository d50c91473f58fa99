import numpy as np
import pytest
import torch

from lgq.metrics.precision_recall import precision_recall
from lgq.ops import numerics as tiles


def brute_force(x: np.ndarray, y: np.ndarray, neighbours: int) -> tuple[float, float]:
    def radius(rows: np.ndarray, i: int) -> float:
        others = sorted(np.linalg.norm(rows[i] - rows[j]) for j in range(len(rows)) if j != i)
        return others[neighbours - 1]

    def share(points: np.ndarray, rows: np.ndarray) -> float:
        radii = [radius(rows, i) for i in range(len(rows))]
        near = [np.linalg.norm(rows - point, axis=1) <= radii for point in points]
        return float(np.mean([any(row) for row in near]))

    return share(x, y), share(y, x)


@pytest.mark.parametrize("neighbours", [1, 3, 5])
@pytest.mark.parametrize("tile_bytes", [1, 1000, 2**25])
def test_shares_are_those_of_the_plain_definition_in_tiles_of_any_size(monkeypatch, neighbours, tile_bytes):
    monkeypatch.setattr(tiles, "_TILE_BYTES", tile_bytes)
    x, y = torch.randn(40, 3), 1.5 * torch.randn(31, 3) + 0.8
    expected = brute_force(x.double().numpy(), y.double().numpy(), neighbours)
    result = precision_recall(x, y, neighbours=neighbours)
    assert 0 < expected[0] != expected[1]
    assert tuple(result.values()) == pytest.approx(expected)


def test_a_large_common_value_changes_nothing():
    x, y = torch.randn(40, 3, dtype=torch.float64), 1.3 * torch.randn(31, 3, dtype=torch.float64)
    assert precision_recall(x + 2.0**27, y + 2.0**27) == precision_recall(x, y)


@pytest.mark.usefixtures("without_shape_checks")
def test_bad_input_is_refused_by_name():
    for shape in ((3, 2), (9, 3)):
        with pytest.raises(
            ValueError, match=rf"more than 3 images .*, got \(9, 2\) and \({shape[0]}, {shape[1]}\)"
        ):
            precision_recall(torch.randn(9, 2), torch.randn(shape))
