"""Benchmarks measure what they claim to measure; no test depends on their times."""

import io
import json
import pickle
import signal
import subprocess
from dataclasses import replace
from itertools import groupby

import pytest
import torch
from rich.console import Console
from torch.utils._python_dispatch import TorchDispatchMode

from lgq.bench import encode, quantizers
from lgq.bench.doctor import processor_model
from lgq.bench.measure import available_bytes, interleaved_ms, milliseconds, peak_extra_bytes
from lgq.bench.quantizers import (
    PEER,
    VARIANTS,
    QuantizerBenchmark,
    QuantizerRow,
    measure,
    plan,
    training_step,
)
from lgq.bench.tables import encode_table, quantizer_table
from lgq.cli import main
from lgq.quantizers import LGQ, QUANTIZERS, build_quantizer

CPU = torch.device("cpu")
SMALL = QuantizerBenchmark(vectors=64, dim=8, sizes=(16, 64), repeats=1)
OPTIONS = [(name, {}) for name in QUANTIZERS] + [
    ("lgq", {"score": "dot", "tau_start": 0.3, "hard_gradient": True}),
    ("lgq", {"latent_weight": 1.0, "diversity_scale": "tokens"}),
    ("ibq", {"commitment_weight": 0.5, "entropy_weight": 0.0}),
    ("lfq", {"entropy_weight": 0.0, "inverse_temperature": 1.0}),
    ("simvq", {"transform": "linear", "weight": 1.0}),
]


@pytest.mark.parametrize(("name", "options"), OPTIONS, ids=str)
def test_a_quantizer_equals_its_dense_reference(name, options):
    ours, plain = (build_quantizer(name, 6, 32, seed=0, **options).double() for _ in range(2))
    if plain.dense_matrices is None:
        with pytest.raises(NotImplementedError, match="no dense reference"):
            plain.dense_forward(torch.zeros(1, 6))
        return
    z = torch.randn(25, 6, dtype=torch.float64, requires_grad=True)
    for _ in range(2):  # the second time, codes that follow running means have moved
        results = []
        for quantizer, forward in ((ours, ours.quantize_vectors), (plain, plain.dense_forward)):
            torch.manual_seed(0)  # of the noise in the direction of DiVeQ
            quantized, indices, loss = forward(z)
            inputs = [z, *quantizer.parameters()]
            gradients = torch.autograd.grad(loss + quantized.square().sum(), inputs, allow_unused=True)
            results.append((quantized, indices, loss, *gradients))
        for a, b in zip(*results, strict=True):
            torch.testing.assert_close(a, b)


def test_calls_take_turns():
    called: list[str] = []
    times = interleaved_ms(
        {name: lambda name=name: called.append(name) for name in "ab"}, repeats=3, device=CPU
    )
    assert [name for name, _ in groupby(called)] == ["a", "b"] * 3
    assert len(called) > 6, "short calls run several times in a row"
    assert all(0 < times[name] < 1000 for name in "ab")


@pytest.mark.parametrize("megabytes", [64, 256])
def test_peak_memory_is_that_of_the_call(megabytes):
    def allocate() -> None:
        torch.ones(megabytes * 2**18)

    allocate()
    extra = peak_extra_bytes(allocate, CPU)
    assert extra == pytest.approx(megabytes * 2**20, rel=0.1)
    assert available_bytes(CPU) > extra


def test_every_implementation_of_every_quantizer_is_planned_and_runs():
    rows = plan(SMALL)
    assert [row.quantizer for row in rows if row.implementation == "ours"][::2] == list(QUANTIZERS)
    assert {row.quantizer for row in rows if row.implementation == "dense"} == {*QUANTIZERS} - {"fsq"}
    assert {row.quantizer for row in rows if row.implementation == PEER} == {*QUANTIZERS} - {
        "lgq",
        "ibq",
        "wasserstein",
    }
    for row in rows:
        step = training_step(QUANTIZERS[row.quantizer], row, SMALL.dim, CPU)
        step()
        step()


