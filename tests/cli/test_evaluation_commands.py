"""`lgq evaluate` and `lgq weights` as a user types them."""

import json

import pytest
import torch
from cheap_inception import use_cheap_networks
from command_line import lgq as command
from command_line import mistake
from PIL import Image

import lgq
from lgq import Tokenizer, weights
from lgq.cli.evaluate import _TOKENIZER_COLUMNS
from lgq.models.autoencoder import Backbone
from lgq.results import read_results

IMAGES = ["--data", "sample:held-out", "--images", "6", "--image-size", "32", "--workers", "0"]
PAPER = {"psnr", "ssim", "lpips", "reconstruction_loss", "rfid", "utilization", "perplexity"}


@pytest.fixture
def tokenizer(tmp_path):
    torch.manual_seed(0)
    Tokenizer(Backbone(widths=(8, 16), groups=4, blocks=1), codebook_size=32).save_pretrained(tmp_path / "t")
    return tmp_path / "t"


@pytest.fixture
def no_weights(tmp_path, monkeypatch):
    monkeypatch.setenv("LGQ_CACHE", str(tmp_path / "cache"))


@pytest.mark.usefixtures("no_weights")
def test_an_evaluation_is_printed_recorded_and_drawn_with_the_metrics_that_have_their_weights(
    tokenizer, capsys
):
    for _ in range(2):
        command("evaluate", tokenizer, *IMAGES)
    printed = capsys.readouterr()
    assert "6 images of 32 x 32 pixels" in printed.out
    assert "PSNR" in printed.out
    assert "no lpips" in printed.err
    assert "run `lgq weights fetch`" in printed.err
    first, second = read_results(tokenizer / "evaluation" / "results.jsonl")
    assert first["metrics"] == second["metrics"]
    assert PAPER - first["metrics"].keys() == {"lpips", "reconstruction_loss", "rfid"}
    assert {"lpips", "rfid"} <= first["absent"].keys()
    assert (first["images"], first["image_size"]) == (6, 32)
    assert first["command"] == ["lgq", "evaluate", str(tokenizer), *IMAGES]
    assert first["weights"] == str(tokenizer)
    assert first["fingerprint"] == Tokenizer.from_pretrained(tokenizer).fingerprint()
    for kind in ("best", "median", "worst"):
        with Image.open(tokenizer / "evaluation" / f"{kind}.png") as picture:
            assert picture.width > 6 * 32


def test_errors_are_printed_below_their_values(tokenizer, tmp_path, monkeypatch, capsys):
    use_cheap_networks(monkeypatch, tmp_path / "cache")
    command("evaluate", tokenizer, *IMAGES, "--resamples", "4", "--json")
    printed = capsys.readouterr()
    record = json.loads(printed.out)
    errors = record["bootstrap_std"] | record["standard_error"]
    for name in ("psnr", "ssim", "rfid"):
        assert f"± {_TOKENIZER_COLUMNS[name][1](errors[name])}" in printed.err
    assert f"± {1000 * errors['kid']:.3f}" in printed.err
    assert "± standard error over the images" in printed.err
    assert "record, scores of each image and pictures" in printed.err


@pytest.mark.parametrize(("perplexity", "text"), [(9.84, "9.8"), (1234.5, "1,234")])
def test_a_perplexity_of_few_codes_has_tenths(perplexity, text):
    heading, as_text = _TOKENIZER_COLUMNS["perplexity"]
    assert (heading, as_text(perplexity)) == ("perplexity", text)


@pytest.mark.usefixtures("no_weights")
def test_the_command_prints_what_the_library_returns(tokenizer, capsys):
    command("evaluate", tokenizer, *IMAGES, "--geometry", "pca", "--json")
    record = lgq.evaluate(tokenizer, "sample:held-out", images=6, image_size=32, workers=0, geometry="pca")
    assert capsys.readouterr().out.strip() == record.to_json()
    printed, returned = read_results(tokenizer / "evaluation" / "results.jsonl")
    assert printed == returned == json.loads(record.to_json())
    assert record.metrics == printed["metrics"]
    assert record.absent == printed["absent"] | printed["geometry"]["absent"]
    assert record.draw().keys() == {"best", "median", "worst", "usage", "atlas", "norms", "overlay"}


@pytest.mark.usefixtures("no_weights")
def test_a_model_without_a_directory_is_measured_and_nothing_is_recorded(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    command("evaluate", "photo-f8", "--data", "sample:held-out", "--images", "2", "--image-size", "32")
    printed = capsys.readouterr()
    assert "PSNR" in printed.out
    assert "record" not in printed.err
    assert list(tmp_path.iterdir()) == []


def test_the_name_of_a_file_is_refused_where_a_directory_is_meant(tokenizer, tmp_path, capsys):
    line = mistake(capsys, "evaluate", tokenizer, *IMAGES, "--out", tmp_path / "eval.json")
    assert "--out is a directory" in line
    assert "eval.json: give a name without .json; --json prints the record" in line
    assert not (tmp_path / "eval.json").exists()


@pytest.mark.skipif(
    any(weights.status()[name] != "here" for name in ("lpips-vgg16", "inception-fid")),
    reason="needs weights of other networks: lgq weights fetch",
)
def test_with_the_weights_every_column_of_the_paper_is_there(tokenizer, capsys):
    command("evaluate", tokenizer, *IMAGES, "--json")
    record = json.loads(capsys.readouterr().out)
    assert record["metrics"].keys() >= PAPER | {"kid", "precision", "recall"}
    assert record["fid"]["images"] == record["fid"]["reference_images"] == 6
    assert len(record["fid"]["weights_sha256"]) == 64


@pytest.mark.usefixtures("no_weights")
def test_the_state_of_the_weights_is_shown_with_the_way_to_have_them(capsys):
    command("weights", "status")
    *lines, cache = capsys.readouterr().out.splitlines()
    assert cache == f"cache: {weights.cache_directory()}"
    for line, (name, known) in zip(lines, weights.SETS.items(), strict=True):
        # Whole names and commands, however wide the terminal: they are there to be copied.
        assert line.startswith(f"{name} ")
        assert line.endswith(f": {known.command}")


@pytest.mark.usefixtures("no_weights")
def test_a_file_that_holds_no_weights_is_refused(tmp_path, capsys):
    (tmp_path / "file.pth").write_bytes(b"no weights")
    assert "none of the files that can be imported" in mistake(
        capsys, "weights", "import", tmp_path / "file.pth"
    )
