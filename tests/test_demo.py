"""The demo, with a model so small that it learns nothing: what it leaves behind, and that it goes on."""

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
from PIL import Image

from lgq.demo import DemoResult, demo_run, run_demo
from lgq.models.autoencoder import Backbone
from lgq.tokenizer import Tokenizer
from lgq.training.journal import read_records
from lgq.training.tokenizer import TokenizerTraining

TINY = replace(
    demo_run(),
    codebook_size=24,
    backbone=Backbone(widths=(4, 4, 4), blocks=1, groups=2, attention_heads=0, latent_channels=8),
    batch_size=2,
    schedule=replace(demo_run().schedule, warmup_steps=1),
    loop=replace(demo_run().loop, steps=4, log_every=1, validate_every=4, checkpoint_every=4),
)
PICTURES = {
    "codebook.png",
    "photograph-chelsea.png",
    "photograph-rocket.png",
    "reconstructions.png",
    "tokens.png",
    "training.png",
    "usage.png",
}


class Demo(NamedTuple):
    out: Path
    interrupted: DemoResult
    left_by_the_interrupted: set[str]
    finished: DemoResult


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    """A demo that is stopped in its second step, as by Ctrl-C, and called again."""
    out = tmp_path_factory.mktemp("demo") / "out"
    plain = TokenizerTraining.train_step

    def interrupted_step(self: TokenizerTraining, step: int):
        if step == 1:
            os.kill(os.getpid(), signal.SIGINT)
        return plain(self, step)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TokenizerTraining, "train_step", interrupted_step)
        interrupted = run_demo(out, TINY)
    left = {path.name for path in out.iterdir()}
    return Demo(out, interrupted, left, run_demo(str(out), TINY))


def test_an_interrupted_demo_says_so_and_draws_nothing(demo):
    assert (demo.interrupted.outcome.reason, demo.interrupted.outcome.step) == ("interrupted", 2)
    assert demo.interrupted.values == {}
    assert demo.interrupted.pictures == demo.interrupted.rows() == []
    assert demo.left_by_the_interrupted == {"run"}


def test_the_same_call_goes_on_to_the_end(demo):
    assert (demo.finished.outcome.reason, demo.finished.outcome.step) == ("finished", 4)
    steps = [record["step"] for record in read_records(demo.out / "run") if record["split"] == "train"]
    assert steps == [1, 2, 3, 4]


def test_every_picture_is_written_and_has_a_sentence(demo):
    paths = [picture.path for picture in demo.finished.pictures]
    assert {path.name for path in demo.out.iterdir()} == PICTURES | {"run"}
    assert sorted(paths) == sorted(demo.out / name for name in PICTURES)
    for path, caption in demo.finished.pictures:
        with Image.open(path) as image:
            image.load()
            assert image.format == "PNG"
            assert image.width > 500
        assert caption[0].isupper()
        assert caption.endswith(".")


def test_values_are_those_of_the_last_validation(demo):
    """Which sees the same held-out tiles, and computes on its own."""
    (validation,) = (r["values"] for r in read_records(demo.out / "run") if r["split"] == "validation")
    for name in ("psnr", "ssim", "l1"):
        assert demo.finished.values[name] == pytest.approx(validation[name], rel=1e-4)
    # Codes of the training photographs come on top.
    assert demo.finished.values["utilization"] >= validation["utilization"]


def test_values_fit_one_another_and_the_saved_weights(demo):
    values, tokenizer = demo.finished.values, Tokenizer.from_pretrained(demo.out / "run" / "last")
    assert values["codes"] == tokenizer.codebook_size == 24
    assert values["dead_codes"] == pytest.approx(24 * (1 - values["utilization"]))
    assert values["perplexity"] <= 24 - values["dead_codes"]
    assert values["tokens"] == (32 // 4) ** 2
    assert values["parameters"] == sum(tokenizer.parameter_counts().values())


def test_the_table_shows_the_values(demo):
    table = dict(demo.finished.rows())
    assert f"{demo.finished.values['psnr']:.2f} dB" in table.values()
    assert f"{demo.finished.values['utilization']:.1%}" in table.values()
    assert table["tokens an image"] == "64"


def test_a_finished_demo_called_again_trains_no_more_and_draws_the_same(demo):
    before = {path: path.read_bytes() for path in demo.out.glob("*.png")}
    again = run_demo(demo.out, TINY)
    assert again.outcome == demo.finished.outcome
    assert again.values == demo.finished.values
    assert {path: path.read_bytes() for path in demo.out.glob("*.png")} == before
