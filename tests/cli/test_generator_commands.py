"""`lgq train-generator` and `lgq evaluate` of a generator as a user types them: from images to a row."""

import json
import shutil
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest
import torch
from cheap_inception import use_cheap_networks
from command_line import TINY_GENERATOR, lgq, mistake
from PIL import Image
from token_sets import write_tokens

from lgq import MaskGIT, Tokenizer
from lgq.data import FolderDataset
from lgq.metrics.metric_networks import MetricNetworks
from lgq.metrics.reference import Reference
from lgq.models.autoencoder import Backbone
from lgq.results import read_results
from lgq.training.journal import read_records

SIDE, CODES = 8, 6
CPU = torch.device("cpu")
DRAWN = ["--samples", 24, "--sampling-seeds", 0, 1, "--steps", 2, "--batch-size", 5, "--workers", 0]


def build() -> Tokenizer:
    torch.manual_seed(0)
    small = Backbone(widths=(4, 8), blocks=1, groups=2, attention_heads=0, latent_channels=4, latent_groups=2)
    return Tokenizer(small, codebook_size=CODES)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Namespace:
    """All that a user has who went from images to a generator."""
    home, random = tmp_path_factory.mktemp("home"), np.random.default_rng(0)
    names = ("tokenizer", "photos", "train", "val", "generator")
    made = Namespace(**{name: home / name for name in names})
    build().save_pretrained(made.tokenizer)
    for tokens, photos in ((made.train, home / "train-photos"), (made.val, made.photos)):
        for number in range(12):
            path = photos / ("cat", "dog")[number % 2] / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            coarse = Image.fromarray(random.integers(0, 256, (3, 3, 3), dtype=np.uint8))
            coarse.resize((12, 10), Image.Resampling.BICUBIC).save(path)
        command = ["encode", made.tokenizer, "--data", photos, "--out", tokens, "--image-size", SIDE]
        lgq(*command, "--flips", "--workers", 0)
    train(made, made.generator)
    return made


def train(made: Namespace, out: Path, *options: object) -> None:
    sources = ["--tokens", made.train, "--val-tokens", made.val, "--out", out]
    lgq("train-generator", "pocket", *sources, *TINY_GENERATOR, *options)


@pytest.fixture(autouse=True)
def metric_networks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> MetricNetworks:
    """A cheap network in the place of Inception."""
    return use_cheap_networks(monkeypatch, tmp_path / "cache")


def test_training_fills_a_run_directory_from_which_images_are_drawn(made, tmp_path):
    config = json.loads((made.generator / "config.json").read_text())
    assert config["kind"] == "generator"
    assert (config["image_size"], config["loop"]["steps"]) == (SIDE, 3)
    assert (config["transformer"]["width"], config["schedule"]["warmup_steps"]) == (16, 1)
    assert config["tokenizer"] == Tokenizer.from_pretrained(made.tokenizer).fingerprint()
    splits = [record["split"] for record in read_records(made.generator)]
    assert splits == ["train", "train", "train", "validation"]
    for which in ("best", "last"):
        assert MaskGIT.from_pretrained(made.generator / which).classes == ("cat", "dog")
    lgq("sample", made.generator, "--steps", 2, "--out", tmp_path / "grid.png")
    assert (tmp_path / "grid.png").read_bytes().startswith(b"\x89PNG")


def test_the_same_command_continues_a_generator(made, tmp_path, capsys):
    out = tmp_path / "run"
    shutil.copytree(made.generator, out)
    shutil.rmtree(max((out / "checkpoints").iterdir()))
    shutil.rmtree(out / "last")
    train(made, out, "--resume", "must")
    assert "after step 2" in capsys.readouterr().err
    records = (out / "metrics.jsonl").read_bytes()
    train(made, out)
    assert "all 3 steps are done" in capsys.readouterr().err
    assert (out / "metrics.jsonl").read_bytes() == records


def test_a_dry_run_says_what_the_generator_needs_and_leaves_nothing(made, tmp_path, capsys):
    train(made, tmp_path / "run", "--dry-run", "--average-decay", 0.9)
    resolved, printed = capsys.readouterr()
    resolved = json.loads(resolved)
    assert (resolved["transformer"]["layers"], resolved["loop"]["steps"]) == (1, 3)
    transformer = MaskGIT.from_pretrained(made.generator / "last").transformer
    parameters = sum(parameter.numel() for parameter in transformer.parameters())
    for words in (f"{parameters:,}", "12, seen 1.0 times", "memory, tokenizer", "activations", "average"):
        assert words in printed
    assert not (tmp_path / "run").exists()


