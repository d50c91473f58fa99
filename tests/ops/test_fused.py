"""Fused kernels are used where they suit and agree with torch, and compile for every architecture."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lgq.errors import LGQError
from lgq.ops import fused
from lgq.ops.assignment import soft_assignment
from lgq.ops.search import nearest_codes

CPU = torch.device("cpu")
LIMITS = {80: 163, 89: 99, 90: 227, 100: 227, 120: 99}
"""KiB of shared memory that a program may use, by architecture."""
TENSOR_MEMORY_COLUMNS = 512


@pytest.fixture
def kernels():
    return pytest.importorskip("lgq.ops.kernels", reason="needs Triton: pip install -e '.[kernels]'")


@pytest.fixture(autouse=True)
def _no_memory_of_earlier_checks():
    fused.disagreement.cache_clear()
    fused._warn_once.cache_clear()


def results(kernel, monkeypatch):
    """Outputs and gradients of both operators with a kernel, called twice."""
    monkeypatch.setenv("LGQ_KERNEL", kernel)
    generator = torch.Generator().manual_seed(3)
    z = torch.randn(70, 6, generator=generator, requires_grad=True)
    codes = torch.randn(150, 6, generator=generator, requires_grad=True)
    for _ in range(2):
        soft = soft_assignment(z, codes, 0.5)
        gradients = torch.autograd.grad(soft.usage.square().sum() + soft.codes.square().sum(), (z, codes))
    return [*(output.detach() for output in soft), nearest_codes(z, codes).indices, *gradients]


def assert_alike(ours, theirs):
    for a, b in zip(ours, theirs, strict=True):
        assert (a.double() - b).norm() <= 1e-4 * b.double().norm()


class Counted:
    """A kernel that counts its launches, and changes what it is told to."""

    def __init__(self, kernel, change=lambda tensors: None):
        self.kernel, self.change, self.launches = kernel, change, 0

    def __getitem__(self, grid):
        def launch(*arguments, **constants):
            self.launches += 1
            self.kernel[grid](*arguments, **constants)
            self.change(arguments)

        return launch


def negate_the_gradient_of_the_codes(arguments):
    arguments[13].neg_()


class Broken:
    def __getitem__(self, grid):
        raise RuntimeError("no such instruction\nand a long trace")


def test_torch_is_the_default(monkeypatch, kernels):
    monkeypatch.delenv("LGQ_KERNEL", raising=False)
    assert fused.kernel_choice() == "torch"
    monkeypatch.setattr(kernels, "search", Broken())
    nearest_codes(torch.zeros(2, 3), torch.zeros(2, 3))


def test_an_unknown_choice_raises_an_error(monkeypatch):
    monkeypatch.setenv("LGQ_KERNEL", "cuda")
    with pytest.raises(LGQError, match="LGQ_KERNEL must be 'auto', 'torch' or 'triton', got 'cuda'"):
        fused.kernel_choice()


def test_kernels_that_pass_their_self_check_are_used(monkeypatch, kernels, caplog):
    differences = fused.self_check(CPU, 32)
    assert differences.small
    monkeypatch.setattr(fused, "self_check", lambda device, channels: differences)
    scan = Counted(kernels.scan)
    monkeypatch.setattr(kernels, "scan", scan)
    ours, theirs = results("auto", monkeypatch), results("torch", monkeypatch)
    assert scan.launches == 2
    assert not caplog.records
    assert_alike(ours, theirs)


def hide_triton(monkeypatch, kernels):
    monkeypatch.delitem(sys.modules, "lgq.ops.kernels", raising=False)
    monkeypatch.setitem(sys.modules, "triton", None)


def break_triton(monkeypatch, kernels):
    monkeypatch.setattr(kernels, "scan", Broken())


def turn_a_sign(monkeypatch, kernels):
    change = negate_the_gradient_of_the_codes
    monkeypatch.setattr(kernels, "to_codes", Counted(kernels.to_codes, change))


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (hide_triton, "Triton cannot be loaded (ModuleNotFoundError"),
        (break_triton, "their self-check failed (RuntimeError: no such instruction)"),
        (turn_a_sign, "their self-check found results unlike those of torch"),
    ],
)
def test_kernels_that_cannot_be_trusted_give_way_to_torch_with_one_warning(
    damage, reason, monkeypatch, kernels, caplog
):
    expected = results("torch", monkeypatch)
    damage(monkeypatch, kernels)
    for ours, theirs in zip(results("auto", monkeypatch), expected, strict=True):
        assert torch.equal(ours, theirs)
    (record,) = caplog.records
    assert reason in record.getMessage()
    assert len(record.getMessage().splitlines()) == 1


def test_a_kernel_that_fails_after_its_self_check_gives_way_to_torch(monkeypatch, kernels, caplog):
    expected = results("torch", monkeypatch)
    monkeypatch.setattr(fused, "self_check", lambda device, channels: fused.Differences(0, 0, 0))
    monkeypatch.setattr(kernels, "to_z", Broken())
    assert_alike(results("auto", monkeypatch), expected)
    (record,) = caplog.records
    assert "RuntimeError: no such instruction" in record.getMessage()


def test_errors_of_kernels_that_were_asked_for_are_kept(monkeypatch, kernels):
    monkeypatch.setattr(kernels, "scan", Broken())
    with pytest.raises(RuntimeError, match="no such instruction"):
        results("triton", monkeypatch)


@pytest.mark.parametrize("differences", [(2e-6, 0, 0), (0, 2e-4, 0), (0, 0, 1e-3), (0, float("nan"), 0)])
def test_differences_beyond_rounding_are_not_small(differences):
    assert fused.Differences(0, 0, 0).small
    assert not fused.Differences(*differences).small


def test_kernels_serve_what_they_were_made_for(monkeypatch, kernels):
    single = torch.float32
    assert fused.obstacle(CPU, single, 64) is None
    assert "65 channels" in fused.obstacle(CPU, single, 65)
    assert "too many for the offsets" in fused.obstacle(CPU, single, 64, largest=2**31 // 192 + 1)
    monkeypatch.setattr(fused, "INTERPRETED", False)
    assert "torch.float64" in fused.obstacle(CPU, torch.float64, 8)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    assert fused.obstacle(CPU, single, 64) is None
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert "compute capability 7.5" in fused.obstacle(CPU, single, 64)


def test_kernels_give_the_same_bits_every_time(monkeypatch, kernels):
    for first, second in zip(*(results("triton", monkeypatch) for _ in range(2)), strict=True):
        assert torch.equal(first, second)


@pytest.mark.parametrize("parts", [1, 3])
def test_parts_of_the_streamed_axis_add_up(parts, monkeypatch, kernels):
    monkeypatch.setattr(fused, "_processors", lambda device: parts)
    monkeypatch.setattr(fused, "_PROGRAMS_PER_PROCESSOR", 2)
    monkeypatch.setattr(fused, "_INTERPRETED_TILE", fused.Tile(16, 16))
    assert_alike(results("triton", monkeypatch), results("torch", monkeypatch))


def test_chunks_cover_the_streamed_axis_in_whole_blocks(monkeypatch):
    monkeypatch.setattr(fused, "INTERPRETED", False)
    monkeypatch.setattr(fused, "_processors", lambda device: 132)
    problem = object.__new__(fused._Problem)
    problem.device, problem.tile = CPU, fused.TILES[9, 0]
    for problem.n in (1, 63, 8192, 10**6):
        for problem.k in (1, 700, 16_384, 262_144):
            for streamed, length in (("codes", problem.k), ("vectors", problem.n)):
                chunk, parts = problem.chunks(streamed)
                assert chunk % 64 == 0
                assert (parts - 1) * chunk < length <= parts * chunk
                assert parts <= 16
    problem.n, problem.k = 64, 262_144
    assert problem.chunks("codes")[1] == 16
    assert problem.chunks("vectors")[1] == 1


@pytest.mark.parametrize("architecture", LIMITS)
def test_kernels_compile_for_every_architecture_within_its_limits(architecture, kernels):
    program = Path(__file__).with_name("compile_offline.py")
    done = subprocess.run([sys.executable, program, str(architecture)], capture_output=True, check=True)
    rows = json.loads(done.stdout)
    assert {row["kernel"] for row in rows} == {"search", "scan", "usage", "to_z", "to_codes"}
    for row in rows:
        assert row["spills"] == 0, row
        assert row["shared"] <= LIMITS[architecture] * 1024, row
        assert row["tensor_memory"] <= TENSOR_MEMORY_COLUMNS, row
        assert row["matrix_instructions"] > 0, row
        assert row["atomics"] == 0, row


def test_every_architecture_of_the_table_is_compiled():
    assert {major * 10 + minor for major, minor in fused.TILES} == LIMITS.keys()
