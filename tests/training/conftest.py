import os
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from leftovers import NO_TENSORBOARD
from tiny_run import paint_photos

from lgq.models.discriminator import PatchDiscriminator


@pytest.fixture
def _no_tensorboard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", NO_TENSORBOARD)


@pytest.fixture
def _small_discriminator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lgq.training.networks.PatchDiscriminator", partial(PatchDiscriminator, base_width=4))


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return paint_photos(tmp_path_factory.mktemp("photos"))


@pytest.fixture
def quick_path(tmp_path) -> Iterator[Path]:
    """In memory where possible, for tests that remove many directories, which takes a disk milliseconds."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else tmp_path) as path:
        yield Path(path)
