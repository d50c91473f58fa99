"""Pictures of a codebook show every group of codes, how they were made, and patches as they are."""

import sys
from io import BytesIO
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image, ImageColor
from torch import Tensor

from lgq.metrics.codebook_study import CodeAtlas, CodebookStudy
from lgq.plots import codebooks
from lgq.plots.canvas import ORANGE
from lgq.plots.codebooks import LATENT, atlas_sheet, draw_study, norm_scatter, overlay
from lgq.plots.curves import usage_histogram

CODES, CHANNELS, GRID, PATCH, KEEP = 12, 4, (2, 3), 3, 4


class FirstTwo:
    """Stands in for UMAP, which takes long to compile."""

    def __init__(self, **settings):
        self.settings = settings

    def fit_transform(self, rows: np.ndarray) -> np.ndarray:
        return rows[:, :2].astype(np.float32)


def opened(png: bytes) -> np.ndarray:
    image = Image.open(BytesIO(png))
    assert image.format == "PNG"
    return np.asarray(image.convert("RGB"))


def count(colour: str, png: bytes) -> int:
    return int((opened(png) == ImageColor.getrgb(colour)).all(2).sum())


def is_blue(picture: np.ndarray) -> np.ndarray:
    return picture[..., 2].astype(int) > picture[..., 0].astype(int) + 30


def bluish(picture: np.ndarray) -> int:
    return int(is_blue(picture).sum())


def atlas_of(images: int = 20, dead: int = 3) -> CodeAtlas:
    atlas = CodeAtlas.of(CODES, grid=GRID, patch=PATCH, keep=KEEP)
    pixels = torch.rand(images, 3, GRID[0] * PATCH, GRID[1] * PATCH) * 2 - 1
    atlas.update(pixels, torch.randint(0, CODES - dead, (images, *GRID)), torch.arange(images))
    return atlas


def study_of(atlas: CodeAtlas, *, learned: bool = True, overlaid: bool = True, **changes) -> CodebookStudy:
    values = {
        "quantizer": "lgq",
        "stage": 0,
        "stages": 1,
        "images": 20,
        "metrics": {},
        "absent": {},
    } | changes
    codebook = torch.randn(CODES, CHANNELS) if learned else None
    latents = torch.randn(50, CHANNELS) if overlaid else None
    return CodebookStudy(**values, atlas=atlas, codebook=codebook, latents=latents, broken={})


@pytest.fixture
def titles(monkeypatch) -> list[str]:
    """What is written above plots and their panels."""
    written: list[str] = []
    for owner, name in ((Axes, "set_title"), (Figure, "suptitle")):
        original = getattr(owner, name)

        def spied(self, text, *args, original=original, **kwargs):
            written.append(text)
            return original(self, text, *args, **kwargs)

        monkeypatch.setattr(owner, name, spied)
    return written


def points(codes: int = CODES) -> tuple[Tensor, Tensor]:
    return torch.randn(50, CHANNELS), torch.randn(codes, CHANNELS)


def test_a_study_is_drawn_in_four_pictures():
    study = study_of(atlas_of())
    drawn = draw_study(study, method="pca")
    assert drawn.keys() == {"usage", "atlas", "norms", "overlay"}
    assert drawn["usage"] == usage_histogram(study.usage.counts, caption="LGQ")
    assert all(min(opened(png).shape[:2]) > 100 for png in drawn.values())


def test_pictures_that_a_study_has_nothing_for_are_left_out():
    fixed = study_of(atlas_of(), learned=False, overlaid=False)
    assert draw_study(fixed).keys() == {"usage", "atlas"}
    assert draw_study(study_of(atlas_of(), overlaid=False)).keys() == {"usage", "atlas", "norms"}


def test_pictures_say_whose_codes_they_show(titles):
    draw_study(study_of(atlas_of(), quantizer="rotvq", stage=1, stages=3), method="pca")
    assert sum("RotVQ, stage 2 of 3" in title for title in titles) == 3
    titles.clear()
    draw_study(study_of(atlas_of()), method="pca")
    assert sum(title.startswith("LGQ: ") for title in titles) == 3


def test_an_overlay_names_its_method(titles, monkeypatch):
    latents, codes = points()
    counts = torch.arange(CODES)
    overlay(latents, codes, counts, caption="LGQ", method="pca")
    assert "by PCA" in titles[-1]
    monkeypatch.setitem(sys.modules, "umap", SimpleNamespace(UMAP=FirstTwo))
    overlay(latents, codes, counts, caption="LGQ")
    assert "by UMAP" in titles[-1]
    monkeypatch.setitem(sys.modules, "umap", None)
    overlay(latents, codes, counts, caption="LGQ")
    assert "by PCA" in titles[-1]


