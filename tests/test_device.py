"""One word names the device of every command, and no device needs float64."""

import ast
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tiny_run
import torch
from cheap_inception import CheapInception, expect_cheap_networks
from command_line import mistake
from float32_device import DEVICE, Float32Device, Remote
from fuzz import seeds
from tiny_run import paint_photos
from token_sets import write_tokens
from torch.utils._pytree import tree_map

import lgq
from lgq import distributed
from lgq.cli import COMMANDS
from lgq.data import FolderDataset
from lgq.data.loader import loaded_onto
from lgq.distributed import join_processes, resolve_device
from lgq.errors import LGQError
from lgq.inference import generator_on_device, tokenizer_on_device
from lgq.metrics.metric_networks import MetricNetworks
from lgq.models.lpips import LPIPS
from lgq.models.sampling import Sampling
from lgq.models.transformer import TransformerSettings
from lgq.quantizers import QUANTIZERS
from lgq.training.checkpoint import Checkpoints
from lgq.training.networks import require_feasible
from lgq.training.settings import GeneratorRun, LoopSettings, Schedule

SOURCES = sorted(Path(lgq.__file__).parent.rglob("*.py"))
NAMED_ONLY = {
    "training/checkpoint.py": "dtypes of files",
    "metrics/features.py": "dtypes of files",
    "ops/fused.py": "for CUDA alone, which has float64",
    "ops/passes.py": "for the CPU alone",
}
"""Files that name float64 where MPS never computes in it."""


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch):
    """A function that gives this machine GPUs of CUDA, an MPS that works or not, and processes."""

    def have(*, gpus: int = 0, mps: bool = False, broken_mps: bool = False, **environment: int) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps or broken_mps)
        real = torch.zeros

        def zeros(*size: int, device: object = None, **options: object) -> torch.Tensor:
            if device == "mps" and broken_mps:
                raise RuntimeError("MPS backend out of memory")
            return real(*size, device=None if device == "mps" else device, **options)

        monkeypatch.setattr(torch, "zeros", zeros)
        for name, value in environment.items():
            monkeypatch.setenv(name, str(value))

    return have


@pytest.mark.parametrize(
    ("word", "here", "expected"),
    [
        ("auto", {}, "cpu"),
        ("auto", {"gpus": 2}, "cuda:0"),
        ("auto", {"gpus": 1, "mps": True}, "cuda:0"),
        ("auto", {"mps": True}, "mps"),
        ("auto", {"broken_mps": True}, "cpu"),
        ("auto", {"mps": True, "WORLD_SIZE": 2}, "cpu"),
        ("auto", {"gpus": 2, "WORLD_SIZE": 2, "LOCAL_RANK": 1}, "cuda:1"),
        ("cpu", {"gpus": 2, "mps": True}, "cpu"),
        ("cuda", {"gpus": 2}, "cuda:0"),
        ("cuda", {"gpus": 4, "WORLD_SIZE": 8, "LOCAL_RANK": 3}, "cuda:3"),
        ("cuda:1", {"gpus": 2}, "cuda:1"),
        (torch.device("cuda", 1), {"gpus": 2, "WORLD_SIZE": 2, "LOCAL_RANK": 1}, "cuda:1"),
        ("mps", {"mps": True}, "mps"),
    ],
)
def test_a_word_names_the_device_of_this_process(word, here, expected, machine):
    machine(**here)
    assert str(resolve_device(word)) == expected


