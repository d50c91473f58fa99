"""Named runs: a scale and a quantizer, such as `pocket-lgq`; a generator is a scale alone, such as `pocket`.

A variant derives from one of them:

    run = replace(named_run("pocket-lgq"), codebook_size=4096)
    run = replace(named_generator("pocket"), label_dropout=0.2)
"""

import difflib
from collections.abc import Callable, Collection
from dataclasses import replace

from lgq.errors import LGQError
from lgq.models.autoencoder import Backbone
from lgq.models.transformer import TransformerSettings
from lgq.quantizers import QUANTIZERS
from lgq.training.losses import LossWeights
from lgq.training.settings import GeneratorRun, LoopSettings, Schedule, TokenizerRun


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
    _require_known("run", name, RUNS)
    scale, _, quantizer = name.partition("-")
    return SCALES[scale](quantizer)


def imagenet256_generator() -> GeneratorRun:
    """The paper's generator: 256 tokens of 16,384 codes, 1,000 classes, 51.3 M parameters."""
    return GeneratorRun(precision="bf16")


def pocket_generator() -> GeneratorRun:
    """The same for two CPU cores: 64 tokens of 1,024 codes, 1.6 M parameters and the classes."""
    return replace(
        imagenet256_generator(),
        # Deeper and wider ones take longer to look beyond the frequencies of tokens, in steps too.
        transformer=TransformerSettings(layers=3, width=192, heads=4, hidden=768, dropout=0.0),
        accumulate=1,
        learning_rate=1e-3,
        clip=1.0,
        schedule=Schedule(kind="cosine", warmup_steps=100),
        precision="float32",
        average_decay=0.998,
        validation_images=1_000,
        loop=LoopSettings(steps=9_000, validate_every=1_000, checkpoint_every=500, patience=10),
    )


GENERATORS: dict[str, Callable[[], GeneratorRun]] = {
    "pocket": pocket_generator,
    "imagenet256": imagenet256_generator,
}


def named_generator(name: str) -> GeneratorRun:
    """The settings of a generator, likewise."""
    _require_known("generator", name, GENERATORS)
    return GENERATORS[name]()


def _require_known(kind: str, name: str, known: Collection[str]) -> None:
    if name not in known:
        close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
        hint = f"did you mean {close[0]!r}?" if close else f"choose from {', '.join(known)}."
        raise LGQError(f"unknown {kind} {name!r}: {hint}")
