"""Runs that take a second, on five small pictures."""

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from leftovers import last_state, timeless_records
from PIL import Image
from torch import Tensor

from lgq.data import FolderDataset
from lgq.models.autoencoder import Backbone
from lgq.training.loop import Outcome
from lgq.training.losses import LossWeights
from lgq.training.settings import LoopSettings, Schedule, TokenizerRun
from lgq.training.tokenizer_trainer import train as train_tokenizer
from lgq.training.trainer import Trainer

TINY = TokenizerRun(
    codebook_size=16,
    backbone=Backbone(
        widths=(4, 8), blocks=1, groups=2, attention_heads=0, latent_channels=4, latent_groups=2
    ),
    image_size=12,
    batch_size=2,
    workers=0,
    loss=LossWeights(lpips=0.0, gan=0.0),
    learning_rate=1e-2,
    validation_images=3,
    best_by="l1",
    loop=LoopSettings(steps=6, log_every=1, validate_every=3, checkpoint_every=2),
)
EVERYTHING = replace(
    TINY,
    image_size=24,
    loss=LossWeights(lpips=0.0, gan=0.1, discriminator_start=2, adaptive_gan=True),
    schedule=Schedule(kind="cosine", warmup_steps=2),
    average_decay=0.9,
    accumulate=2,
    clip=0.5,
    channels_last=True,
)
RESTARTING = replace(TINY, quantizer="vq", quantizer_options={"restart_below": 0.9})
RUNS = {
    "lgq": TINY,
    "vq that restarts codes": RESTARTING,
    "discriminator, average, accumulation": EVERYTHING,
}


def paint_photos(folder: Path, count: int = 5) -> Path:
    folder.mkdir(exist_ok=True)
    random = np.random.default_rng(0)
    for i in range(count):
        coarse = Image.fromarray(random.integers(0, 256, (4, 4, 3), dtype=np.uint8))
        coarse.resize((28, 28)).save(folder / f"{i}.png")
    return folder


def train(run: TokenizerRun, photos: Path, out: Path, **options: Any) -> Outcome:
    return train_tokenizer(run, FolderDataset(photos), out, **options)


def before_step(step: int, action: Callable[[Trainer], object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every trainer do something before it takes step `step`."""
    train_step = Trainer.train_step

    def patched(self: Trainer, now: int) -> dict[str, Tensor]:
        if now == step:
            action(self)
        return train_step(self, now)

    monkeypatch.setattr(Trainer, "train_step", patched)


def terminate(_: Trainer) -> None:
    """Ask this process to stop, as a scheduler does."""
    os.kill(os.getpid(), signal.SIGTERM)


def left_by(out: Path) -> dict[str, Any]:
    """The last state, all records, weights and pictures of a run, but times."""
    weights = {name: (out / name / "model.safetensors").read_bytes() for name in ("best", "last")}
    images = {path.name: path.read_bytes() for path in (out / "images").iterdir()}
    return {"state": last_state(out), "records": timeless_records(out), "weights": weights, "images": images}
