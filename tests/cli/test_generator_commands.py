"""`lgq train-generator` and `lgq evaluate` of a generator as a user types them: from images to a row."""

import json
import re
import shutil
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cheap_inception import use_cheap_networks
from command_line import lgq, mistake
from PIL import Image
from safetensors.torch import load_file
from token_sets import write_tokens

from lgq import MaskGIT, Tokenizer, evaluation
from lgq.data import FolderDataset
from lgq.metrics.fid import Gaussian
from lgq.metrics.metric_networks import MetricNetworks
from lgq.metrics.reference import Reference
from lgq.models.autoencoder import Backbone
from lgq.results import read_results
from lgq.training.journal import read_records

SIDE, CODES = 8, 6
CPU = torch.device("cpu")
TINY = [
    *("--transformer.layers", 1, "--transformer.width", 16, "--transformer.heads", 2),
    *("--transformer.hidden", 16, "--batch-size", 4, "--steps", 3, "--schedule.warmup-steps", 1),
    *("--validation-images", 6, "--sample-images", 2, "--sampling.steps", 2, "--checkpoint-every", 1),
    *("--log-every", 1),
]
DRAWN = ["--images", 24, "--seeds", 0, 1, "--sampling.steps", 2, "--batch-size", 5, "--workers", 0]


def build(seed: int = 0, codebook_size: int = CODES) -> Tokenizer:
    torch.manual_seed(seed)
    backbone = Backbone(
        widths=(4, 8), blocks=1, groups=2, attention_heads=0, latent_channels=4, latent_groups=2
    )
    return Tokenizer(backbone, codebook_size=codebook_size)


def put_photos(folder: Path, seed: int, classes: tuple[str, ...] = ("cat", "dog"), each: int = 6) -> Path:
    random = np.random.default_rng(seed)
    for name in classes:
        (folder / name).mkdir(parents=True)
        for number in range(each):
            coarse = Image.fromarray(random.integers(0, 256, (3, 3, 3), dtype=np.uint8))
            coarse.resize((12, 10), Image.Resampling.BICUBIC).save(folder / name / f"{number}.png")
    return folder


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Namespace:
    """All that a user has who went from images to a generator."""
    home = tmp_path_factory.mktemp("home")
    build().save_pretrained(home / "tokenizer")
    for seed, part in enumerate(("train", "val")):
        photos = put_photos(home / f"{part}-photos", seed)
        encode(home / "tokenizer", photos, home / part, "--flips")
    made = Namespace(
        tokenizer=home / "tokenizer",
        photos=home / "val-photos",
        train=home / "train",
        val=home / "val",
        generator=home / "generator",
    )
    train(made, made.generator)
    return made


def encode(tokenizer: Path, photos: Path, out: Path, *options: object) -> Path:
    size = [] if "--image-size" in options else ["--image-size", SIDE]
    lgq("encode", tokenizer, "--data", photos, "--out", out, *size, *options)
    return out


def train(made: Namespace, out: Path, *options: object) -> None:
    sources = ["--tokens", made.train, "--val-tokens", made.val, "--out", out]
    lgq("train-generator", "pocket", *sources, *TINY, *options)


@pytest.fixture(autouse=True)
def metric_networks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> MetricNetworks:
    """A cheap network in the place of Inception."""
    return use_cheap_networks(monkeypatch, tmp_path / "cache")


@pytest.fixture
def nothing_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever takes long fails, and not as a user's mistake does."""

    def work(*arguments: Any, **options: Any) -> None:
        raise AssertionError("this is long work")

    for name in ("evaluate_generation", "evaluate_likelihood"):
        monkeypatch.setattr(evaluation, name, work)
    monkeypatch.setattr(Reference, "from_images", work)


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
    before, after = (load_file(run / "last" / "model.safetensors") for run in (made.generator, out))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    records = (out / "metrics.jsonl").read_bytes()
    train(made, out)
    assert "all 3 steps are done" in capsys.readouterr().err
    assert (out / "metrics.jsonl").read_bytes() == records
    assert "transformer.width (was 16, now 32)" in mistake(
        capsys, "train-generator", "pocket", "--tokens", made.train, "--val-tokens", made.val,
        "--out", out, *TINY, "--transformer.width", 32,
    )  # fmt: skip


