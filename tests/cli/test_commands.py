"""Commands as a user types them: a tokenizer from images, tokens from the tokenizer, images from tokens."""

import json
import re
import shutil
import subprocess
import sys

import pytest
import torch
from command_line import TINY_TOKENIZER, lgq, mistake
from PIL import Image

from lgq import Tokenizer
from lgq.data.tokens import TokenDataset
from lgq.runs import tokenizer_names
from lgq.tokenizer import _MOST_POSITIONS
from lgq.training.journal import read_records

LARGER = ["--image-size", "32"]
"""Images that are large enough for the discriminator."""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of two steps."""
    out = tmp_path_factory.mktemp("runs") / "tiny"
    options = ["--quantizer-options", "tau_end=0.5", "score=dot", "hard_gradient=true"]
    train(out, "--val-data", "sample:held-out", *options)
    return out


@pytest.fixture
def photos(tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    for i in range(3):
        Image.new("RGB", (30 + i, 20), (80 * i, 40, 120)).save(folder / f"{i}.png")
    return folder


def train(out, *options, steps=2):
    lgq("train", "pocket-lgq", "--data", "sample", "--out", out, "--steps", steps, *TINY_TOKENIZER, *options)


def size(picture) -> tuple[int, int]:
    with Image.open(picture) as image:
        return image.size


def test_training_fills_a_run_directory(run):
    config = json.loads((run / "config.json").read_text())
    assert config["image_size"] == 16
    assert config["backbone"]["widths"] == [8, 16]
    assert config["loop"]["steps"] == 2
    assert (
        config["quantizer_options"].items() >= {"tau_end": 0.5, "score": "dot", "hard_gradient": True}.items()
    )
    assert {path.name for path in run.iterdir()} >= {"best", "last", "checkpoints", "images", "tensorboard"}
    assert [record["split"] for record in read_records(run)] == ["train", "train", "validation"]


def test_without_a_terminal_a_training_prints_a_line_per_interval_and_each_warning_as_one(tmp_path, capsys):
    idle = ["--loss.gan", "0.1", "--loss.discriminator-start", "4", "--log-every", "2", *LARGER]
    train(tmp_path / "run", "--val-data", "sample:held-out", *idle, steps=4)
    warning, first, second, end = capsys.readouterr().err.splitlines()
    assert warning.startswith("lgq: warning: the discriminator never trains: it joins at step 4")
    assert first.startswith("step 2/4  loss ")
    assert second.startswith("step 4/4  loss ")
    assert " dB " in second
    assert end.startswith("lgq: all 4 steps are done")


def test_validation_on_training_images_is_said_with_the_option_that_changes_it(tmp_path, capsys):
    train(tmp_path / "run", steps=1)
    assert "lgq: no validation data (--val-data): validating on images of the" in capsys.readouterr().err


def test_a_dry_run_says_what_the_run_needs_and_leaves_nothing(capsys, tmp_path):
    train(tmp_path / "run", "--dry-run", *LARGER, "--loss.gan", "0.1", "--average-decay", "0.9")
    printed = capsys.readouterr().err
    for words in ("580, seen 0.0 times", "parameters, discriminator", "2,765,633", "activations", "average"):
        assert words in printed
    assert not (tmp_path / "run").exists()


def test_a_dry_run_says_whether_the_directory_holds_a_run_and_can_continue_it(run, capsys):
    before = sorted(run.rglob("*"))
    with pytest.raises(SystemExit, match="2"):
        train(run, "--dry-run", "--codebook-size", 8, "--batch-size", 3)
    printed = capsys.readouterr()
    assert json.loads(printed.out)["codebook_size"] == 8
    (notice,) = (line for line in printed.err.splitlines() if "holds a run" in line)
    assert re.search(r"other settings.*: --batch-size \(was \d+, now 3\), --codebook-size \(was", notice)
    train(run, "--dry-run", steps=9)
    assert f"{run} holds a run, which these settings continue" in capsys.readouterr().err
    assert sorted(run.rglob("*")) == before


def test_a_refusal_is_not_preceded_by_other_news(run, capsys):
    before = ["train", "pocket-lgq", "--data", "sample", "--out", run, *TINY_TOKENIZER]
    for options in (["--resume", "never"], ["--learning-rate", "1"]):
        mistake(capsys, *before, *options, lines=1)


@pytest.mark.parametrize("name", tokenizer_names())
def test_every_named_run_can_be_planned(capsys, name, tmp_path):
    lgq("train", name, "--data", "sample", "--out", tmp_path, "--dry-run", *TINY_TOKENIZER, *LARGER)
    assert f'"quantizer": "{name.split("-")[1]}"' in capsys.readouterr().out


def test_a_run_stopped_by_a_signal_ends_in_code_75_and_the_rest_follows(tmp_path):
    command = [sys.executable, "-m", "lgq", "train", "pocket-lgq", "--data", "sample", *TINY_TOKENIZER]
    command += ["--out", str(tmp_path / "run"), "--steps", "1000000"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    while not (tmp_path / "run" / "metrics.jsonl").exists() and process.poll() is None:
        pass
    process.terminate()
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 75, errors
    assert "saved; the same command continues" in errors
    assert (tmp_path / "run" / "last" / "model.safetensors").exists()


def test_reconstructions_stand_beside_their_images(run, photos, tmp_path, capsys):
    (photos / "broken.jpg").write_bytes(b"no image")
    lgq("reconstruct", run, *sorted(photos.iterdir()), "--out", tmp_path / "out")
    printed = capsys.readouterr()
    assert size(tmp_path / "out" / "0-reconstructed.png") == (60, 20)
    assert printed.out.count("-reconstructed.png") == 3
    assert "1 skipped" in " ".join(printed.out.split())
    assert "broken.jpg" in printed.err


def test_reconstructions_have_the_size_that_is_asked_for(run, photos, tmp_path, capsys, monkeypatch):
    lgq("reconstruct", run, photos / "0.png", "--out", tmp_path / "out", "--image-size", "12")
    assert size(tmp_path / "out" / "0-reconstructed.png") == (24, 12)
    monkeypatch.setitem(_MOST_POSITIONS, "cpu", 36)
    line = mistake(capsys, "reconstruct", run, photos / "0.png", "--out", tmp_path / "out")
    assert "30 x 20 pixels are too many for the attention" in line
    assert "give a smaller --image-size, or take" in line
    assert "12 x 12" in mistake(capsys, "encode", run, "--data", photos, "--out", tmp_path / "x")


def test_a_folder_stands_for_its_images(run, photos, tmp_path, capsys):
    (photos / "more" / "deep").mkdir(parents=True)
    shutil.copy(photos / "0.png", photos / "more" / "deep" / "0.png")
    shutil.copy(photos / "1.png", tmp_path / "0.png")
    lgq("reconstruct", run, photos, tmp_path / "0.png", "--out", tmp_path / "out")
    pictures = sorted(
        path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*.png")
    )
    single = [f"{i}-reconstructed.png" for i in range(3)]
    assert pictures == sorted([*single, "0-reconstructed-4.png", "more/deep/0-reconstructed.png"])
    assert capsys.readouterr().out.count("-reconstructed") == 5
    (tmp_path / "empty").mkdir()
    many = tmp_path / "many"
    many.mkdir()
    for i in range(11):
        shutil.copy(tmp_path / "0.png", many / f"{i}.png")
    lgq("reconstruct", run, many, "--out", tmp_path / "summed")
    printed = capsys.readouterr()
    assert printed.out == ""
    assert re.search(r"11 images, PSNR (\d+\.\d\d) dB on average, \1 dB at the lowest \(0-recon", printed.err)
    assert len(list((tmp_path / "summed").iterdir())) == 11
    assert "hold no image" in mistake(capsys, "reconstruct", run, tmp_path / "empty", "--out", tmp_path / "x")


def test_image_files_are_encoded_without_a_folder(run, photos, tmp_path, capsys):
    first, second = photos / "0.png", photos / "1.png"
    lgq("encode", run, "--data", first, "--out", tmp_path / "one")
    lgq("encode", run, "--data", second, first, "--out", tmp_path / "two")
    lgq("encode", run, "--data", photos, "--out", tmp_path / "all")
    one, two, all_images = (TokenDataset(tmp_path / name) for name in ("one", "two", "all"))
    assert [item.name for item in two] == ["1.png", "0.png"]
    assert (len(one), one.classes, one[0].label) == (1, (), None)
    assert torch.equal(one[0].tokens, all_images[0].tokens)
    assert torch.equal(two[0].tokens, all_images[1].tokens)
    lgq("encode", run, "--data", first, second, "--out", tmp_path / "x", "--dry-run")
    assert not (tmp_path / "x").exists()
    gone = mistake(capsys, "encode", run, "--data", photos / "gone.png", "--out", tmp_path / "x")
    assert "gone.png does not exist" in gone


def test_what_is_encoded_is_what_is_decoded(run, photos, tmp_path, capsys):
    tokens, images = tmp_path / "tokens", tmp_path / "images"
    lgq("encode", run, "--data", photos, "--out", tokens, "--flips", "--shard-size", "2")
    lgq("decode", run, tokens, "--out", images, "--batch-size", "2")
    dataset = TokenDataset(tokens)
    assert dataset.encoding.token_shape == (8, 8)
    assert len(list(tokens.glob("*.safetensors"))) == 2
    assert sorted(path.name for path in images.glob("*.png")) == ["0.png", "1.png", "2.png"]
    assert size(images / "0.png") == (16, 16)
    lgq("decode", tokens, "--out", tmp_path / "same")
    for path in images.glob("*.png"):
        assert (tmp_path / "same" / path.name).read_bytes() == path.read_bytes()
    assert "3 images of 8 x 8 tokens" in capsys.readouterr().err


def test_last_and_best_weights_can_be_chosen(run, photos, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "last")  # with the manifest that the run gave it
    changed = Tokenizer.from_pretrained(run / "last")
    torch.nn.init.zeros_(changed.decoder.to_image.bias)
    changed.save_pretrained(tmp_path / "run" / "last")
    for which in ("best", "last"):
        lgq("encode", tmp_path / "run", "--data", photos, "--out", tmp_path / which, "--weights", which)
        fingerprint = Tokenizer.from_pretrained(tmp_path / "run" / which).fingerprint()
        assert TokenDataset(tmp_path / which).encoding.fingerprint == fingerprint


def test_a_diverged_run_ends_in_code_1_and_names_the_term(tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        train(tmp_path / "run", "--learning-rate", "1e30", steps=20)
    assert stop.value.code == 1
    assert "is not finite at step" in capsys.readouterr().err


def test_names_with_brackets_are_shown_as_they_are(run, photos, tmp_path, capsys):
    odd = photos / "a[b][_i].png"
    shutil.copy(photos / "0.png", odd)
    lgq("reconstruct", run, odd, "--out", tmp_path / "o[bold]ut")
    printed = "".join(capsys.readouterr().out.split())
    assert "a[b][_i]-reconstructed.png" in printed
    assert "o[bold]ut" in printed
