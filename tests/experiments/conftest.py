import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tiny_experiments import paint


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return paint(tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def _cache_of_their_own(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LGQ_CACHE", str(cache))


def _in_memory(fallback: Path) -> tempfile.TemporaryDirectory[str]:
    """Where possible: a row writes dozens of files, each of which a disk takes milliseconds to sync."""
    return tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else fallback)


@pytest.fixture
def out(tmp_path: Path) -> Iterator[Path]:
    with _in_memory(tmp_path) as path:
        yield Path(path) / "results"


@pytest.fixture(scope="session")
def shared_out(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Results that several tests add to."""
    with _in_memory(tmp_path_factory.mktemp("shared")) as path:
        yield Path(path) / "results"
