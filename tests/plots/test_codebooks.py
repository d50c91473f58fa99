"""Pictures of a codebook show every group of codes, how they were projected, and patches as they are."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from png_pixels import count, opened
from torch import Tensor
from torch.nn.functional import normalize

from lgq.plots import codebooks
from lgq.plots.canvas import ORANGE
from lgq.plots.codebooks import LATENT, norm_scatter, overlay, project

CODES = 12
SCALES = torch.tensor([0.1, 5.0, 0.2, 2.0])


class FirstTwo:
    """A stand-in for UMAP, which takes long to compile."""

    def __init__(self, **settings):
        self.settings = settings

    def fit_transform(self, rows: np.ndarray) -> np.ndarray:
        assert self.settings["random_state"] == 0
        return rows[:, :2].astype(np.float32)


@pytest.fixture
def titles(monkeypatch) -> list[str]:
    """Titles of plots and their panels."""
    written: list[str] = []
    for owner, name in ((Axes, "set_title"), (Figure, "suptitle")):
        original = getattr(owner, name)

        def spied(self, text, *args, original=original, **kwargs):
            written.append(text)
            return original(self, text, *args, **kwargs)

        monkeypatch.setattr(owner, name, spied)
    return written


def points() -> tuple[Tensor, Tensor]:
    """Latents and codes."""
    return torch.randn(60, 4) * SCALES + 3, torch.randn(CODES, 4) * SCALES


def is_blue(picture: np.ndarray) -> np.ndarray:
    return picture[..., 2].astype(int) > picture[..., 0].astype(int) + 30


def test_pca_keeps_the_two_directions_of_most_variance():
    latents, codes = points()
    plane = project(latents, codes, method="pca")
    centred = latents.double().numpy() - latents.double().numpy().mean(0)
    directions = np.linalg.svd(centred)[2][:2]
    assert plane.method == "pca"
    np.testing.assert_allclose(plane.latents.abs(), np.abs(centred @ directions.T), atol=1e-9)
    moved = codes.double().numpy() - latents.double().numpy().mean(0)
    np.testing.assert_allclose(plane.codes.abs(), np.abs(moved @ directions.T), atol=1e-9)
    for column, channel in enumerate((1, 3)):
        pair = torch.stack([plane.latents[:, column], latents[:, channel].double()])
        assert torch.corrcoef(pair)[0, 1] > 0.9


@pytest.mark.parametrize("umap", [SimpleNamespace(UMAP=FirstTwo), None])
def test_umap_projects_latents_and_codes_together_and_pca_without_it(umap, titles, monkeypatch):
    monkeypatch.setitem(sys.modules, "umap", umap)
    latents, codes = points()
    plane, by_pca = project(latents, codes), project(latents, codes, method="pca")
    expected = (latents[:, :2], codes[:, :2]) if umap else (by_pca.latents, by_pca.codes)
    assert plane.method == ("umap" if umap else "pca")
    torch.testing.assert_close(
        (plane.latents.float(), plane.codes.float()), tuple(x.float() for x in expected)
    )
    overlay(latents, codes, torch.arange(CODES), caption="LGQ")
    assert f"by {plane.method.upper()}" in titles[-1]
    if not umap:
        with pytest.raises(ValueError, match=r"install lgq\[umap\]"):
            project(latents, codes, method="umap")


@pytest.mark.usefixtures("without_shape_checks")
def test_bad_input_is_refused_by_name():
    latents, codes = points()
    with pytest.raises(ValueError, match="same channels to share a plane, got 4 and 3"):
        project(latents, codes[:, :3])
    with pytest.raises(ValueError, match="`latents` must be at least 2, got 1"):
        project(latents[:1], codes)
    with pytest.raises(ValueError, match="`method` must be 'auto' or 'umap' or 'pca', got 'tsne'"):
        project(latents, codes, method="tsne")


def test_an_overlay_gives_the_norms_of_latents_and_codes(titles):
    latents, codes = map(normalize, points())
    overlay(8 * latents, 0.5 * codes, torch.ones(CODES).long(), caption="LGQ", method="pca")
    assert any("median norms 8 of latents, 0.5 of codes" in title for title in titles)


def test_dead_codes_are_drawn_in_their_own_colour():
    latents, codes = points()
    all_live, some_live, all_dead = (
        torch.ones(CODES).long(),
        torch.arange(CODES) // 4,
        torch.zeros(CODES).long(),
    )
    for draw in (
        lambda counts: overlay(latents, codes, counts, caption="", method="pca"),
        lambda counts: norm_scatter(codes, counts, caption=""),
    ):
        none, some, every = (count(ORANGE, opened(draw(x))) for x in (all_live, some_live, all_dead))
        assert none == 0 < some < every


def test_latents_and_live_codes_are_drawn():
    latents, codes = points()
    counts = torch.arange(CODES)
    more, fewer = (overlay(x, codes, counts, caption="", method="pca") for x in (latents, latents[:10]))
    assert count(LATENT, opened(more)) > count(LATENT, opened(fewer)) > 0
    scatters = (norm_scatter(codes, used, caption="") for used in (counts * 0, counts // 8, counts))
    none, few, most = (is_blue(opened(png)).sum() for png in scatters)
    assert none < few < most


def test_codes_are_darker_the_more_they_are_used():
    latents = torch.randn(50, 4)
    codes = torch.tensor([[5.0, 0, 0, 0], [-5.0, 0, 0, 0]])

    def darkest(*counts: int) -> int:
        picture = opened(overlay(latents, codes, torch.tensor(counts), caption="", method="pca"))
        without_scale_and_legend = picture[:500, : picture.shape[1] * 4 // 5].astype(int)
        return int(without_scale_and_legend[is_blue(without_scale_and_legend)].sum(1).min())

    assert darkest(1, 1) > darkest(1, 10_000)


def test_large_codebooks_are_drawn_in_part_and_the_title_says_so(titles, monkeypatch):
    monkeypatch.setattr(codebooks, "MOST_PROJECTED_CODES", 5)
    latents, codes = points()
    picture = overlay(latents, codes, torch.ones(CODES).long(), caption="LGQ", method="pca")
    assert "5 of 12 codes among latents" in titles[-1]
    assert picture == overlay(latents, codes, torch.ones(CODES).long(), caption="LGQ", method="pca")
    assert codebooks._random_codes(4).tolist() == [0, 1, 2, 3]
    assert len(codebooks._random_codes(100).unique()) == 5


def test_norms_are_shown_with_their_correlation(titles):
    codes, counts = torch.randn(4, 3), torch.tensor([0, 1, 9, 99])
    norm_scatter(codes, counts, caption="LGQ", correlation=1.0)
    assert titles[-1] == "LGQ: norm and use of codes (correlation +1.00)"
    norm_scatter(codes, counts, caption="LGQ")
    assert "correlation" not in titles[-1]