@pytest.mark.parametrize(
    ("word", "here", "message"),
    [
        ("cuda", {}, "'cuda' cannot be used: it needs an NVIDIA or AMD GPU.*; available here: cpu"),
        ("cuda", {"mps": True}, "available here: cpu, mps"),
        ("mps", {"gpus": 1}, "'mps' cannot be used: it needs a Mac.*; available here: cpu, cuda:0"),
        ("mps", {"broken_mps": True}, "'mps' cannot be used: it needs a Mac.*; available here: cpu"),
        ("mps", {"mps": True, "WORLD_SIZE": 2}, "it serves one process, and torchrun started 2"),
        ("cuda:2", {"gpus": 2}, "'cuda:2' cannot be used: the GPUs of this machine are 0 to 1"),
        (
            "cuda:0",
            {"gpus": 2, "WORLD_SIZE": 2},
            "each process has a GPU of its own, so write cuda",
        ),
        (torch.device("cuda", 1), {"gpus": 2, "WORLD_SIZE": 2}, "so write cuda"),
        ("auto", {"gpus": 1, "WORLD_SIZE": 2, "LOCAL_RANK": 1}, "each process of torchrun needs one"),
        ("gpu", {}, "'gpu' cannot be used: a device is auto, cpu, cuda, cuda:N or mps; available here: cpu"),
        ("xpu", {}, "a device is auto, cpu, cuda, cuda:N or mps"),
        ("", {}, "a device is auto, cpu, cuda, cuda:N or mps"),
    ],
)
def test_a_device_that_cannot_be_used_is_refused_with_those_that_can(word, here, message, machine):
    machine(**here)
    with pytest.raises(LGQError, match=message):
        resolve_device(word)


def test_joining_makes_a_gpu_the_current_one(machine, monkeypatch):
    chosen: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    machine(gpus=2)
    assert join_processes("cuda:1") == torch.device("cuda", 1)
    assert chosen == [torch.device("cuda", 1)]


def test_memory_is_that_of_the_device(machine, monkeypatch):
    machine(gpus=1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _device: SimpleNamespace(total_memory=1))
    require_feasible(tiny_run.TINY, torch.device("cpu"))
    with pytest.raises(LGQError, match="and the GPU has 0"):
        require_feasible(tiny_run.TINY, torch.device("cuda", 0))


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("pinned", [True, False])
def test_only_pinned_memory_is_copied_in_the_background(pinned):
    """From any other, MPS goes on reading after the batch is freed."""
    copies: list[bool] = []
    images: Any = SimpleNamespace(
        is_pinned=lambda: pinned, to=lambda _device, *, non_blocking: copies.append(non_blocking)
    )
    loaded_onto(torch.device("cpu"), images)
    assert copies == [pinned]


COMPUTING = sorted(
    set(COMMANDS)
    - {"shard", "runs", "report", "import", "doctor", "weights status", "weights fetch", "weights import"}
)
ARGUMENTS = {
    "train": "train pocket-lgq --data {photos}",
    "train-generator": "train-generator pocket --tokens {tokens} --tokenizer {generator}/tokenizer",
    "demo": "demo",
    "evaluate": "evaluate {generator}/tokenizer --data {photos} --image-size 4",
    "reconstruct": "reconstruct {generator}/tokenizer {photos}/0.png",
    "encode": "encode {generator}/tokenizer --data {photos} --image-size 4",
    "decode": "decode {generator}/tokenizer {tokens}",
    "sample": "sample {generator}",
    "inpaint": "inpaint {generator} {photos}/0.png --box 0 0 2 2 --label 0",
    "experiment": "experiment comparison --scale smoke --data {photos}",
}


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("places")
    for name in ("photos", "tokens"):
        (root / name).mkdir()
    generator = seeds.generator()
    generator.save_pretrained(root / "generator")
    tokenizer = generator.tokenizer
    drawn = torch.randint(tokenizer.codebook_size, (4, *generator.token_shape))
    write_tokens(
        root / "tokens", drawn, fingerprint=tokenizer.fingerprint(), codebook_size=tokenizer.codebook_size
    )
    return {
        "photos": paint_photos(root / "photos"),
        "tokens": root / "tokens",
        "generator": root / "generator",
    }


