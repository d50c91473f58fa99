"""Named runs: a scale and a quantizer, such as `pocket-lgq`; a generator is a scale alone, such as `pocket`.

A scale (`smoke`, `pocket`, `imagenet256`) is one protocol for `lgq train`, `lgq.run` and the experiments,
defined here and nowhere else:

    run = lgq.run("pocket-lgq", codebook_size=4096, steps=2_000)
    run = lgq.run("pocket", label_dropout=0.2)
"""

import difflib
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, Literal, TypeVar

from lgq.checks import require_known
from lgq.config import ConfigError, from_json, keeps_prefix, to_json
from lgq.errors import LGQError, rename_settings
from lgq.models.autoencoder import Backbone
from lgq.models.sampling import Sampling
from lgq.models.transformer import TransformerSettings
from lgq.quantizers import QUANTIZERS, require_quantizer
from lgq.training.losses import LossWeights
from lgq.training.settings import GeneratorRun, LoopSettings, Schedule, TokenizerRun

AnyRun = TypeVar("AnyRun", TokenizerRun, GeneratorRun)


def imagenet256(quantizer: str) -> TokenizerRun:
    """The paper's run, to be started with four processes: 256 x 256 pixels, f = 16, K = 16,384.

    The paper gives no number of steps. These are 50 epochs of ImageNet at 4 x 8 images, each with a
    validation on the 10,000 images of the paper's rFID.
    """
    return TokenizerRun(
        quantizer=quantizer,
        quantizer_options=scale_options("imagenet256", quantizer),
        precision="bf16",
        channels_last=True,
        validation_images=10_000,
        loop=LoopSettings(steps=2_000_000, validate_every=40_000, checkpoint_every=5_000),
    )


def pocket(quantizer: str, *, budget: Literal["full", "table"] = "full") -> TokenizerRun:
    """The same for two CPU cores: 64 x 64 pixels, f = 8, K = 1,024; 1.9 M parameters and the codes.

    32 images of 64 tokens give the quantizer 2,048 tokens per step, as many as a process of the paper's run.

    budget: "table" is how experiments train a row: a tenth of the steps, with one checkpoint kept. All other
        settings are the same.
    """
    run = replace(
        imagenet256(quantizer),
        codebook_size=1_024,
        quantizer_options=scale_options("pocket", quantizer),
        backbone=Backbone(widths=(32, 64, 96, 128), blocks=1, groups=8),
        image_size=64,
        batch_size=32,
        # Decoding takes 1% of a step, and a worker would take its core from the trainer's two threads.
        workers=0,
        loss=LossWeights(lpips=0.0, gan=0.0),
        precision="float32",
        validation_images=1_000,
        best_by="l1",
        loop=LoopSettings(steps=10_000, validate_every=500, checkpoint_every=500),
    )
    if budget == "full":
        return run
    return replace(run, loop=LoopSettings(steps=1_000, validate_every=250, checkpoint_every=250, keep=1))


def smoke(quantizer: str) -> TokenizerRun:
    """Pocket in seconds, to try that all works: 16 x 16 pixels, 16 tokens of 32 codes, four steps."""
    return replace(
        pocket(quantizer),
        codebook_size=32,
        quantizer_options=scale_options("smoke", quantizer),
        backbone=Backbone(
            widths=(4, 8, 8), blocks=1, groups=2, attention_heads=0, latent_channels=8, latent_groups=2
        ),
        image_size=16,
        batch_size=4,
        validation_images=8,
        loop=LoopSettings(steps=4, log_every=1, validate_every=2, checkpoint_every=2),
    )


def imagenet256_generator() -> GeneratorRun:
    """The paper's generator: 256 tokens of 16,384 codes, 1,000 classes, 51.3 M parameters."""
    return GeneratorRun(precision="bf16")


