"""Settings and fixtures of all tests."""

import importlib.util
import inspect
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import settings
from jaxtyping import config as jaxtyping_config

# Triton reads this when it is imported: its interpreter runs kernels without a GPU.
os.environ["TRITON_INTERPRET"] = "1"


def _but_the_kernels(has_checks: Callable[[str], bool]) -> Callable[[str], bool]:
    return lambda module: module != "lgq.ops.kernels" and has_checks(module)


for finder in sys.meta_path:
    if hasattr(finder, "should_instrument"):  # that of jaxtyping, whose checks Triton cannot compile
        finder.should_instrument = _but_the_kernels(finder.should_instrument)

from lgq.ops import numerics, passes  # noqa: E402
from lgq.ops.fused import KERNEL_VARIABLE  # noqa: E402
from lgq.quantizers import Quantized  # noqa: E402

# Whether a training warns of bf16 must not depend on the machine.
numerics._PROCESSOR = Path("no-cpuinfo")

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


@pytest.fixture(scope="module", params=["torch", "c", "triton"])
def kernel(request: pytest.FixtureRequest) -> Iterator[str]:
    """All implementations of the operators; the fused kernels run in Triton's interpreter."""
    if request.param == "triton" and importlib.util.find_spec("triton") is None:
        pytest.skip("the fused kernels need Triton: pip install -e '.[kernels]'")
    if request.param == "c":
        request.getfixturevalue("compiler")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(KERNEL_VARIABLE, "triton" if request.param == "triton" else "torch")
        patch.setenv(passes.NATIVE_VARIABLE, "1" if request.param == "c" else "0")
        patch.setattr(passes, "_FEWEST_SCORES", 0)
        yield request.param


@pytest.fixture(scope="session")
def compiler() -> None:
    """Skip what needs a compiler of C where there is none."""
    if shutil.which("cc") is None and shutil.which("gcc") is None:
        pytest.skip("passes in C need a compiler: apt install gcc")
