"""The measurements measure what they say; their numbers decide no test."""

import json
from itertools import pairwise

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from lgq.bench import encode, quantizers
from lgq.bench.contestants import DENSE, PEER, Contestant, contestants
from lgq.bench.memory import available_bytes, peak_extra_bytes
from lgq.bench.quantizers import QuantizerBenchmark
from lgq.bench.tables import of_encoding, of_quantizers
from lgq.bench.timing import interleaved
from lgq.cli import main
from lgq.quantizers import QUANTIZERS, build_quantizer

CPU = torch.device("cpu")
SMALL = QuantizerBenchmark(tokens=64, dim=8, sizes=(16, 64), repeats=1)


@pytest.mark.parametrize("name", DENSE)
def test_the_dense_contestants_compute_what_ours_do(name):
    ours, plain = build_quantizer(name, 6, 32).double(), DENSE[name](6, 32).double()
    plain.load_state_dict(ours.state_dict(), strict=False)
    z = torch.randn(25, 6, dtype=torch.float64, requires_grad=True)
    results = []
    for module in (ours, plain):
        quantized, indices, loss = module(z)
        results.append((quantized, indices, loss, *torch.autograd.grad(loss + quantized.square().sum(), z)))
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b)


def test_contestants_take_turns():
    calls: list[str] = []
    field = {name: lambda name=name: calls.append(name) for name in "ab"}
    times = interleaved(field, repeats=3, device=CPU)
    assert calls == ["a", "b"] * 3
    assert set(times) == {"a", "b"}
    assert all(0 < milliseconds < 1000 for milliseconds in times.values())


@pytest.mark.parametrize("megabytes", [64, 256])
def test_peak_memory_is_that_of_the_call(megabytes):
    def allocate() -> None:
        torch.ones(megabytes * 2**18)

    allocate()
    extra = peak_extra_bytes(allocate, CPU)
    assert extra == pytest.approx(megabytes * 2**20, rel=0.1)
    assert available_bytes(CPU) > extra


@pytest.mark.parametrize("contestant", contestants(tuple(QUANTIZERS)), ids=str)
def test_every_contestant_runs_forward_and_backward(contestant):
    step = contestant.step(32, 8, 64, CPU)
    step()
    step()


def test_each_quantizer_is_measured_against_what_there_is_to_measure_it_against():
    field = contestants(tuple(QUANTIZERS))
    assert [c.quantizer for c in field if c.implementation == "ours"] == list(QUANTIZERS)
    assert [c.quantizer for c in field if c.implementation == "dense"] == list(DENSE)
    peers = [c.quantizer for c in field if c.implementation == PEER]
    assert peers == ["vq", "rotvq", "fsq", "lfq", "simvq"]


def test_a_row_is_measured_in_a_process_of_its_own():
    settings = QuantizerBenchmark(tokens=64, dim=8, sizes=(16,), quantizers=("fsq",), repeats=1)
    rows = list(quantizers.run(settings))
    assert [row.implementation for row in rows] == ["ours", PEER]
    for row in rows:
        assert row.ms > 0
        assert row.floor_ms > 0
        assert row.over_floor == row.ms / row.floor_ms
        assert row.tokens_per_second == pytest.approx(64 / row.ms * 1000)
        assert row.extra_bytes >= 0
    assert of_quantizers(rows).row_count == 2


def test_what_cannot_fit_is_said_and_not_tried():
    settings = QuantizerBenchmark(tokens=10**9, sizes=(10**6,), quantizers=("lgq",))
    row = quantizers._measured_apart(Contestant("lgq", "dense", 6), 10**6, settings)
    assert not row.fits
    assert of_quantizers([row.__class__(**{**row.__dict__, "implementation": "ours"}), row]).row_count == 2


def test_rows_are_planned_by_quantizer_then_size():
    order = [(c.quantizer, size) for c, size in quantizers.plan(SMALL)]
    assert sorted(order, key=lambda pair: (list(QUANTIZERS).index(pair[0]), pair[1])) == order


class CountProducts(TorchDispatchMode):
    """Adds up the operations of matrix products."""

    operations = 0

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        if "mm" in str(function):
            left, right = arguments[-2:]
            self.operations += 2 * left.shape[0] * left.shape[1] * right.shape[1]
        return function(*arguments, **(keywords or {}))


@pytest.mark.parametrize(("tokens", "size"), [(37, 2**20), (100, 300)])
def test_the_floor_does_six_products_for_every_token_and_code(tokens, size):
    floor = quantizers.six_gemms(tokens, dim=4, size=size, device=CPU)
    with CountProducts() as count:
        floor()
    assert count.operations == 6 * 2 * tokens * size * 4


def test_search_finds_what_faiss_finds():
    rows = list(encode.run(encode.EncodeBenchmark(tokens=200, dim=8, sizes=(50, 5000), repeats=2)))
    assert [row.agreement for row in rows] == [1.0, 1.0]
    assert all(row.ms > 0 and row.gemm_ms > 0 and row.faiss_ms > 0 for row in rows)
    assert all(a.codebook_size < b.codebook_size for a, b in pairwise(rows))
    assert of_encoding(rows).row_count == 2


def test_the_command_prints_a_table(capsys):
    main(["bench", "encode", "--tokens", "64", "--dim", "8", "--sizes", "32", "--repeats", "1"])
    printed = capsys.readouterr().out
    assert "Nearest-code search" in printed
    assert "100.00%" in printed


def test_the_command_prints_json_with_its_settings(capsys):
    main(["bench", "encode", "--tokens", "64", "--dim", "8", "--sizes", "32", "--repeats", "1", "--json"])
    record = json.loads(capsys.readouterr().out)
    assert record["settings"]["tokens"] == 64
    assert record["rows"][0]["codebook_size"] == 32
    assert record["machine"]["torch"] == torch.__version__


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--quantizers", "nope"], "unknown quantizer 'nope'"),
        (["--tokens", "0"], "tokens must be at least 1, got 0"),
        (["--repeats", "0"], "repeats must be at least 1, got 0"),
        (["--sizes", "0"], "sizes must be numbers of codes from 1 on, got 0"),
        (["--sizes"], "sizes must be numbers of codes from 1 on, got none"),
        (["--device", "tpu"], "device must be cpu or cuda, got tpu"),
        (["--device", "cuda"], "there is no CUDA device here"),
        (["--quantizers", "fsq", "--sizes", "1000", "--tokens", "4"], "powers of two"),
    ],
)
def test_mistakes_end_in_one_line_and_exit_code_two(capsys, arguments, message):
    with pytest.raises(SystemExit) as stop:
        main(["bench", "quantizers", *arguments])
    assert stop.value.code == 2
    line = capsys.readouterr().err.strip()
    assert message in line
    assert "Traceback" not in line


def test_an_interruption_shows_what_was_measured(capsys, monkeypatch):
    rows = list(encode.run(encode.EncodeBenchmark(tokens=8, dim=4, sizes=(8,), repeats=1)))

    def interrupted(settings):
        yield from rows
        raise KeyboardInterrupt

    monkeypatch.setattr(encode, "run", interrupted)
    main(["bench", "encode", "--sizes", "8", "16"])
    printed = capsys.readouterr()
    assert "100.00%" in printed.out
    assert "stopped after 1 of 2 rows" in printed.err
