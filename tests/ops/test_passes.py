"""Passes in C: chosen with care, equal to those of torch, and never a reason for an error."""

import logging
from pathlib import Path

import pytest
import torch

from lgq.errors import LGQError
from lgq.ops import passes
from lgq.ops.assignment import soft_assignment
from lgq.ops.passes import NativePasses, TorchPasses, Weighed, native_obstacle, passes_for

LARGE = (2048, 2048)
FLOAT32 = torch.empty(0)


@pytest.fixture
def fresh_start(monkeypatch):
    """No decision of another test counts here, nor one of these elsewhere."""
    monkeypatch.delenv(passes.NATIVE_VARIABLE, raising=False)
    for function in (passes.native_obstacle, passes._compiled):
        function.cache_clear()
    yield
    for function in (passes.native_obstacle, passes._compiled):
        function.cache_clear()


def run(n, k, scores, kind):
    """Both passes of a tile by one of the classes."""
    weigh, differentiate = kind(n, k, scores), kind(n, k, scores)
    s, d = scores.clone(), scores.flip(0).clone()
    of_rows = [scores.new_zeros(n) for _ in range(5)]
    of_rows[1] = of_rows[1].long()
    weigh.weigh(s, scores.new_tensor(1.5), Weighed(*of_rows))
    peak, indices, log_sum, *_ = of_rows
    p = 1.5 * (scores - peak[:, None]) + 0.1  # as if rounded otherwise than by the first pass
    differentiate.differentiate(p, d, indices, log_sum, scores[:, 0].abs(), scores[:, 1 % k].abs())
    return [*of_rows, p[:, :k], d[:, :k], weigh.column_sums(), differentiate.column_sums()]


def tile(n, k, dtype):
    scores = 10 * torch.randn(n, -(-k // 128) * 128, generator=torch.Generator().manual_seed(k), dtype=dtype)
    scores[:, k:] = -torch.inf
    return scores


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-5), (torch.float64, 1e-12)])
@pytest.mark.parametrize("k", [1, 2, 255, 256, 257, 1000])
@pytest.mark.parametrize("threads", [1, 3])
def test_c_equals_torch(dtype, tolerance, k, threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        scores = tile(11, k, dtype)
        for ours, plain in zip(
            *(run(11, k, scores, kind) for kind in (NativePasses, TorchPasses)), strict=True
        ):
            torch.testing.assert_close(
                ours, plain, rtol=tolerance, atol=tolerance * max(1, plain.abs().max())
            )
    finally:
        torch.set_num_threads(before)


@pytest.mark.usefixtures("compiler")
def test_the_first_of_equal_scores_is_the_best_and_nan_stays_nan():
    scores = torch.zeros(3, 512)
    scores[1, 300] = scores[1, 400] = 5.0
    scores[2, 77] = torch.nan
    peak, indices, _, purity, *_ = run(3, 512, scores, NativePasses)
    assert indices[:2].tolist() == [0, 300]
    assert peak[1] == 5
    assert purity.isnan().tolist() == [False, False, True]


@pytest.mark.usefixtures("compiler", "fresh_start")
def test_large_problems_of_the_cpu_take_c():
    assert isinstance(passes_for(*LARGE, FLOAT32), NativePasses)
    assert isinstance(passes_for(*LARGE, FLOAT32.double()), NativePasses)
    assert type(passes_for(8, 2048, FLOAT32)) is TorchPasses, "a small problem is not worth a compiler"
    assert type(passes_for(*LARGE, FLOAT32.to("meta"))) is TorchPasses


@pytest.mark.usefixtures("fresh_start")
def test_the_variable_turns_c_off(monkeypatch):
    monkeypatch.setenv("LGQ_NATIVE", "0")
    assert type(passes_for(*LARGE, FLOAT32)) is TorchPasses
    monkeypatch.setenv("LGQ_NATIVE", "yes")
    with pytest.raises(LGQError, match=r"LGQ_NATIVE must be 1 .* or 0, got 'yes'"):
        passes_for(*LARGE, FLOAT32)


def no_compiler(monkeypatch, folder):
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(folder))


def broken_compiler(monkeypatch, folder):
    script = folder / "cc"
    script.write_text("#!/bin/sh\necho 'cc: out of order' >&2\nexit 1\n")
    script.chmod(0o755)
    monkeypatch.setenv("CC", str(script))


def compiler_that_writes_no_library(monkeypatch, folder):
    script = folder / "cc"
    script.write_text("#!/bin/sh\nexit 0\n")
    script.chmod(0o755)
    monkeypatch.setenv("CC", str(script))


def compiler_that_is_not_there(monkeypatch, folder):
    monkeypatch.setenv("CC", str(folder / "nothing"))


@pytest.mark.usefixtures("fresh_start")
@pytest.mark.parametrize(
    ("trouble", "reason"),
    [
        (no_compiler, "no C compiler"),
        (broken_compiler, "cannot compile passes.c: cc: out of order"),
        (compiler_that_writes_no_library, "passes.so"),
        (compiler_that_is_not_there, "No such file"),
    ],
)
def test_without_a_working_compiler_torch_does_it_all(monkeypatch, tmp_path, trouble, reason):
    trouble(monkeypatch, tmp_path)
    assert reason in str(native_obstacle(torch.float32))
    assert type(passes_for(*LARGE, FLOAT32)) is TorchPasses
    z, codes = torch.randn(2048, 4, requires_grad=True), torch.randn(2048, 4)
    soft_assignment(z, codes, 1.0).codes.sum().backward()
    assert z.grad.isfinite().all()


@pytest.mark.usefixtures("compiler", "fresh_start")
def test_c_that_disagrees_gives_way_to_torch_with_one_warning(monkeypatch, tmp_path, caplog):
    wrong = Path(passes.__file__).with_suffix(".c").read_text().replace("d[j] -= p[j]", "d[j] += p[j]")
    (tmp_path / "wrong.c").write_text(wrong)
    monkeypatch.setattr(passes, "_SOURCE", tmp_path / "wrong.c")
    with caplog.at_level(logging.WARNING):
        assert all(type(passes_for(*LARGE, FLOAT32)) is TorchPasses for _ in range(3))
    assert len(caplog.records) == 1
    assert "passes in C and in torch differ by" in caplog.text