def test_forms_that_the_peer_has_too_run_beside_it_without_dense_formulas():
    rows = plan(replace(SMALL, quantizers=("vq", *VARIANTS), sizes=(16,), dense=False))
    assert [row.implementation for row in rows] == ["ours", PEER] * (1 + len(VARIANTS))
    for row in rows[2:]:
        step = training_step(None, row, SMALL.dim, CPU)
        step()
        step()


def test_a_peer_s_step_is_timed_in_turns_with_ours():
    ours, theirs = plan(replace(SMALL, quantizers=("residual-vq",), sizes=(16,)))
    measured = measure(None, theirs, SMALL)
    assert measured.ms > 0 < measured.ours_ms
    assert measure(None, ours, SMALL).ours_ms is None
    table = quantizer_table([replace(ours, ms=9.0, floor_ms=1.0), replace(theirs, ms=8.0, ours_ms=2.0)])
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(table)
    assert "4.00" in console.export_text()


def test_on_cuda_every_search_is_measured_with_both_kernels(monkeypatch):
    monkeypatch.setattr(quantizers, "resolve_device", lambda name: torch.device(name.replace("auto", "cpu")))
    rows = plan(replace(SMALL, device="cuda"))
    assert {row.quantizer for row in rows if row.implementation == "kernels"} == {*QUANTIZERS} - {"fsq"}
    assert "kernels" not in {row.implementation for row in plan(SMALL)}


def test_the_process_of_a_row_uses_the_kernel_of_its_name(monkeypatch):
    chosen = []

    def run(*arguments, env, **options):
        chosen.append(env["LGQ_KERNEL"])
        return subprocess.CompletedProcess(arguments, 0, pickle.dumps(row))

    monkeypatch.setattr(quantizers.subprocess, "run", run)
    monkeypatch.setattr(quantizers, "resolve_device", lambda name: torch.device(name.replace("auto", "cpu")))
    for row in plan(replace(SMALL, device="cuda", quantizers=("lgq",), sizes=(16,))):
        quantizers._measure_in_new_process(row, SMALL)
    assert chosen == ["torch", "triton", "torch"]


def test_times_on_cuda_are_those_of_its_events(monkeypatch):
    moments = iter([5.0, 12.5])

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            self.moment = next(moments)

        def elapsed_time(self, end):
            return end.moment - self.moment

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    assert milliseconds(lambda: None, torch.device("cuda")) == 7.5


def test_the_table_shows_the_paper_s_times_beside_ours():
    row = QuantizerRow(quantizer="lgq", implementation="ours", codebook_size=16_384, tokens=8192, ms=9.0)
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(quantizer_table([row, replace(row, implementation="dense")]))
    assert console.export_text().count("12.18") == 1


class Broken(LGQ):
    def quantize_vectors(self, z):
        return z @ z


def test_a_bug_in_a_quantizer_keeps_its_traceback(monkeypatch):
    monkeypatch.setitem(QUANTIZERS, "broken", Broken)
    with pytest.raises(RuntimeError, match=r"Traceback(.|\n)*in quantize_vectors"):
        next(quantizers.run(QuantizerBenchmark(vectors=64, dim=8, sizes=(16,), quantizers=("broken",))))


def test_a_row_that_cannot_fit_is_not_tried(monkeypatch):
    monkeypatch.setattr(
        quantizers, "_measure_in_new_process", lambda row, _: replace(row, ms=1.0, floor_ms=4.0)
    )
    settings = QuantizerBenchmark(vectors=10**9, sizes=(10**6,), quantizers=("lgq",))
    rows = list(quantizers.run(settings))
    assert [(row.implementation, row.over_floor) for row in rows] == [("ours", 0.25), ("dense", None)]
    assert quantizer_table(rows).row_count == 2


class CountProducts(TorchDispatchMode):
    """Adds up the operations of matrix products."""

    operations = 0

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        if "mm" in str(function):
            left, right = arguments[-2:]
            self.operations += 2 * left.shape[0] * left.shape[1] * right.shape[1]
        return function(*arguments, **(keywords or {}))


@pytest.mark.parametrize(("tokens", "size"), [(37, 2**20), (100, 300)])
def test_the_floor_is_six_products_of_all_tokens_and_codes(tokens, size):
    floor = quantizers.six_gemms(tokens, dim=4, size=size, device=CPU)
    with CountProducts() as count:
        floor()
    assert count.operations == 6 * 2 * tokens * size * 4


