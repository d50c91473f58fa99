"""The benchmark of a training step measures what it says."""

import json
from dataclasses import replace

import pytest
import torch

from lgq.bench import train
from lgq.bench.contestants import DENSE
from lgq.bench.stopwatch import PARTS, timed_by_part
from lgq.bench.tables import of_training
from lgq.bench.train import OnOneBatch, OnRows, TrainBenchmark, plain_step
from lgq.cli import main
from lgq.data import open_dataset
from lgq.models.autoencoder import Backbone
from lgq.quantizers import build_quantizer
from lgq.runs import named_run
from lgq.training.trainer import prepare_accelerator

RUN = replace(
    named_run("pocket-lgq"),
    image_size=16,
    backbone=Backbone(widths=(8, 16), blocks=1, groups=4, latent_channels=8),
    codebook_size=16,
    batch_size=2,
    workers=0,
    precision="float32",
)


@pytest.fixture
def training(tmp_path):
    data = open_dataset("sample")
    return OnOneBatch(RUN, data, data, tmp_path, prepare_accelerator())


def test_every_part_of_a_step_has_its_time(training):
    seconds = timed_by_part(training, steps=2)
    assert tuple(seconds) == PARTS
    assert all(time > 0 for time in seconds.values())


def test_a_measured_step_learns_what_an_unmeasured_one_learns(training, tmp_path):
    data = open_dataset("sample")
    unmeasured = OnOneBatch(RUN, data, data, tmp_path, prepare_accelerator())
    timed_by_part(training, steps=2)
    for step in range(2):
        unmeasured.train_step(step)
    pairs = zip(training.tokenizer.parameters(), unmeasured.tokenizer.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_one_batch_is_trained_on_over_and_over(training):
    first = training.images()
    training.train_step(0)
    assert training.images() is first
    assert len(training.describe_batch()) == 0


def test_the_plain_model_learns(training):
    step = plain_step(RUN, training.images())
    losses = [float(step(i)) for i in range(20)]
    assert losses[-1] < 0.9 * losses[0]


def test_the_plain_quantizer_takes_images_of_latents():
    z = torch.randn(2, 8, 3, 4)
    formula = DENSE["lgq"](8, 16)
    quantized, indices, _ = OnRows(formula)(z)
    ours = build_quantizer("lgq", 8, 16, channel_dim=1)
    ours.codebook.data.copy_(formula.codebook)
    torch.testing.assert_close(quantized, ours(z).quantized)
    assert torch.equal(indices.view(2, 3, 4), ours(z).indices)


def test_the_command_measures_every_contestant(capsys):
    main(["bench", "train", "--batch-size", "1", "--steps", "1", "--rounds", "1", "--json"])
    printed = capsys.readouterr()
    rows = json.loads(printed.out)["rows"]
    assert [row["contestant"] for row in rows] == ["plain", "float32", "cached", "with data"]
    assert len(rows) == train.CONTESTANTS
    assert rows[0]["over_plain"] == rows[2]["over_cached"] == 1
    assert rows[0]["shares"] is None
    assert sum(rows[3]["shares"].values()) == pytest.approx(1)
    assert "A training step" in printed.err


def test_mistakes_are_named():
    with pytest.raises(ValueError, match="steps must be at least 1"):
        list(train.run(TrainBenchmark(steps=0)))
    with pytest.raises(ValueError, match="unknown run 'nope'"):
        list(train.run(TrainBenchmark(name="nope")))
    assert of_training([]).row_count == 0
