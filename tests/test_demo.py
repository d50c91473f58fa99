"""The demo with models so small that they learn nothing: what it leaves behind, and that it continues."""

import os
import signal
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
from PIL import Image

from lgq.data.tokens import TokenDataset
from lgq.demo import DemoResult, demo_generator, demo_run, run_demo
from lgq.models.autoencoder import Backbone
from lgq.models.transformer import TransformerSettings
from lgq.tokenizer import Tokenizer
from lgq.training.generator_trainer import GeneratorTrainer
from lgq.training.journal import read_records
from lgq.training.tokenizer_trainer import TokenizerTrainer

TINY = replace(
    demo_run(),
    codebook_size=24,
    backbone=Backbone(widths=(4, 4, 4), blocks=1, groups=2, attention_heads=0, latent_channels=8),
    batch_size=2,
    schedule=replace(demo_run().schedule, warmup_steps=1),
    loop=replace(demo_run().loop, steps=4, log_every=1, validate_every=4, checkpoint_every=4),
)
TINY_GENERATOR = replace(
    demo_generator(),
    transformer=TransformerSettings(layers=1, width=8, heads=1, hidden=8),
    batch_size=2,
    schedule=replace(demo_generator().schedule, warmup_steps=1),
    validation_images=4,
    loop=replace(demo_generator().loop, steps=3, log_every=1, validate_every=3, checkpoint_every=3),
)
DIRECTORIES = {"run", "tokens", "generator"}
STEMS = (
    "codebook inpainting photograph-chelsea photograph-rocket reconstructions samples tokens training usage"
)
PICTURES = {f"{stem}.png" for stem in STEMS.split()}


class Demo(NamedTuple):
    out: Path
    finished: DemoResult

    def validation(self, run: str) -> dict[str, float]:
        """Values of the only validation of a run."""
        (values,) = (r["values"] for r in read_records(self.out / run) if r["split"] == "validation")
        return values


def interrupted_demo(out: Path, trainer: type[TokenizerTrainer] | type[GeneratorTrainer]) -> None:
    """Run a demo that Ctrl-C stops in the second step of this trainer."""
    plain = trainer.train_step

    def interrupted_step(self, step: int):
        if step == 1:
            os.kill(os.getpid(), signal.SIGINT)
        return plain(self, step)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer, "train_step", interrupted_step)
        result = run_demo(out, TINY, TINY_GENERATOR)
    assert (result.outcome.reason, result.outcome.step) == ("interrupted", 2)
    assert result.values == {}
    assert result.pictures == result.sentences() == []


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    """A demo that was interrupted while its tokenizer learned and while its generator did."""
    out = tmp_path_factory.mktemp("demo") / "out"
    interrupted_demo(out, TokenizerTrainer)
    assert {path.name for path in out.iterdir()} == {"run"}
    interrupted_demo(out, GeneratorTrainer)
    return Demo(out, run_demo(str(out), TINY, TINY_GENERATOR))


def test_the_same_call_continues_to_the_end(demo):
    assert (demo.finished.outcome.reason, demo.finished.outcome.step) == ("finished", 3)
    for run, count in (("run", 4), ("generator", 3)):
        steps = [record["step"] for record in read_records(demo.out / run) if record["split"] == "train"]
        assert steps == list(range(1, count + 1))


def test_every_picture_is_written_and_has_a_sentence(demo):
    paths = [picture.path for picture in demo.finished.pictures]
    assert {path.name for path in demo.out.iterdir()} == {*PICTURES, *DIRECTORIES, "view.html"}
    assert sorted(paths) == sorted(demo.out / name for name in (*PICTURES, "view.html"))
    *pictures, page = demo.finished.pictures
    assert "<title>lgq view</title>" in page.path.read_text()
    for path, caption in pictures:
        with Image.open(path) as image:
            image.load()
            assert image.format == "PNG"
            assert image.width > 400
        assert caption[0].isupper()
        assert caption.endswith(".")


def test_values_are_those_of_the_last_validation_and_fit_the_saved_weights(demo):
    values, tokenizer = demo.finished.values, Tokenizer.from_pretrained(demo.out / "run" / "last")
    # The validation sees the same held-out tiles and computes by itself.
    validation = demo.validation("run")
    for name in ("psnr", "ssim", "l1"):
        assert values[name] == pytest.approx(validation[name], rel=1e-4)
    # Codes of the training photographs come on top.
    assert values["utilization"] >= validation["utilization"]
    assert values["codes"] == tokenizer.codebook_size == 24
    assert values["dead_codes"] == pytest.approx(24 * (1 - values["utilization"]))
    assert values["perplexity"] <= 24 - values["dead_codes"]
    assert values["tokens"] == (32 // 4) ** 2
    assert values["parameters"] == sum(tokenizer.parameter_counts().values())


def test_the_accuracy_is_that_of_the_last_validation_beside_a_guess_by_frequency(demo):
    assert demo.finished.values["accuracy"] == demo.validation("generator")["accuracy"]
    tokens = TokenDataset(demo.out / "tokens")
    codes = [Counter() for _ in tokens.classes]
    for item in tokens:
        codes[item.label].update(item.tokens.flatten().tolist())
    guessed = sum(max(counts.values(), default=0) for counts in codes)
    assert demo.finished.values["guess_accuracy"] == guessed / (64 * len(tokens))


def test_the_sentences_say_the_values_in_plain_words(demo):
    text, values = " ".join(demo.finished.sentences()), demo.finished.values
    for words in (
        "1,024 pixels into 64 tokens, each one of 24 codes",
        f"PSNR of {values['psnr']:.1f} dB",
        f"choosing among {values['perplexity']:.0f} equally likely codes",
        f"right {100 * values['accuracy']:.0f} times in 100",
    ):
        assert words in text
    assert "nats" not in text


def test_a_finished_demo_called_again_trains_no_more_and_draws_the_same(demo):
    before = {path: path.read_bytes() for path in demo.out.glob("*.png")}
    again = run_demo(demo.out, TINY, TINY_GENERATOR)
    assert again.outcome == demo.finished.outcome
    assert again.values == demo.finished.values
    assert {path: path.read_bytes() for path in demo.out.glob("*.png")} == before