def test_a_dry_run_says_what_the_generator_needs_and_leaves_nothing(made, tmp_path, capsys):
    train(made, tmp_path / "run", "--dry-run", "--average-decay", 0.9)
    printed = capsys.readouterr().out
    resolved = json.loads(re.match(r"{.*^}", printed, re.DOTALL | re.MULTILINE)[0])
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
    command = ["train-generator", "pocket", "--tokens", bare, "--val-tokens", made.val, *TINY, "--dry-run"]
    command += ["--out", tmp_path / "run"]
    assert "holds no tokenizer/" in mistake(capsys, *command)
    lgq(*command, "--tokenizer", made.tokenizer)


def test_an_evaluation_is_printed_recorded_and_drawn(made, tmp_path, capsys):
    out = tmp_path / "out"
    command = ["evaluate", made.generator, "--data", made.photos, "--images", 24, "--seeds", 0, 1, "--tokens"]
    command += [made.val, "--sampling.steps", 2, "--batch-size", 5, "--workers", 0, "--out", out]
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
    command = ["--tokens", tokens.path, "--tokenizer", made.tokenizer, "--out", tmp_path / "run", *TINY]
    lgq("train-generator", "pocket", *command)
    lgq("evaluate", tmp_path / "run", "--tokens", tokens.path)
    (record,) = read_results(tmp_path / "run" / "evaluation" / "results.jsonl")
    assert record["likelihood"]["entropy"] == record["likelihood"]["class_entropy"]


@pytest.fixture(scope="module")
def foreign(made: Namespace, tmp_path_factory: pytest.TempPathFactory) -> Namespace:
    """What does not fit the generator."""
    home = tmp_path_factory.mktemp("foreign")
    build(seed=1).save_pretrained(home / "tokenizer")
    birds = put_photos(home / "birds", 2, ("cat", "eel"))
    flat = put_photos(home / "flat", 2, ("",))
    shutil.copytree(made.generator / "best", home / "mixed")
    build(codebook_size=CODES + 1).save_pretrained(home / "mixed" / "tokenizer")
    Gaussian(torch.zeros(3).double(), torch.eye(3).double()).save(home / "three.npz")
    return Namespace(
        tokenizer=home / "tokenizer",
        tokens=encode(home / "tokenizer", made.photos, home / "tokens"),
        birds=encode(made.tokenizer, birds, home / "bird-tokens"),
        flat=encode(made.tokenizer, flat, home / "flat-tokens"),
        large=encode(made.tokenizer, made.photos, home / "large", "--image-size", 2 * SIDE),
        mixed=home / "mixed",
        single=put_photos(home / "single", 2, ("cat",), each=1),
        statistics=home / "three.npz",
    )


def test_mistakes_of_training_are_named_in_one_line(made, foreign, tmp_path, capsys):
    out = tmp_path / "run"
    for words, tokens, *options in (
        ("holds tokens of tokenizer", made.train, "--tokenizer", foreign.tokenizer),
        ("holds tokens of tokenizer", made.train, "--val-tokens", foreign.tokens),
        ("is a generator, and this needs a tokenizer", made.train, "--tokenizer", made.generator),
        ("its class 1 is 'eel', not 'dog'", made.train, "--val-tokens", foreign.birds),
        ("it has no classes, and", made.train, "--val-tokens", foreign.flat),
        ("its grid is 8 x 8, not 4 x 4", made.train, "--val-tokens", foreign.large),
        ("name a directory of tokens", made.photos),
        ("does not exist: name a directory of tokens", tmp_path / "gone"),
        ("name a directory of tokens", made.train, "--val-tokens", made.generator),
        ("got 3 of 3: shorten the warm-up", made.train, "--schedule.warmup-steps", 3),
        ("label_dropout must lie in 0..1, got 2", made.train, "--label-dropout", 2),
    ):
        for dry in ([], ["--dry-run"]):
            command = ["train-generator", "pocket", "--tokens", tokens, "--out", out, *TINY, *options, *dry]
            assert words in mistake(capsys, *command), words
            assert not out.exists(), words
    command = ["train-generator", "pockets", "--tokens", made.train, "--out", out]
    assert "unknown generator 'pockets': did you mean 'pocket'?" in mistake(capsys, *command)
    command[1] = "pocket-lgq"
    assert "unknown generator 'pocket-lgq': did you mean 'pocket'?" in mistake(capsys, *command)


