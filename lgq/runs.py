"""Named runs: a scale and a quantizer, such as `pocket-lgq`; a variant derives from one of them.

run = replace(named_run("pocket-lgq"), codebook_size=4096)
"""

import difflib
from collections.abc import Callable
from dataclasses import replace

from lgq.models.autoencoder import Backbone
from lgq.quantizers import QUANTIZERS
from lgq.training.losses import LossWeights
from lgq.training.recipe import TokenizerRun
from lgq.training.stopping import LoopSettings


def imagenet256(quantizer: str) -> TokenizerRun:
    """The paper's run, of which it starts four processes: 256 x 256 pixels, f = 16, K = 16,384.

    The paper gives no number of steps. These are 50 epochs of ImageNet at 4 x 8 images, each with a
    validation on the 10,000 images that its rFID takes.
    """
    return TokenizerRun(
        quantizer=quantizer,
        precision="bf16",
        channels_last=True,
        validation_images=10_000,
        loop=LoopSettings(steps=2_000_000, validate_every=40_000, checkpoint_every=5_000),
    )


def pocket(quantizer: str) -> TokenizerRun:
    """The same for two CPU cores: 64 x 64 pixels, f = 8, K = 1,024; 1.9 M parameters and the codes.

    32 images of 64 tokens give the quantizer 2,048 tokens a step, as many as the paper's ranks.
    """
    return replace(
        imagenet256(quantizer),
        codebook_size=1_024,
        backbone=Backbone(widths=(32, 64, 96, 128), blocks=1, groups=8),
        image_size=64,
        batch_size=32,
        # Decoding takes 1% of a step, and a worker takes its core from the trainer's two threads.
        workers=0,
        loss=LossWeights(lpips=0.0, gan=0.0),
        precision="float32",
        validation_images=1_000,
        best_by="l1",
        loop=LoopSettings(steps=10_000, validate_every=500, checkpoint_every=500),
    )


SCALES: dict[str, Callable[[str], TokenizerRun]] = {"pocket": pocket, "imagenet256": imagenet256}

RUNS = tuple(f"{scale}-{quantizer}" for scale in SCALES for quantizer in QUANTIZERS)
"""Every name that `named_run` knows."""


def named_run(name: str) -> TokenizerRun:
    """The settings of a run, to train as they are or to derive from with `dataclasses.replace`."""
    if name not in RUNS:
        close = difflib.get_close_matches(name, RUNS, n=1, cutoff=0.5)
        hint = f"did you mean {close[0]!r}?" if close else f"choose from {', '.join(RUNS)}."
        raise ValueError(f"unknown run {name!r}: {hint}")
    scale, _, quantizer = name.partition("-")
    return SCALES[scale](quantizer)
