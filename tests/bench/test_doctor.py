"""`lgq doctor` prints one page that says what there is, how fast it is, and which kernels to choose."""

from types import SimpleNamespace

import pytest
import torch

import lgq
from lgq import weights
from lgq.bench import doctor
from lgq.bench.doctor import Examination, examine
from lgq.cli import main
from lgq.ops import fused

SMALL = Examination(vectors=32, codebook_size=64, repeats=1)
OPTIONS = ["--vectors", "32", "--codebook-size", "64", "--repeats", "1"]


def test_the_command_prints_one_page_of_plain_text(capsys):
    main(["doctor", *OPTIONS])
    page = capsys.readouterr().out
    assert len(page.splitlines()) <= 30
    assert page.startswith(f"lgq {lgq.__version__}, torch {torch.__version__}, Triton ")
    for heading in ("Devices", "Weights", "Disk", "Speed of LGQ", f"Kernels ({fused.KERNEL_VARIABLE}="):
        assert f"\n\n{heading}" in page
    assert all(name in page for name in weights.SETS)
    assert f"{torch.get_num_threads()} threads" in page
    assert str(weights.cache_directory()) in page


@pytest.mark.parametrize("option", ["vectors", "codebook-size", "repeats"])
def test_sizes_below_one_raise_an_error(option, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["doctor", f"--{option}", "0"])
    assert stop.value.code == 2
    assert "must be at least 1, got 0" in capsys.readouterr().err


def advice(monkeypatch, *, reason=None, torch_ms=1.0, kernel_ms=1.0):
    """The lines about a device on which the self-check and the times are as given."""
    monkeypatch.setattr(fused, "obstacle", lambda *arguments: None)
    monkeypatch.setattr(fused, "disagreement", lambda *arguments: reason)
    monkeypatch.setattr(doctor, "training_step", lambda *arguments: lambda: None)

    def times(calls, **settings):
        return {"step": kernel_ms if fused.kernel_choice() == "triton" else torch_ms}

    monkeypatch.setattr(doctor, "interleaved_ms", times)
    return "\n".join(doctor._advice(torch.device("cuda", 0), SMALL))


@pytest.mark.parametrize(("kernel_ms", "choice"), [(2.0, "auto"), (11.9, "torch"), (30.0, "torch")])
def test_kernels_are_recommended_where_they_are_faster(monkeypatch, kernel_ms, choice):
    text = advice(monkeypatch, torch_ms=12.0, kernel_ms=kernel_ms)
    assert "the self-check passed" in text
    assert f"torch 12.00 ms, kernels {kernel_ms:.2f} ms" in text
    assert text.endswith(f"LGQ_KERNEL={choice}")


def test_kernels_that_fail_their_self_check_are_not_recommended(monkeypatch):
    text = advice(monkeypatch, reason="their self-check failed (RuntimeError: x)")
    assert "not usable: their self-check failed (RuntimeError: x)" in text
    assert "choose  LGQ_KERNEL=torch" in text


def test_every_cuda_device_is_named(monkeypatch):
    card = SimpleNamespace(name="A card", total_memory=80 * 2**30, major=9, minor=0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: card)
    monkeypatch.setattr(doctor, "_speed", lambda device, settings: iter(()))
    monkeypatch.setattr(doctor, "_advice", lambda device, settings: iter((f"  {device}  advice",)))
    page = list(examine(SMALL))
    for index in range(2):
        assert f"  cuda:{index}  A card, 80 GiB, compute capability 9.0" in page
        assert f"  cuda:{index}  advice" in page
