"""The benchmark of a training step measures what it claims to."""

import json
from dataclasses import replace

import pytest
import torch

from lgq.bench import train
from lgq.bench.train import PARTS, OnOneBatch, TrainBenchmark, plain_step, shares_of_parts
from lgq.cli import main
from lgq.data import open_dataset
from lgq.models.autoencoder import Backbone
from lgq.runs import named_run
from lgq.training.losses import LossWeights

RUN = replace(
    named_run("pocket-lgq"),
    image_size=16,
    backbone=Backbone(widths=(8, 16), blocks=1, groups=4, latent_channels=8),
    codebook_size=16,
    batch_size=2,
    loss=LossWeights(lpips=0.0, gan=0.0),
)


@pytest.fixture
def trainers(tmp_path):
    data = open_dataset("sample")
    return [OnOneBatch(RUN, data, data, tmp_path) for _ in range(2)]


def test_measured_steps_learn_the_same_and_every_part_takes_time(trainers):
    measured, unmeasured = trainers
    shares = shares_of_parts(measured, steps=2)
    assert tuple(shares) == PARTS
    assert all(share > 0 for share in shares.values())
    assert sum(shares.values()) == pytest.approx(1)
    first = unmeasured._next_images()
    for step in range(2):
        unmeasured.train_step(step)
    assert unmeasured._next_images() is first
    pairs = zip(measured.tokenizer.parameters(), unmeasured.tokenizer.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("quantizer", ["lgq", "fsq"])
def test_the_plain_model_learns(trainers, quantizer):
    step = plain_step(replace(RUN, quantizer=quantizer), trainers[0]._next_images())
    losses = [float(step(i)) for i in range(20)]
    assert losses[-1] < 0.9 * losses[0]


def test_the_command_measures_every_variant(capsys):
    main(["bench", "train", "--batch-size", "1", "--steps", "1", "--rounds", "1", "--json"])
    printed = capsys.readouterr()
    rows = json.loads(printed.out)["rows"]
    assert tuple(row["variant"] for row in rows) == train.plan(TrainBenchmark())
    assert rows[0]["over_plain"] == rows[1]["over_cached"] == 1
    assert rows[0]["shares"] is None
    assert rows[2]["shares"].keys() == set(PARTS)
    assert "Training step" in printed.err