def pocket_generator() -> GeneratorRun:
    """The same for two CPU cores: 64 tokens of 1,024 codes, 1.6 M parameters and the classes."""
    return replace(
        imagenet256_generator(),
        # Deeper and wider networks need more steps before they learn more than token frequencies.
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


def smoke_generator() -> GeneratorRun:
    """The pocket generator in seconds, for the tokens of `smoke`."""
    return replace(
        pocket_generator(),
        transformer=TransformerSettings(layers=1, width=16, heads=2, hidden=16),
        batch_size=4,
        schedule=Schedule(warmup_steps=1),
        validation_images=8,
        sample_images=2,
        sampling=Sampling(steps=2),
        loop=LoopSettings(steps=4, log_every=1, validate_every=2, checkpoint_every=2),
    )


SCALES: dict[str, Callable[[str], TokenizerRun]] = {
    "pocket": pocket,
    "imagenet256": imagenet256,
    "smoke": smoke,
}
"""Scale to the tokenizer run of a quantizer."""

GENERATORS: dict[str, Callable[[], GeneratorRun]] = {
    "pocket": pocket_generator,
    "imagenet256": imagenet256_generator,
    "smoke": smoke_generator,
}
"""Scale to its generator run."""


def tokenizer_names() -> tuple[str, ...]:
    """Names of all tokenizer runs: every scale with every registered quantizer."""
    return tuple(f"{scale}-{quantizer}" for scale in SCALES for quantizer in QUANTIZERS)


def generator_names() -> tuple[str, ...]:
    """Names of all generator runs: every scale."""
    return tuple(GENERATORS)


def named_run(name: str) -> TokenizerRun:
    """Return the tokenizer run of that name."""
    scale, _, quantizer = name.partition("-")
    if scale in SCALES and quantizer:
        require_quantizer(quantizer)
    if name not in tokenizer_names():
        close = difflib.get_close_matches(name, tokenizer_names(), n=1)
        names = [known for known in tokenizer_names() if scale not in SCALES or known.startswith(scale)]
        choice = f"choose from {', '.join(names)}."
        hint = f"did you mean {close[0]!r}?" if close and scale not in SCALES else choice
        raise LGQError(f"unknown run {name!r}: {hint}")
    return SCALES[scale](quantizer)


def named_generator(name: str) -> GeneratorRun:
    """Return the generator run of that name."""
    if name not in GENERATORS:
        close = difflib.get_close_matches(name, GENERATORS, n=1, cutoff=0.5)
        hint = f"did you mean {close[0]!r}? There are" if close else "choose from"
        raise LGQError(f"unknown generator {name!r}: {hint} {', '.join(GENERATORS)}.")
    return GENERATORS[name]()


def run(name: str, **changes: Any) -> TokenizerRun | GeneratorRun:
    """Return a named run with changes: `pocket-lgq` is a tokenizer's, `pocket` a generator's.

    changes: settings by the names of their options on the command line, such as `steps` or `codebook_size`.
        Nested settings are given by a dotted name or as a mapping, such as `loss={"l1": 10.0}`, which keeps
        the settings that it does not name.
    """
    return changed(GENERATORS[name](), changes) if name in GENERATORS else changed(named_run(name), changes)


def changed(run: AnyRun, changes: Mapping[str, Any]) -> AnyRun:
    """Return a run with some settings changed, by their option names; names and values are checked."""
    values, options = to_json(run), _option_paths(run)
    for option, value in changes.items():
        require_known("setting", option, options)
        *sections, name = options[option]
        section = values
        for part in sections:
            section = section[part]
        value = to_json(value) if is_dataclass(value) else value
        partly = isinstance(value, Mapping) and isinstance(section[name], dict)
        section[name] = section[name] | dict(value) if partly else value
    try:
        return from_json(type(run), values)
    except ConfigError as error:
        # By the names that `changes` has, such as `steps` for `loop.steps`.
        short = {
            ".".join(path): option for option, path in options.items() if len(option) < len(".".join(path))
        }
        error.args = (rename_settings(str(error), lambda name: short.get(name) and f"`{short[name]}`"),)
        raise


def scale_options(scale: str, quantizer: str) -> dict[str, Any]:
    """Return the options that a quantizer's class sets for a scale; none where it says nothing."""
    defaults: Mapping[str, Mapping[str, Any]] = getattr(QUANTIZERS.get(quantizer), "scale_defaults", {})
    return dict(defaults.get(scale, {}))


def _option_paths(settings: Any, path: tuple[str, ...] = ()) -> dict[str, tuple[str, ...]]:
    """Return where the setting of each option is, by its dotted name and by its name on the command line."""
    paths: dict[str, tuple[str, ...]] = {}
    for field in fields(settings):
        value, place = getattr(settings, field.name), (*path, field.name)
        paths[".".join(place)] = place
        if is_dataclass(value):
            paths |= _option_paths(value, place)
        if path and not keeps_prefix(type(settings), field.name):
            paths[field.name] = place
    return paths
