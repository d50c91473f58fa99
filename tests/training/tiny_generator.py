"""A generator that trains in a second, on nine images of 2 x 2 tokens."""

from functools import cache
from pathlib import Path
from typing import Any

import torch
from token_sets import write_tokens

from lgq.data.tokens import TokenDataset
from lgq.models.autoencoder import Backbone
from lgq.models.sampling import Sampling
from lgq.models.transformer import TransformerSettings
from lgq.tokenizer import Tokenizer
from lgq.training.generator_trainer import train_generator
from lgq.training.loop import Outcome
from lgq.training.settings import GeneratorRun, LoopSettings, Schedule

CODES = 6
TINY = GeneratorRun(
    transformer=TransformerSettings(layers=1, width=16, heads=2, hidden=16, dropout=0.1),
    batch_size=2,
    accumulate=2,
    learning_rate=1e-2,
    schedule=Schedule(kind="cosine", warmup_steps=2),
    average_decay=0.9,
    clip=0.5,
    validation_images=5,
    sample_images=3,
    sampling=Sampling(steps=2),
    loop=LoopSettings(steps=6, log_every=1, validate_every=3, checkpoint_every=2),
)


@cache
def tokenizer(seed: int = 0, **options: Any) -> Tokenizer:
    torch.manual_seed(seed)
    backbone = Backbone(
        widths=(4, 8), blocks=1, groups=2, attention_heads=0, latent_channels=4, latent_groups=2
    )
    return Tokenizer(backbone, codebook_size=CODES, **options).eval()


def draw_tokens(folder: Path, images: int = 9, side: int = 2, **options: Any) -> TokenDataset:
    """Write random tokens of two classes, and of one image without a class."""
    drawn = torch.randint(CODES, (images, side, side), generator=torch.Generator().manual_seed(images))
    settings = {
        "labels": [-1] + [i % 2 for i in range(1, images)],
        "classes": ("cat", "dog"),
        "flipped": drawn.flip(2),
        "fingerprint": tokenizer().fingerprint(),
    }
    return write_tokens(folder, drawn, **(settings | options))


def train(run: GeneratorRun, tokens: TokenDataset, out: Path, **options: Any) -> Outcome:
    return train_generator(run, tokens, out, tokenizer=tokenizer(), **options)
