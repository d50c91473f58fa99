"""Quantizers from outside of the package: modules by --plugin, and entry points of installed packages."""

import json
import logging
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from command_line import lgq, mistake
from tiny_run import TINY, paint_photos

from lgq.errors import LGQError
from lgq.evaluation import evaluate
from lgq.quantizers import QUANTIZERS, VQ, import_plugin, register, require_quantizer
from lgq.runs import tokenizer_names
from lgq.tokenizer import load_tokenizer
from lgq.training.run_directory import read_codebooks
from lgq.training.tokenizer_trainer import train
from lgq.viewer.code_gallery import codes_of

MODULE = """
from lgq import VQ, register

class Mine(VQ):
    label = "Mine"

    def __init__(self, dim, codebook_size, *, channel_dim=-1, decay=0.9, seed=0):
        super().__init__(dim, codebook_size, channel_dim=channel_dim, decay=decay, seed=seed)
"""
TERNARY = """
import torch
from lgq import register
from lgq.ops.gradients import straight_through
from lgq.quantizers import Quantized, Quantizer

class Ternary(Quantizer):
    label = "Ternary"

    def __init__(self, dim, codebook_size, *, channel_dim=-1, seed=0):
        super().__init__(dim, codebook_size, channel_dim=channel_dim, seed=seed)
        self.register_constants(powers=[3**i for i in range(dim)])

    def quantize_vectors(self, z):
        indices = self.select(z)
        return Quantized(straight_through(z, self.lookup(indices).to(z.dtype)), indices, z.new_zeros(()))

    def select(self, z):
        return ((z.clamp(-1, 1).round().long() + 1) * self.powers).sum(1)

    def lookup(self, indices):
        return (indices[:, None] // self.powers % 3 - 1).float()

    def reset_parameters(self, seed):
        pass

register("ternary", Ternary)
"""
REGISTERS = f'{MODULE}\nregister("mine", Mine)\n'


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """A directory to work in; modules and quantizers from there are forgotten."""
    before, path, modules = dict(QUANTIZERS), list(sys.path), set(sys.modules)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    forget(before)
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def forget(kept: dict) -> None:
    for name in set(QUANTIZERS) - set(kept):
        del QUANTIZERS[name]


@pytest.fixture
def photos(tmp_path):
    return paint_photos(tmp_path / "photos", 6)


def install(folder: Path, package: str, entry: str, monkeypatch) -> None:
    """Put a package with an entry point where Python finds it, and let the registry look again."""
    info = folder / f"{package}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[lgq.quantizers]\n{entry}\n")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr(QUANTIZERS, "_has_installed", False)
    monkeypatch.setattr(QUANTIZERS, "failures", {})


@pytest.mark.parametrize("plugin", ["outside", "outside.py", "sub/deep.py"])
def test_a_plugin_is_a_module_from_here_or_a_path(plugin, place):
    path = place / (plugin if plugin.endswith(".py") else f"{plugin}.py")
    path.parent.mkdir(exist_ok=True)
    path.write_text(REGISTERS)
    import_plugin(plugin)
    assert "pocket-mine" in tokenizer_names()


@pytest.mark.parametrize(
    ("plugin", "code", "message"),
    [
        (
            "absent",
            None,
            "the plugin absent cannot be imported: ModuleNotFoundError: No module named 'absent'",
        ),
        ("absent.py", None, "there is no file absent.py"),
        ("wrong.py", "1 +", "the plugin wrong.py cannot be imported: SyntaxError"),
        ("bug.py", "1 / 0", "the plugin bug.py cannot be imported: ZeroDivisionError: division by zero"),
        ("json.py", "x = 1", "give json.py another name"),
    ],
)
def test_a_plugin_that_cannot_be_imported_is_named_in_one_line(plugin, code, message, place, capsys):
    if code is not None:
        (place / plugin).write_text(code)
    assert message in mistake(capsys, "train", "pocket-lgq", "--plugin", plugin)


def test_a_plugin_needs_a_name(capsys):
    for words in (["--plugin"], ["--plugin", "--data", "d"]):
        assert "--plugin needs a Python module" in mistake(capsys, "train", "pocket-lgq", *words)


