"""Settings and fixtures of all tests."""

import inspect
import os
from collections.abc import Iterator

import pytest
import torch
from hypothesis import settings
from jaxtyping import config as jaxtyping_config

from lgq.quantizers import Quantized

settings.register_profile("lgq", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("lgq")


def pytest_configure(config: pytest.Config) -> None:
    # Each worker of a parallel run gets its share of the cores, not all of them.
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    torch.set_num_threads(max(1, torch.get_num_threads() // workers))


@pytest.fixture(autouse=True)
def _fixed_seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def without_shape_checks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Turn off run-time type checks: torch.compile cannot trace them, and they hide errors of ours."""
    monkeypatch.setattr(Quantized, "__new__", staticmethod(inspect.unwrap(Quantized.__new__)))
    for name in Quantized._fields:
        monkeypatch.setattr(Quantized, name, property(inspect.unwrap(getattr(Quantized, name).fget)))
    jaxtyping_config.update("jaxtyping_disable", True)
    yield
    jaxtyping_config.update("jaxtyping_disable", False)
