"""Models that come with the package load by their names, whole and small, and are made by a script."""

import runpy
import tomllib
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from tiny_run import TINY, paint_photos

import lgq
from lgq.cli import main
from lgq.data import FolderDataset, to_tensor
from lgq.data.images import to_rgb
from lgq.data.photographs import photograph_pixels
from lgq.hub import PretrainedError, find_file, run_settings
from lgq.metrics.metric_networks import MetricNetworks
from lgq.metrics.reconstruction import psnr
from lgq.model_sources import SHIPPED, shipped_models
from lgq.models.lpips import LPIPS
from lgq.tokenizer import Tokenizer, load_tokenizer
from lgq.training.history import History
from lgq.training.tokenizer_trainer import train

ROOT = Path(lgq.__file__).parent.parent
SCRIPT = runpy.run_path(str(ROOT / "scripts" / "ship_tokenizer.py"))
NAME = "photo-f8"
RECOGNISABLE = 22.0
"""Least PSNR in dB of a photograph."""


@pytest.fixture
def copied(tmp_path, monkeypatch) -> Path:
    """A copy of the shipped models in place of them."""
    for file in (SHIPPED / NAME).iterdir():
        (tmp_path / NAME).mkdir(exist_ok=True)
        (tmp_path / NAME / file.name).write_bytes(file.read_bytes())
    monkeypatch.setattr("lgq.model_sources.SHIPPED", tmp_path)
    return tmp_path / NAME


def test_a_shipped_model_loads_by_its_name_in_float32_and_in_eval_mode():
    assert shipped_models() == [NAME]
    for tokenizer in (load_tokenizer(NAME), load_tokenizer(Path(NAME)), Tokenizer.from_pretrained(NAME)):
        assert {parameter.dtype for parameter in tokenizer.parameters()} == {torch.float32}
        assert not tokenizer.training
    tokenizer = load_tokenizer(NAME)
    assert (tokenizer.factor, tokenizer.codebook_size, tokenizer.image_size) == (8, 12_288, 256)
    assert tokenizer.settings["quantizer"] == "lgq"


def test_shipped_weights_are_half_precision_and_take_few_megabytes():
    sizes = [(SHIPPED / name / "model.safetensors").stat().st_size for name in shipped_models()]
    assert max(sizes) <= 8_000_000
    assert sum(sizes) <= 16_000_000
    weights = load_file(SHIPPED / NAME / "model.safetensors")
    assert {x.dtype for name, x in weights.items() if x.ndim} == {torch.bfloat16}


def test_the_wheel_holds_every_file_of_a_shipped_model():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    patterns = settings["tool"]["setuptools"]["package-data"]["lgq"]
    files = [path.relative_to(ROOT / "lgq") for path in SHIPPED.rglob("*") if path.is_file()]
    names = {file.name for file in files}
    assert names == {"README.md", "config.json", "manifest.json", "model.safetensors"}
    assert all(any(fnmatch(str(file), pattern) for pattern in patterns) for file in files)


def test_a_photograph_is_recognisable_in_its_reconstruction():
    photograph = to_tensor(photograph_pixels("chelsea.png").crop((100, 20, 356, 276)))[None]
    tokenizer = load_tokenizer(NAME)
    tokens = tokenizer.encode(photograph)
    assert psnr(photograph, tokenizer.decode(tokens)).item() > RECOGNISABLE
    assert tokens.unique().numel() > 200


def test_a_directory_of_the_same_name_comes_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    Tokenizer(TINY.backbone, codebook_size=16).save_pretrained(NAME)
    assert load_tokenizer(NAME).codebook_size == 16
    assert load_tokenizer(NAME).image_size is None


