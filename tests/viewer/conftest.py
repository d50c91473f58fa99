"""Servers that several test files share."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from serving import Served, gradient, serve, small_tokenizer

from lgq.data import FolderDataset
from lgq.viewer.code_gallery import Model
from lgq.viewer.guard import Limits
from lgq.viewer.studio import Studio


@pytest.fixture(scope="package")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    for i in range(3):
        gradient(96, 64, i).save(folder / f"{i}.png")
    return folder


@pytest.fixture(scope="module")
def served(photos: Path) -> Iterator[Served]:
    """Tokenizers: a plain one, one with two stages, one whose codes are a fixed grid, one with scales."""
    models = [
        Model("plain", small_tokenizer()),
        Model("residual", small_tokenizer(stages=2, seed=1)),
        Model("grid", small_tokenizer("fsq", seed=2)),
        Model("scales", small_tokenizer(scales=(1, 2, 4), seed=3)),
    ]
    studio = Studio(models, FolderDataset(photos))
    studio.study()
    yield from serve(studio, Limits(requests_per_second=10_000, burst=10_000))
