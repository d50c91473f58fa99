import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from lgq.plots.codebooks import project

SCALES = torch.tensor([0.1, 5.0, 0.2, 2.0])


def points() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(60, 4) * SCALES + 3, torch.randn(9, 4) * SCALES


class FirstTwo:
    """Stands in for UMAP, which takes long to compile."""

    def __init__(self, **settings):
        self.settings = settings

    def fit_transform(self, rows: np.ndarray) -> np.ndarray:
        return (rows[:, :2] + self.settings["random_state"]).astype(np.float32)


def test_pca_keeps_the_two_directions_of_most_variance():
    latents, codes = points()
    plane = project(latents, codes, method="pca")
    centred = latents.double().numpy() - latents.double().numpy().mean(0)
    directions = np.linalg.svd(centred)[2][:2]
    assert plane.method == "pca"
    np.testing.assert_allclose(plane.latents.abs(), np.abs(centred @ directions.T), atol=1e-9)
    moved = codes.double().numpy() - latents.double().numpy().mean(0)
    np.testing.assert_allclose(plane.codes.abs(), np.abs(moved @ directions.T), atol=1e-9)


def test_pca_points_along_the_larger_part_of_each_direction():
    latents, codes = points()
    plane = project(latents, codes, method="pca").latents
    for column, channel in enumerate((1, 3)):
        assert torch.corrcoef(torch.stack([plane[:, column], latents[:, channel].double()]))[0, 1] > 0.9


def test_without_umap_the_choice_falls_on_pca_and_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "umap", None)
    latents, codes = points()
    plane = project(latents, codes)
    assert plane.method == "pca"
    assert torch.equal(plane.latents, project(latents, codes, method="pca").latents)
    with pytest.raises(ValueError, match=r"install lgq\[umap\]"):
        project(latents, codes, method="umap")


def test_umap_places_latents_and_codes_together_by_the_seed(monkeypatch):
    monkeypatch.setitem(sys.modules, "umap", SimpleNamespace(UMAP=FirstTwo))
    latents, codes = points()
    plane = project(latents, codes, seed=5)
    assert plane.method == "umap"
    torch.testing.assert_close(plane.latents.float(), latents[:, :2] + 5)
    torch.testing.assert_close(plane.codes.float(), codes[:, :2] + 5)


@pytest.mark.usefixtures("without_shape_checks")
def test_bad_input_is_refused_by_name():
    latents, codes = points()
    with pytest.raises(ValueError, match="same channels to share a plane, got 4 and 3"):
        project(latents, codes[:, :3])
    with pytest.raises(ValueError, match="latents must be at least 2, got 1"):
        project(latents[:1], codes)
    with pytest.raises(ValueError, match="method must be 'auto' or 'umap' or 'pca', got 'tsne'"):
        project(latents, codes, method="tsne")