@pytest.mark.parametrize("command", COMPUTING)
def test_every_command_that_computes_takes_a_device(command, places, tmp_path, capsys):
    words = ARGUMENTS.get(command, command).format(**places).split()
    out = ["--out", tmp_path / ("x.png" if command == "inpaint" else "out")]
    if command == "view" or command.startswith("bench"):
        out = []
    assert "'cuda:7' cannot be used" in mistake(capsys, *words, *out, "--device", "cuda:7")


@pytest.mark.parametrize("command", ["train", "train-generator"])
def test_a_dry_run_refuses_a_device_too(command, places, tmp_path, capsys):
    words = ARGUMENTS[command].format(**places).split()
    line = mistake(capsys, *words, "--out", tmp_path / "out", "--dry-run", "--device", "cuda:7")
    assert "'cuda:7' cannot be used" in line


def test_a_loaded_model_stays_on_its_device_until_one_is_named(places):
    generator = lgq.load_generator(places["generator"]).to("meta")
    tokenizer = lgq.load_tokenizer(places["generator"] / "tokenizer").to("meta")
    assert generator_on_device(generator) is lgq.load_generator(generator) is generator
    assert tokenizer_on_device(tokenizer) is lgq.load_tokenizer(tokenizer) is tokenizer
    assert {generator.tokenizer.device.type, tokenizer.device.type} == {"meta"}
    for load in (lgq.load_tokenizer, lgq.load_generator):
        with pytest.raises(LGQError, match="'cuda:7' cannot be used"):
            load(places["generator"] / ("tokenizer" if load is lgq.load_tokenizer else ""), device="cuda:7")
        with pytest.raises(LGQError, match="'cuda:7' cannot be used"):
            load(tokenizer if load is lgq.load_tokenizer else generator, device="cuda:7")


# A device without float64


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return paint_photos(tmp_path / "photos")


@pytest.fixture
def float32_device(monkeypatch: pytest.MonkeyPatch):
    """Every command computes on a device without float64."""
    monkeypatch.setattr(distributed, "resolve_device", lambda _device="auto": DEVICE)
    save = Checkpoints.save

    def save_from_the_cpu(self: Checkpoints, step: int, state: Any) -> Path:
        """Checkpoints refuse tensors of unknown classes, as those of this device are."""
        return save(self, step, tree_map(lambda x: x.cpu() if isinstance(x, Remote) else x, state))

    monkeypatch.setattr(Checkpoints, "save", save_from_the_cpu)
    with Float32Device():
        yield DEVICE


def test_the_device_of_these_tests_has_no_float64(float32_device):
    x = torch.ones(3, device=float32_device)
    assert (x + 1).sum().item() == 6
    for forbidden in (lambda: x.double(), lambda: torch.ones(3).double().to(float32_device)):
        with pytest.raises(TypeError, match="no float64"):
            forbidden()
    with pytest.raises(RuntimeError, match="on the CPU"):
        x + torch.ones(3)
    assert x.cpu().double().dtype == torch.float64


RUNS = {
    **{name: replace(tiny_run.TINY, quantizer=name) for name in QUANTIZERS},
    "everything": tiny_run.EVERYTHING,
    "residual": replace(tiny_run.TINY, stages=2),
    "k-means": replace(tiny_run.TINY, quantizer="vq", quantizer_options={"init": "kmeans"}),
}


@pytest.mark.parametrize("name", RUNS)
def test_a_tokenizer_trains_without_float64_on_the_device(name, photos, tmp_path, float32_device):
    run = replace(RUNS[name], loop=LoopSettings(steps=3, log_every=1, validate_every=3, checkpoint_every=3))
    outcome = lgq.train(run, FolderDataset(photos), tmp_path / "run")
    assert outcome.step == 3
    assert json.loads((tmp_path / "run" / "environment.json").read_text())["device"] == DEVICE.type


@pytest.fixture
def generator(tmp_path: Path) -> Path:
    seeds.generator().save_pretrained(tmp_path / "generator")
    return tmp_path / "generator"