def test_search_finds_what_faiss_finds():
    rows = list(encode.run(encode.EncodeBenchmark(vectors=200, dim=8, sizes=(50, 5000), repeats=2)))
    assert [(row.codebook_size, row.agreement) for row in rows] == [(50, 1.0), (5000, 1.0)]
    assert all(row.ms > 0 and row.gemm_ms > 0 and row.faiss_ms > 0 for row in rows)
    assert encode_table(rows).row_count == 2


def test_the_command_prints_a_table_and_json_with_its_settings(capsys):
    main(["bench", "encode", "--vectors", "64", "--dim", "8", "--sizes", "32", "--repeats", "1", "--json"])
    printed = capsys.readouterr()
    record = json.loads(printed.out)
    assert record["settings"]["vectors"] == 64
    assert record["rows"][0]["codebook_size"] == 32
    machine = record["machine"]
    assert machine.keys() == {"torch", "threads", "processor", "load_per_core"}
    assert machine["torch"] == torch.__version__
    assert machine["processor"] == processor_model()
    assert 0 <= machine["load_per_core"] < 1_000
    assert "100.00%" in printed.err


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("quantizers --quantizers nope", "unknown quantizer 'nope'"),
        ("quantizers --vectors 0", "--vectors must be at least 1, got 0"),
        ("quantizers --sizes 0", "--sizes must be at least 1, got 0"),
        (
            "quantizers --device tpu",
            "device 'tpu' cannot be used: a device is auto, cpu, cuda",
        ),
        ("quantizers --quantizers fsq --sizes 1000 --vectors 4", "powers of two"),
        ("encode --repeats 0", "--repeats must be at least 1, got 0"),
        ("train --steps 0", "--steps must be at least 1, got 0"),
        ("train --name nope", "unknown run 'nope'"),
        ("evaluate --images 0", "--images must be at least 1, got 0"),
        ("evaluate --features 1", "--features must be at least 2, got 1"),
        ("sample --steps 0", "--steps must be at least 1, got 0"),
        ("sample --rounds 0", "--rounds must be at least 1, got 0"),
        ("sample --name poket", "did you mean 'pocket'"),
    ],
)
def test_mistakes_end_in_one_line_and_exit_code_two(capsys, command, message):
    with pytest.raises(SystemExit) as stop:
        main(["bench", *command.split()])
    assert stop.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_an_interruption_shows_what_was_measured(capsys, monkeypatch):
    rows = list(encode.run(encode.EncodeBenchmark(vectors=8, dim=4, sizes=(8,), repeats=1)))

    def interrupted(settings):
        yield from rows
        raise KeyboardInterrupt

    monkeypatch.setattr(encode, "run", interrupted)
    main(["bench", "encode", "--sizes", "8", "16"])
    printed = capsys.readouterr()
    assert "100.00%" in printed.out
    assert "stopped after 1 of 2 rows" in printed.err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_measurement_is_an_interruption_and_not_a_lack_of_memory(monkeypatch, number):
    killed = subprocess.CompletedProcess([], -number, b"", b"")
    monkeypatch.setattr(quantizers.subprocess, "run", lambda *_, **__: killed)
    with pytest.raises(KeyboardInterrupt):
        list(quantizers.run(replace(SMALL, quantizers=("fsq",))))


@pytest.mark.parametrize(("load", "busy"), [(8.0, True), (0.4, False)])
@pytest.mark.parametrize("options", [[], ["--json"]])
def test_times_of_a_busy_machine_are_called_uncertain(load, busy, options, monkeypatch, capsys):
    monkeypatch.setattr("os.getloadavg", lambda: (load, load, load))
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    monkeypatch.setattr(quantizers, "run", lambda settings: iter(()))
    main(["bench", "quantizers", *options])
    printed = capsys.readouterr()
    text = " ".join((printed.err if options else printed.out).split())
    assert ("The machine was busy, with a load of 4.0 per core" in text) == busy
    if options:
        assert json.loads(printed.out)["machine"]["load_per_core"] == load / 2