def test_an_overlay_says_how_long_latents_and_codes_are(titles):
    latents, codes = (torch.nn.functional.normalize(x) for x in points())
    overlay(8 * latents, 0.5 * codes, torch.ones(CODES).long(), caption="LGQ", method="pca")
    assert any("median norms 8 of latents, 0.5 of codes" in title for title in titles)


def test_dead_codes_are_drawn_in_their_own_colour():
    latents, codes = points()
    live, some, dead = torch.ones(CODES).long(), torch.arange(CODES) // 4, torch.zeros(CODES).long()
    crosses = [
        count(ORANGE, overlay(latents, codes, x, caption="", method="pca")) for x in (live, some, dead)
    ]
    assert crosses[0] == 0 < crosses[1] < crosses[2]
    crosses = [count(ORANGE, norm_scatter(codes, x, caption="")) for x in (live, some, dead)]
    assert crosses[0] == 0 < crosses[1] < crosses[2]


def test_latents_and_live_codes_are_drawn():
    latents, codes = points()
    counts = torch.arange(CODES)
    more, fewer = (overlay(x, codes, counts, caption="", method="pca") for x in (latents, latents[:10]))
    assert count(LATENT, more) > count(LATENT, fewer) > 0
    marks = [bluish(opened(norm_scatter(codes, x, caption=""))) for x in (counts * 0, counts // 8, counts)]
    assert marks[0] < marks[1] < marks[2]


def test_codes_are_darker_the_more_they_are_used():
    latents = torch.randn(50, CHANNELS)
    codes = torch.tensor([[5.0, 0, 0, 0], [-5.0, 0, 0, 0]])

    def darkest(*counts: int) -> int:
        picture = opened(overlay(latents, codes, torch.tensor(counts), caption="", method="pca"))
        without_scale_and_legend = picture[:500, : picture.shape[1] * 4 // 5].astype(int)
        return int(without_scale_and_legend[is_blue(without_scale_and_legend)].sum(1).min())

    assert darkest(1, 1) > darkest(1, 10_000)


def test_large_codebooks_are_drawn_in_part_and_say_so(titles, monkeypatch):
    monkeypatch.setattr(codebooks, "MOST_PROJECTED_CODES", 5)
    latents, codes = points()
    picture = overlay(latents, codes, torch.ones(CODES).long(), caption="LGQ", method="pca")
    assert "5 of 12 codes among latents" in titles[-1]
    assert picture == overlay(latents, codes, torch.ones(CODES).long(), caption="LGQ", method="pca")
    assert codebooks._random_codes(4).tolist() == [0, 1, 2, 3]
    assert len(codebooks._random_codes(100).unique()) == 5


def test_norms_are_shown_with_their_correlation(titles):
    counts = torch.tensor([0, 1, 9, 99])
    norms = counts.double().log1p().float() + 1
    norm_scatter(norms[:, None] * torch.nn.functional.normalize(torch.randn(4, 3)), counts, caption="LGQ")
    assert "(correlation +1.00)" in titles[-1]
    norm_scatter(torch.ones(4, 1), counts, caption="LGQ")
    assert "correlation" not in titles[-1]


def test_an_atlas_shows_patches_as_they_are_beside_their_code():
    atlas = atlas_of()
    picture = opened(atlas_sheet(atlas, caption="LGQ", codes=4))
    scale = codebooks._PATCH_SIDE // PATCH
    tops, lefts = [], []
    for entry in atlas.most_frequent(4):
        for patch in entry.patches:
            wanted = patch.permute(1, 2, 0).numpy().repeat(scale, 0).repeat(scale, 1)
            rows, columns = np.nonzero((picture == wanted[0, 0]).all(2))
            side = len(wanted)
            places = zip(rows, columns, strict=True)
            found = [(y, x) for y, x in places if np.array_equal(picture[y : y + side, x : x + side], wanted)]
            assert len(found) == 1
            tops.append(found[0][0])
            lefts.append(found[0][1])
    by_code = np.array(tops).reshape(4, KEEP)
    assert (by_code == by_code[:, :1]).all()
    assert by_code[0, 0] == by_code[2, 0] < by_code[1, 0] == by_code[3, 0]
    assert (np.diff(np.array(lefts).reshape(4, KEEP)) > 0).all()


def test_an_atlas_ends_with_the_codes_that_occurred():
    few, many = atlas_of(dead=CODES - 1), atlas_of(dead=0)
    heights = [opened(atlas_sheet(atlas, caption="")).shape[0] for atlas in (few, many)]
    assert heights[0] < heights[1]
    with pytest.raises(ValueError, match="codes must be at least 1, got 0"):
        atlas_sheet(few, caption="", codes=0)
