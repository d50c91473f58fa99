"""Commands as a user types them: a tokenizer from images, tokens from the tokenizer, images from tokens."""

import json
import re
import shutil
import subprocess
import sys

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from lgq import Tokenizer
from lgq.cli import main
from lgq.data.tokens import TokenDataset
from lgq.runs import tokenizer_names
from lgq.training.journal import read_records

TINY = [
    "--image-size",
    "16",
    "--backbone.widths",
    "8",
    "16",
    "--backbone.groups",
    "4",
    "--batch-size",
    "4",
    "--codebook-size",
    "16",
    "--workers",
    "0",
    "--validation-images",
    "8",
    "--log-every",
    "1",
]


LARGER = ["--image-size", "32"]
"""For the discriminator."""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of two steps."""
    out = tmp_path_factory.mktemp("runs") / "tiny"
    train(out, "--val-data", "sample:held-out")
    return out


@pytest.fixture
def photos(tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    for i in range(3):
        Image.new("RGB", (30 + i, 20), (80 * i, 40, 120)).save(folder / f"{i}.png")
    return folder


def train(out, *options, name="pocket-lgq", steps=2):
    main(["train", name, "--data", "sample", "--out", str(out), "--steps", str(steps), *TINY, *options])


def size(picture) -> tuple[int, int]:
    with Image.open(picture) as image:
        return image.size


def refusal(capsys, *arguments) -> str:
    """The one line in which a command refuses to go on."""
    with pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in arguments])
    assert stop.value.code == 2
    lines = capsys.readouterr().err.strip().splitlines()
    complaints = [line for line in lines if line.startswith("lgq: ")]
    assert complaints
    assert "Traceback" not in "".join(lines)
    return complaints[-1]


def test_training_fills_a_run_directory(run):
    config = json.loads((run / "config.json").read_text())
    assert config["image_size"] == 16
    assert config["backbone"]["widths"] == [8, 16]
    assert config["loop"]["steps"] == 2
    assert {path.name for path in run.iterdir()} >= {"best", "last", "checkpoints", "images", "tensorboard"}
    assert [record["split"] for record in read_records(run)] == ["train", "train", "validation"]


def test_options_of_the_quantizer_reach_it(tmp_path):
    train(tmp_path / "run", "--quantizer-options", "tau_end=0.5", "score=dot", "hard_gradient=true")
    options = json.loads((tmp_path / "run" / "config.json").read_text())["quantizer_options"]
    assert (options["tau_end"], options["score"], options["hard_gradient"]) == (0.5, "dot", True)


def test_the_name_decides_the_settings(capsys, tmp_path):
    main(["train", "imagenet256-fsq", "--out", "pocket-vq", "--data", "sample", "--dry-run", *TINY, *LARGER])
    resolved = json.loads(re.match(r"{.*^}", capsys.readouterr().out, re.DOTALL | re.MULTILINE)[0])
    assert (resolved["quantizer"], resolved["precision"]) == ("fsq", "bf16")


def test_a_name_comes_before_the_options(capsys):
    assert "before its options" in refusal(capsys, "train", "--data", "sample", "pocket-vq", "--out", "run")


def test_a_dry_run_says_what_the_run_needs_and_leaves_nothing(capsys, tmp_path):
    train(tmp_path / "run", "--dry-run", *LARGER, "--loss.gan", "0.1", "--average-decay", "0.9")
    printed = capsys.readouterr().out
    for words in ("580, seen 0.0 times", "parameters, discriminator", "2,765,633", "activations", "average"):
        assert words in printed
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", tokenizer_names())
def test_every_named_run_can_be_planned(capsys, name, tmp_path):
    main(["train", name, "--data", "sample", "--out", str(tmp_path), "--dry-run", *TINY, *LARGER])
    assert f'"quantizer": "{name.split("-")[1]}"' in capsys.readouterr().out


def test_the_same_command_continues_a_run(tmp_path, capsys):
    train(tmp_path / "once", steps=3)
    train(tmp_path / "twice", "--checkpoint-every", "1", steps=3)
    shutil.rmtree(max((tmp_path / "twice" / "checkpoints").iterdir()))
    shutil.rmtree(tmp_path / "twice" / "last")
    train(tmp_path / "twice", "--resume", "must", steps=3)
    assert "after step 2" in capsys.readouterr().err
    once, twice = (load_file(tmp_path / out / "last" / "model.safetensors") for out in ("once", "twice"))
    assert all(torch.equal(once[name], twice[name]) for name in once)


def test_a_run_ends_when_its_time_is_up(tmp_path, capsys):
    train(tmp_path / "run", "--minutes", "1e-9")
    assert "the time is up after step 0" in capsys.readouterr().err


def test_a_run_stopped_by_a_signal_ends_in_code_75_and_the_rest_follows(tmp_path):
    command = [sys.executable, "-m", "lgq.cli", "train", "pocket-lgq", "--data", "sample", *TINY]
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
    main(["reconstruct", str(run), *map(str, sorted(photos.iterdir())), "--out", str(tmp_path / "out")])
    printed = capsys.readouterr()
    assert size(tmp_path / "out" / "0-reconstructed.png") == (60, 20)
    assert printed.out.count("-reconstructed.png") == 3
    assert "1 could not be read" in " ".join(printed.out.split())
    assert "broken.jpg" in printed.err


def test_what_is_encoded_is_what_is_decoded(run, photos, tmp_path, capsys):
    tokens, images = tmp_path / "tokens", tmp_path / "images"
    main(["encode", str(run), "--data", str(photos), "--out", str(tokens), "--flips", "--shard-size", "2"])
    main(["decode", str(run), str(tokens), "--out", str(images), "--batch-size", "2"])
    dataset = TokenDataset(tokens)
    assert dataset.encoding.token_shape == (8, 8)
    assert len(list(tokens.glob("*.safetensors"))) == 2
    assert sorted(path.name for path in images.glob("*.png")) == ["0.png", "1.png", "2.png"]
    assert size(images / "0.png") == (16, 16)
    assert "3 images of 8 x 8 tokens" in capsys.readouterr().err


def test_the_image_size_of_an_encoding_can_be_chosen(run, photos, tmp_path):
    main(["encode", str(run / "last"), "--data", str(photos), "--out", str(tmp_path), "--image-size", "20"])
    assert TokenDataset(tmp_path).encoding.grid == (10, 10)


def test_last_and_best_weights_can_be_chosen(run, photos, tmp_path):
    both = tmp_path / "run"
    shutil.copytree(run, both)
    other = Tokenizer.from_pretrained(run / "last")
    torch.nn.init.zeros_(other.decoder.to_image.bias)
    shutil.rmtree(both / "last")  # with the manifest that the run gave it
    other.save_pretrained(both / "last")
    for which in ("best", "last"):
        out = tmp_path / which
        main(["encode", str(both), "--data", str(photos), "--out", str(out), "--weights", which])
        fingerprint = Tokenizer.from_pretrained(both / which).fingerprint()
        assert TokenDataset(out).encoding.fingerprint == fingerprint
    assert (both / "best").exists()


def test_mistakes_are_named_in_one_line(run, photos, tmp_path, capsys):
    new = tmp_path / "new"
    empty = tmp_path / "empty"
    empty.mkdir()
    for words, *arguments in (
        ("did you mean 'pocket-lgq'?", "train", "poket-lgq", "--data", photos, "--out", new),
        ("nowhere does not exist", "train", "pocket-lgq", "--data", "nowhere", "--out", new),
        ("nowhere does not exist", "encode", run, "--data", "nowhere", "--out", new),
        ("hold no image", "train", "pocket-lgq", "--data", empty, "--out", new),
        ("multiple of 8", "train", "pocket-lgq", "--data", photos, "--out", new, "--image-size", 30),
        ("did you mean 'tau_end'", "train", "pocket-lgq", "--data", photos, "--out", new, *TINY,
         "--quantizer-options", "tau_ed=1"),
        ("holds no run to resume", "train", "pocket-lgq", "--data", photos, "--out", new, "--resume", "must"),
        ("holds a run already", "train", "pocket-lgq", "--data", "sample", "--out", run, "--resume", "never"),
        ("there is no directory", "reconstruct", tmp_path / "gone", photos / "0.png", "--out", new),
        ("give --image-size", "encode", run / "best", "--data", photos, "--out", new),
        ("multiple of f = 2", "encode", run, "--data", photos, "--out", new, "--image-size", 15),
        ("none of 1 images can be read", "reconstruct", run, photos / "gone.png", "--out", new),
        ("at least one image", "reconstruct", run, "--out", new),
        ("empty", "decode", run, empty, "--out", new),
    ):  # fmt: skip
        assert words in refusal(capsys, *arguments)
        assert not new.exists(), arguments


def test_other_settings_do_not_continue_a_run(run, capsys):
    before = (run / "config.json").read_bytes()
    line = refusal(capsys, "train", "pocket-lgq", "--data", "sample", "--out", run, *TINY, "--steps", 2,
                   "--val-data", "sample:held-out", "--learning-rate", 1)  # fmt: skip
    assert "learning_rate (was 0.0003, now 1.0)" in line
    assert (run / "config.json").read_bytes() == before


def test_tokens_of_another_tokenizer_are_refused(run, photos, tmp_path, capsys):
    train(tmp_path / "other", "--seed", "1")
    main(["encode", str(run), "--data", str(photos), "--out", str(tmp_path / "tokens")])
    line = refusal(capsys, "decode", tmp_path / "other", tmp_path / "tokens", "--out", tmp_path / "images")
    assert "holds tokens of tokenizer" in line
    assert not (tmp_path / "images").exists()


def test_a_place_where_nothing_can_be_written_is_named(run, photos, tmp_path, capsys):
    (tmp_path / "file").write_text("in the way")
    out = tmp_path / "file" / "out"
    for arguments in (
        ["train", "pocket-lgq", "--data", "sample", *TINY],
        ["encode", run, "--data", photos],
        ["reconstruct", run, photos / "0.png"],
    ):
        assert "cannot " in refusal(capsys, *arguments, "--out", out)


def test_a_full_disk_is_named_and_the_run_goes_on_when_there_is_room(tmp_path, capsys, monkeypatch):
    from lgq import files

    with monkeypatch.context() as patch:
        patch.setattr(files.os, "write", _no_room)
        line = refusal(capsys, "train", "pocket-lgq", "--data", "sample", "--out", tmp_path / "run", *TINY)
    assert "No space left on device" in line
    train(tmp_path / "run")
    assert (tmp_path / "run" / "last" / "model.safetensors").exists()


def _no_room(*_):
    import errno
    import os

    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_diverged_run_ends_in_code_1_and_names_the_term(tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        train(tmp_path / "run", "--learning-rate", "1e30", steps=20)
    assert stop.value.code == 1
    assert "is not finite at step" in capsys.readouterr().err


def test_help_documents_every_field_of_a_run(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["train", "--help"])
    assert stop.value.code == 0
    shown = capsys.readouterr().out
    flags = "data codebook-size backbone.widths loss.lpips crop.flip steps schedule.kind minutes precision"
    for flag in flags.split():
        assert f"--{flag} " in shown


def test_a_tokenizer_is_not_overwritten_by_a_run(run, tmp_path, capsys):
    tokenizer = tmp_path / "tokenizer"
    shutil.copytree(run / "best", tokenizer)
    before = (tokenizer / "config.json").read_bytes()
    line = refusal(capsys, "train", "pocket-lgq", "--data", "sample", "--out", tokenizer, *TINY)
    assert "of no run" in line
    assert (tokenizer / "config.json").read_bytes() == before


def test_a_picture_that_cannot_be_written_ends_a_run_in_one_line(tmp_path, capsys):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "images").write_text("in the way")
    line = refusal(
        capsys, "train", "pocket-lgq", "--data", "sample", "--out", tmp_path / "run", *TINY, "--steps", 1
    )
    assert "cannot write to" in line


def test_names_with_brackets_are_shown_as_they_are(run, photos, tmp_path, capsys):
    odd = photos / "a[b][/i].png".replace("/", "_")
    shutil.copy(photos / "0.png", odd)
    main(["reconstruct", str(run), str(odd), "--out", str(tmp_path / "o[bold]ut")])
    printed = "".join(capsys.readouterr().out.split())
    assert "a[b][_i]-reconstructed.png" in printed
    assert "o[bold]ut" in printed


def test_no_data_is_not_the_present_directory(tmp_path, capsys):
    assert "no data is named" in refusal(
        capsys, "train", "pocket-lgq", "--data", "", "--out", tmp_path / "run"
    )


def test_ctrl_c_says_whether_the_command_goes_on(run, photos, tmp_path, capsys, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("lgq.inference.encode.open_dataset", interrupted)
    monkeypatch.setattr("lgq.cli.images.reconstruct", interrupted)
    for command, code in (
        (["encode", "--data", str(photos)], 75),
        (["reconstruct", str(photos / "0.png")], 130),
    ):
        with pytest.raises(SystemExit) as stop:
            main([command[0], str(run), *command[1:], "--out", str(tmp_path / "out")])
        assert stop.value.code == code
        assert ("continues" in capsys.readouterr().err) == (code == 75)


def test_an_error_of_the_system_is_one_line(run, tmp_path, capsys):
    (tmp_path / "out" / "best.png").mkdir(parents=True)
    line = refusal(
        capsys, "evaluate", run, "--data", "sample:held-out", "--images", 4, "--workers", 0,
        "--out", tmp_path / "out",
    )  # fmt: skip
    assert "best.png" in line