@pytest.mark.usefixtures("nothing_long")
def test_mistakes_of_an_evaluation_are_named_before_any_long_work(made, foreign, tmp_path, capsys):
    data, tokens = ["--data", made.photos], ["--tokens", made.val]
    out = tmp_path / "out"
    for words, *options in (
        ("`data` or with `reference`: give one", *data, "--reference", foreign.statistics),
        ("give `data`, `reference`, or `tokens`",),
        ("give `tokens` too", *data, "--train-tokens", made.train),
        ("is a generator, to which `geometry` does not apply", *data, "--geometry", "pca"),
        ("is a generator, to which `image_size` does not apply", *data, "--image-size", SIDE),
        ("seeds must be one or more different numbers, got [1, 2, 1]", *data, "--seeds", 1, 2, 1),
        ("images must be at least 2, got 1", *data, "--images", 1),
        ("batch_size must be at least 1, got 0", *data, "--batch-size", 0),
        ("batch_size must be at least 1, got 0", *tokens, "--batch-size", 0),
        ("has 3 features per image", *tokens, "--reference", foreign.statistics),
        ("gone.npz does not exist", *tokens, "--reference", tmp_path / "gone.npz"),
        ("gone does not exist", "--data", tmp_path / "gone"),
        ("large does not suit the generator: its grid is 8 x 8, not", *data, "--tokens", foreign.large),
        ("encode images of 8 x 8 pixels", *data, "--tokens", foreign.large),
        ("holds tokens of tokenizer", *data, "--tokens", foreign.tokens),
        ("its class 1 is 'eel', not 'dog'", *data, "--tokens", foreign.birds),
        ("it has no classes, and the generator has 2", *data, "--tokens", foreign.flat),
        ("name a directory of tokens", *data, "--tokens", made.photos),
        ("holds tokens of tokenizer", *data, *tokens, "--train-tokens", foreign.tokens),
        ("its class 1 is 'eel', not 'dog'", *tokens, "--train-tokens", foreign.birds),
        ("`seeds` applies to generated images, and tokens alone need none", *tokens, "--seeds", 1),
        ("`sampling.steps` applies to generated images", *tokens, "--sampling.steps", 3),
        ("`sampling.top_k` applies to generated images", *tokens, "--sampling.top-k", 3),
        ("images must be at least 1, got 0", *tokens, "--images", 0),
        ("statistics need 2 images or more, got 1 in", "--data", foreign.single, *tokens),
    ):
        assert words in mistake(capsys, "evaluate", made.generator, *options, "--out", out), words
        assert not out.exists(), words
    line = mistake(capsys, "evaluate", foreign.mixed, *tokens, "--out", out)
    assert "trained on tokens of tokenizer" in line
    (tmp_path / "file").write_text("in the way")
    line = mistake(capsys, "evaluate", made.generator, *data, "--out", tmp_path / "file")
    assert "choose another directory" in line


@pytest.mark.usefixtures("nothing_long")
def test_without_the_weights_of_inception_nothing_is_measured(made, tmp_path, monkeypatch, capsys):
    without = MetricNetworks(absent={"gfid": "run `lgq weights fetch`."})
    monkeypatch.setattr(MetricNetworks, "available", lambda device, for_generation: without)
    question = ["evaluate", made.generator, "--data", made.photos, "--tokens", made.val, "--out", tmp_path]
    assert "run `lgq weights fetch`" in mistake(capsys, *question)


def test_a_generator_is_no_tokenizer_and_the_reverse(made, tmp_path, capsys):
    photo, out = made.photos / "cat" / "0.png", tmp_path / "out"
    for source in (made.generator, made.generator / "best"):
        for command in (
            ["encode", source, "--data", made.photos, "--out", out],
            ["encode", source, "--data", made.photos, "--out", out, "--image-size", SIDE],
            ["reconstruct", source, photo, "--out", out],
            ["decode", source, made.val, "--out", out],
        ):
            assert "is a generator, and this needs a tokenizer" in mistake(capsys, *command)
    for command in (["sample"], ["inpaint", "--box", 0, 0, 4, 4]):
        line = mistake(capsys, command[0], made.tokenizer, *[photo][: len(command) - 1], *command[1:],
                       "--out", tmp_path / "out.png")  # fmt: skip
        assert "is a tokenizer, and this needs a generator" in line
    assert not list(tmp_path.glob("out*"))


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