def test_a_generator_trains_and_draws_without_float64_on_the_device(
    photos, generator, tmp_path, float32_device
):
    tokens = lgq.encode(generator / "tokenizer", photos, tmp_path / "tokens", image_size=4, flips=True)
    assert lgq.decode(generator / "tokenizer", tokens, tmp_path / "decoded") == len(tokens) == 5
    assert len(lgq.reconstruct(generator / "tokenizer", [photos / "0.png"], tmp_path / "beside").images) == 1
    run = GeneratorRun(
        transformer=TransformerSettings(layers=1, width=16, heads=2, hidden=16),
        batch_size=2,
        validation_images=3,
        sample_images=2,
        average_decay=0.9,
        schedule=Schedule(),
        sampling=Sampling(steps=2, guidance=2.0, order="halton"),
        loop=LoopSettings(steps=2, log_every=1, validate_every=2, checkpoint_every=2),
    )
    lgq.train_generator(run, tokens, tmp_path / "trained")
    assert lgq.sample(tmp_path / "trained", tmp_path / "drawn", count=3).images == 3
    confident = Sampling(steps=2, top_k=2)
    result = lgq.inpaint(tmp_path / "trained", photos / "0.png", box=(0, 0, 2, 4), sampling=confident)
    assert result.images.device.type == "cpu"
    record = lgq.evaluate(tmp_path / "trained", tokens=tmp_path / "tokens", train_tokens=tmp_path / "tokens")
    assert record.likelihood is not None


def test_metrics_need_no_float64_on_the_device(photos, generator, tmp_path, monkeypatch, float32_device):
    expect_cheap_networks(monkeypatch)
    torch.manual_seed(0)
    networks = MetricNetworks(LPIPS().to(float32_device), CheapInception().to(float32_device))
    monkeypatch.setattr(MetricNetworks, "available", lambda *_args, **_options: networks)
    data = {"image_size": 16, "workers": 0, "geometry": "pca"}
    record = lgq.evaluate(generator / "tokenizer", photos, out=tmp_path / "record", device="mps", **data)
    assert {"psnr", "lpips", "rfid", "kid", "precision"} <= record.metrics.keys()
    assert record.fields["environment"]["device"] == float32_device.type
    assert " --device mps" in " ".join(record.fields["command"])
    options = {"samples": 6, "sampling_seeds": (0,), "batch_size": 4, "workers": 0}
    samples = lgq.evaluate(generator, photos, **options, out=tmp_path / "drawn")
    assert {"gfid", "kid", "precision"} <= samples.metrics.keys()


def float64_on_a_device(source: str) -> list[int]:
    """Lines on which float64 might be computed on a device: whatever is not moved to the CPU just before."""
    tree = ast.parse(source)
    lines = []
    on_the_cpu: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            options = {keyword.arg: keyword.value for keyword in node.keywords}
            if "device" not in options and "dtype" in options:
                on_the_cpu.add(id(options["dtype"]))
    for node in ast.walk(tree):
        named = isinstance(node, ast.Attribute) and node.attr in ("float64", "double")
        if not named:
            continue
        receiver = node.value
        if isinstance(receiver, ast.Name) and receiver.id == "torch":
            moved = id(node) in on_the_cpu
        else:
            moved = isinstance(receiver, ast.Call) and isinstance(receiver.func, ast.Attribute)
            moved = moved and receiver.func.attr == "cpu"
        if not moved:
            lines.append(node.lineno)
    return lines


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(SOURCES[0].parent)))
def test_float64_is_for_the_cpu(path):
    found = float64_on_a_device(path.read_text())
    assert bool(found) == (path.relative_to(SOURCES[0].parent).as_posix() in NAMED_ONLY), found


def test_float64_on_a_device_would_be_seen():
    assert float64_on_a_device("x.double().cpu()\nx.cpu().double()\n") == [1]
    assert float64_on_a_device("x.to(torch.float64)\ntorch.ones(2, dtype=torch.float64)") == [1]
    assert float64_on_a_device("torch.ones(2, dtype=torch.double, device=x.device)") == [1]