def test_a_generator_learns_from_tokens_without_a_copy_of_their_tokenizer_if_it_is_named(
    made, tmp_path, capsys
):
    bare = tmp_path / "bare"
    shutil.copytree(made.train, bare, ignore=shutil.ignore_patterns("tokenizer"))
    command = [
        "train-generator",
        "pocket",
        "--tokens",
        bare,
        "--val-tokens",
        made.val,
        *TINY_GENERATOR,
        "--dry-run",
    ]
    command += ["--out", tmp_path / "run"]
    assert "holds no tokenizer/" in mistake(capsys, *command)
    lgq(*command, "--tokenizer", made.tokenizer)


def test_an_evaluation_is_printed_recorded_and_drawn(made, tmp_path, capsys):
    out = tmp_path / "out"
    command = [
        "evaluate",
        made.generator,
        "--data",
        made.photos,
        "--samples",
        24,
        "--sampling-seeds",
        0,
        1,
        "--tokens",
    ]
    command += [made.val, "--steps", 2, "--batch-size", 5, "--workers", 0, "--out", out]
    lgq(*command)
    printed = capsys.readouterr().out
    (record,) = read_results(out / "results.jsonl")
    assert record["metrics"].keys() == {"gfid", "kid", "precision", "recall", "inception_score"}
    assert f"{record['metrics']['gfid']:.2f} ± {record['std']['gfid']:.2f}" in printed
    assert "24 images with each of 2 seeds" in printed
    assert f"{record['likelihood']['nll']:.3f}" in printed
    assert f"{record['likelihood']['masked_tokens']:,.0f} masked tokens" in printed
    assert (record["kind"], record["command"]) == ("generator", ["lgq", *map(str, command)])
    assert {path.name for path in out.iterdir()} == {"results.jsonl", "samples.png"}


def test_a_file_of_statistics_gives_the_same_gfid_as_its_images(made, metric_networks, tmp_path, capsys):
    real = Reference.from_images(FolderDataset(made.photos), SIDE, metric_networks.inception, CPU)
    real.gaussian.save(tmp_path / "real.npz")
    for source in (["--data", made.photos], ["--reference", tmp_path / "real.npz"]):
        lgq("evaluate", made.generator, *source, *DRAWN, "--out", tmp_path)
    by_images, by_file = read_results(tmp_path / "results.jsonl")
    assert by_file["metrics"]["gfid"] == by_images["metrics"]["gfid"]
    assert by_file["absent"].keys() == {"kid", "precision", "recall"}
    assert "no kid, precision, recall: " in capsys.readouterr().err


def test_tokens_without_classes_are_one_class(made, tmp_path):
    unlabelled = {"codebook_size": CODES, "fingerprint": build().fingerprint()}
    tokens = write_tokens(tmp_path / "tokens", torch.randint(CODES, (5, 4, 4)), **unlabelled)
    command = [
        "--tokens",
        tokens.path,
        "--tokenizer",
        made.tokenizer,
        "--out",
        tmp_path / "run",
        *TINY_GENERATOR,
    ]
    lgq("train-generator", "pocket", *command)
    lgq("evaluate", tmp_path / "run", "--tokens", tokens.path)
    (record,) = read_results(tmp_path / "run" / "evaluation" / "results.jsonl")
    assert record["likelihood"]["entropy"] == record["likelihood"]["class_entropy"]


def test_without_the_weights_of_inception_nothing_is_measured(made, tmp_path, monkeypatch, capsys):
    without = MetricNetworks(absent={"gfid": "run `lgq weights fetch`."})
    monkeypatch.setattr(MetricNetworks, "available", lambda device, for_generation: without)
    question = ["evaluate", made.generator, "--data", made.photos, "--tokens", made.val, "--out", tmp_path]
    assert "run `lgq weights fetch`" in mistake(capsys, *question)


def test_of_several_processes_the_first_one_draws_a_picture(made, tmp_path, monkeypatch):
    photo = made.photos / "cat" / "0.png"
    for rank in (1, 0):
        for module in ("sample", "inpaint"):
            monkeypatch.setattr(f"lgq.inference.{module}.rank", lambda: rank)  # noqa: B023
        lgq("sample", made.generator, "--steps", 1, "--count", 1, "--out", tmp_path / "samples.png")
        lgq("inpaint", made.generator, photo, "--box", 0, 0, 4, 4, "--label", 0, "--steps", 1,
            "--count", 1, "--out", tmp_path / "strip.png")  # fmt: skip
        names = {path.name for path in tmp_path.iterdir()}
        assert names == (set() if rank else {"samples.png", "strip.png"})