def test_a_run_trains_with_a_plugin_records_it_and_names_what_is_missing_without(place, photos, capsys):
    (place / "outside.py").write_text(REGISTERS)
    kept = dict(QUANTIZERS)
    lgq("train", "--plugin", "outside.py", "smoke-mine", "--data", photos, "--out", "run", "--steps", 1)
    environment = json.loads((place / "run" / "environment.json").read_text())
    assert environment["plugins"] == {"mine": "outside"}
    assert json.loads((place / "run" / "config.json").read_text())["quantizer"] == "mine"
    command = ["reconstruct", "run", next(photos.iterdir()), "--out", "pictures"]
    lgq(*command, "--plugin=outside")
    forget(kept)
    missing = "unknown quantizer 'mine': import the module that registers it, or pass --plugin MODULE"
    assert missing in mistake(capsys, *command)
    assert missing in mistake(capsys, "train", "smoke-mine", "--data", photos, "--out", "new")
    new = ["train", "smoke-lgq", "--quantizer", "mine", "--data", photos, "--out", "new"]
    assert missing in mistake(capsys, *new)


def test_a_quantizer_without_a_codebook_trains_and_is_evaluated_and_shown(place, photos, monkeypatch):
    monkeypatch.setenv("LGQ_CACHE", str(place / "no-weights"))
    (place / "digits.py").write_text(TERNARY)
    import_plugin("digits.py")
    run = replace(TINY, quantizer="ternary", codebook_size=81)
    train(run, str(photos), place / "run")
    (snapshot, *_) = read_codebooks(place / "run")
    assert (int(snapshot.counts.sum()) > 0, snapshot.codes) == (True, None)
    tokenizer = load_tokenizer(place / "run")
    tokens = tokenizer.encode(torch.rand(1, 3, 12, 12))
    assert tokenizer.decode(tokens).shape == (1, 3, 12, 12)
    study = evaluate(place / "run", data=str(photos), geometry="pca").fields["geometry"]
    assert "Ternary has no `codebook`" in study["absent"]["overlay"]
    codes = codes_of(tokenizer, 0)
    assert torch.equal(tokenizer.quantizer.select(codes), torch.arange(81))


def test_processes_of_torchrun_and_of_the_loader_find_the_plugin(place, photos):
    (place / "outside.py").write_text(REGISTERS)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]
    command += [
        "lgq",
        "train",
        "smoke-mine",
        "--plugin",
        "outside",
        "--data",
        str(photos),
        "--out",
        "run",
    ]
    done = subprocess.run(
        [*command, "--steps", "1", "--workers", "1"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (place / "run" / "best" / "model.safetensors").is_file()


def test_installed_packages_offer_quantizers_by_entry_points(place, monkeypatch):
    (place / "site").mkdir()
    (place / "site" / "offered.py").write_text(MODULE)
    install(place / "site", "offering", "mine = offered:Mine", monkeypatch)
    assert QUANTIZERS["mine"].label == "Mine"
    assert "smoke-mine" in tokenizer_names()


@pytest.mark.parametrize("entry", ["mine = nowhere:Mine", "mine = os:path"])
def test_a_package_that_cannot_be_loaded_is_named_and_stops_no_other(entry, place, monkeypatch, caplog):
    install(place / "site", "broken-package", entry, monkeypatch)
    with caplog.at_level(logging.WARNING):
        assert "mine" not in QUANTIZERS
    (record,) = caplog.records
    assert "\n" not in record.getMessage()
    assert "broken-package" in record.getMessage()
    require_quantizer("lgq")
    with pytest.raises(LGQError, match="broken-package"):
        require_quantizer("mine")


def test_constructors_that_no_settings_file_can_describe_are_refused():
    class Loose(VQ):
        label = "Loose"

        def __init__(self, dim, codebook_size, *, channel_dim=-1, seed=0, **options):
            super().__init__(dim, codebook_size, channel_dim=channel_dim, seed=seed, **options)

    class Seedless(VQ):
        label = "Seedless"

        def __init__(self, dim, codebook_size, *, channel_dim=-1):
            super().__init__(dim, codebook_size, channel_dim=channel_dim)

    for quantizer, message in (
        (Loose, "name each option with its default"),
        (Seedless, "lacks `seed` of __init__"),
    ):
        with pytest.raises(LGQError, match=message):
            register("loose", quantizer)
