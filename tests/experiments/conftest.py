import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tiny_experiments import paint

# In memory where possible: a row writes dozens of files, each of which takes a disk milliseconds to sync.
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return paint(tmp_path_factory.mktemp("images"))


@pytest.fixture(autouse=True)
def _own_cache(images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LGQ_CACHE", str(images.parent / "cache"))


@pytest.fixture
def out() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        yield Path(folder) / "results"


@pytest.fixture(scope="session")
def shared_out() -> Iterator[Path]:
    """Results that several tests add to."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        yield Path(folder) / "results"