def test_a_damaged_installation_is_noticed(copied):
    weights = bytearray((copied / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (copied / "model.safetensors").write_bytes(weights)
    with pytest.raises(PretrainedError, match=r"model.safetensors has other bytes .*: install lgq again"):
        load_tokenizer(NAME)


def test_errors_name_the_shipped_models(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PretrainedError, match=f"did you mean {NAME}"):
        find_file("photo-8", "config.json")
    with pytest.raises(PretrainedError, match=rf"save_pretrained wrote, {NAME} or owner/name"):
        find_file("something", "config.json")


def test_commands_take_the_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(MetricNetworks, "available", lambda device: MetricNetworks())
    pixels = np.random.default_rng(0).integers(0, 256, (21, 34, 3), dtype=np.uint8)
    Image.fromarray(pixels).save("a.png")
    main(["reconstruct", NAME, "a.png", "--out", "pictures"])
    assert to_rgb("pictures/a-reconstructed.png").size == (68, 21)
    main(["encode", NAME, "--data", "a.png", "--out", "tokens", "--image-size", "16"])
    main(["decode", NAME, "tokens", "--out", "decoded"])
    assert to_rgb("decoded/a.png").size == (16, 16)
    main(["evaluate", NAME, "--data", "a.png", "--out", "record", "--image-size", "32", "--workers", "0"])
    assert NAME in Path("record/results.jsonl").read_text()


# The script that ships a run.


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> tuple[Path, FolderDataset]:
    photos = paint_photos(tmp_path_factory.mktemp("photos"), count=3)
    local = replace(TINY.backbone, norm="layer", patch=2)
    out = tmp_path_factory.mktemp("run")
    train(replace(TINY, backbone=local, learning_rate=1e-3), FolderDataset(photos), out)
    return out, FolderDataset(photos)


def test_the_script_ships_a_run_in_half_precision_with_its_measured_card(trained, tmp_path, monkeypatch):
    run, photos = trained
    SCRIPT["ship"](run, photos, "last", 2, perceptual=LPIPS(), out=tmp_path / "tiny")
    monkeypatch.setattr("lgq.model_sources.SHIPPED", tmp_path)
    shipped, exact = load_tokenizer("tiny"), load_tokenizer(run, "last")
    for name, weight in exact.state_dict().items():
        if weight.ndim:
            assert torch.equal(shipped.state_dict()[name], weight.bfloat16().float())
    values = SCRIPT["measure"](shipped, photos, LPIPS(), 2)
    card = (tmp_path / "tiny" / "README.md").read_text()
    assert (
        f"| bf16, as shipped | {values['psnr']:.2f} | {values['ssim']:.3f} | {values['lpips']:.3f} |" in card
    )
    assert "Means over 2 of the 3 held-out photographs, whole and at their own resolution." in card
    assert "**This is a preview.**" in card
    assert "6 steps of 2 crops" in card
    assert "--learning-rate" not in card  # the tiny run has that of `photo-lgq`
    assert "--image-size 12" in card


def test_a_card_names_the_command_that_began_the_run_and_later_changes_of_its_length(trained):
    settings = run_settings(trained[0])
    assert "--steps 6 " in SCRIPT["command"](settings)
    change = {"step": 4, "planned": 9, "steps": 6}
    assert "--steps 9 " in SCRIPT["command"](settings | {"extensions": [change]})


def test_a_card_names_the_weights_that_a_run_began_with_and_the_options_of_its_quantizer(trained):
    settings = run_settings(trained[0])
    start = {"source": "photo-f8", "fingerprint": "0123456789abcdef", "parts": ["encoder", "decoder"]}
    options = settings["quantizer_options"] | {"tau_end": 0.05, "hard_gradient": True}
    changes = {"start_from": start, "quantizer_options": options, "frozen_tokens": True}
    command = SCRIPT["command"](settings | changes)
    assert " --frozen-tokens --" in command
    assert command.endswith("--start-from photo-f8")
    assert " --quantizer-options tau_end=0.05 hard_gradient=true " in command
    begun = SCRIPT["_start"](History.of(changes).start_from)
    assert "with the sha256 0123456789ab. These had 4,096 codes, and are from two" in begun
    assert SCRIPT["_start"](None) == ""


def test_measures_are_means_over_whole_photographs(trained):
    run, photos = trained
    tokenizer, network = load_tokenizer(run, "last"), LPIPS()
    values = SCRIPT["measure"](tokenizer, photos, network)
    images = torch.stack([to_tensor(to_rgb(photos[i].data)) for i in range(len(photos))])
    tokens = tokenizer.encode(images)
    assert values["psnr"] == pytest.approx(psnr(images, tokenizer.decode(tokens)).mean().item(), abs=1e-3)
    assert values["lpips"] == pytest.approx(network(images, tokenizer.decode(tokens)).mean().item(), abs=1e-4)
    assert values["utilization"] == tokens.unique().numel() / 16
    assert (values["tokens"], values["images"]) == (tokens.numel(), 3)


def test_the_script_refuses_weights_that_lose_by_rounding_or_are_too_large(trained, tmp_path, monkeypatch):
    good = {"psnr": 23.0, "lpips": 0.25}
    SCRIPT["require_no_loss"]({"float32": good, "bf16": good | {"psnr": 22.99}})
    with pytest.raises(SystemExit, match=r"bf16 changes psnr from 23.0000 to 22.9000"):
        SCRIPT["require_no_loss"]({"float32": good, "bf16": good | {"psnr": 22.9}})
    monkeypatch.setitem(SCRIPT["ship"].__globals__, "MOST_BYTES", 100)
    with pytest.raises(SystemExit, match="may take 100"):
        SCRIPT["ship"](*trained, "last", 1, perceptual=LPIPS(), out=tmp_path / "tiny")
    assert not (tmp_path / "tiny").exists()


def test_a_card_is_a_previews_until_every_target_is_met():
    met = {"psnr": 23.0, "lpips": 0.25, "utilization": 0.95}
    assert SCRIPT["missed_targets"](met) == []
    missed = {"psnr": 22.9, "lpips": 0.26, "utilization": 0.94}
    assert SCRIPT["missed_targets"](missed) == ["23 dB", "an LPIPS of 0.25", "95% of codes in use"]
