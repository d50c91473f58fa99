"""Named runs: a scale and a quantizer, such as `pocket-lgq`; a generator is a scale alone, such as `pocket`.

A scale (`smoke`, `pocket`, `photo`, `imagenet256`) is one protocol for `lgq train`, `lgq.run` and the
experiments, defined here and nowhere else; `photo` has no experiments and no generator:

    run = lgq.run("pocket-lgq", codebook_size=4096, steps=2_000)
    run = lgq.run("pocket", label_dropout=0.2)
    run = lgq.run(config="run.json", steps=2_000)            # from a settings file

A settings file is JSON or TOML with fields of a run, in their sections or by the names of their options
(`steps` for `loop.steps`): what `--dry-run` prints, or the config.json of a run directory.
"""

import difflib
import json
import logging
import math
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

from lgq.checks import require_known
from lgq.config import ConfigError, from_json, keeps_prefix, to_json
from lgq.data import RandomCrop
from lgq.errors import LGQError, rename_settings
from lgq.files import named_disk_errors
from lgq.hub import CONFIG
from lgq.models.autoencoder import Backbone
from lgq.models.sampling import Sampling
from lgq.models.transformer import TransformerSettings
from lgq.quantizers import CONTINUOUS, QUANTIZERS, require_quantizer
from lgq.training.history import HISTORY_FIELDS
from lgq.training.losses import LossWeights
from lgq.training.settings import GeneratorRun, LoopSettings, Schedule, TokenizerRun

AnyRun = TypeVar("AnyRun", TokenizerRun, GeneratorRun)
_log = logging.getLogger(__name__)

_UNSEARCHED: dict[str, dict[str, Any]] = {
    "vq": {"init": "kmeans", "restart_below": 0.5},
    "rotvq": {"init": "kmeans", "restart_below": 0.5},
    "diveq": {"init": "kmeans", "restart_below": 0.5},
    "simvq": {"weight": 1.0},
    "ibq": {"init_std": 0.125, "entropy_weight": 0.5},
}
"""Options of the pocket runs that no search has chosen yet: as published, these use few codes or one in
hundreds of steps from random weights. Rows of tables do not take them."""
BEST_OPTIONS = Path(__file__).parent / "best_options.json"
"""File of the options that searches found best (`lgq.experiments.option_search`)."""

_FACTS = {
    TokenizerRun: {"data", "validation_data", *HISTORY_FIELDS},
    GeneratorRun: {"kind", "image_size", "tokenizer", "tokens", "validation_tokens", *HISTORY_FIELDS},
}
"""Fields of a run directory's config.json that are no settings."""


def imagenet256(quantizer: str) -> TokenizerRun:
    """The paper's run, for four GPUs: 256 x 256 pixels, f = 16, K = 16,384.

    Start it with four processes. The paper gives no number of steps. These are 50 epochs of ImageNet at
    4 x 8 images, each with a validation on the 10,000 images of the paper's rFID.
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
    """The paper's run in small, for two CPU cores: 32 x 32 pixels, f = 4, K = 16,384.

    Only the images and the networks are small (0.3 M parameters and the codes). The quantizer has the paper's
    problem: 16,384 codes of 64 channels, and 2,048 tokens per step, from 32 images of 64 tokens. Its options
    are the best of the search for this scale, where there was one.

    budget: "table" is how experiments train a row: a tenth of the steps, which suffices from a trained
        autoencoder (`without_quantizer`), with one checkpoint kept. All other settings are the same.
    """
    paper = imagenet256(quantizer)
    best = best_options("pocket", quantizer, paper.codebook_size)
    run = replace(
        paper,
        quantizer_options=scale_options("pocket", quantizer) | (best or _UNSEARCHED.get(quantizer, {})),
        backbone=Backbone(widths=(16, 32, 64), blocks=1, groups=8),
        image_size=32,
        batch_size=32,
        # The paper's 3e-4 is for 2,000,000 steps; with it, most codes of SimVQ are unused after hundreds.
        learning_rate=1e-3,
        schedule=Schedule(kind="cosine"),
        clip=1.0,
        channels_last=False,  # a sixth faster with so few channels
        # Decoding takes 5% of a step, and a worker would take its core from the trainer's two threads.
        workers=0,
        # LPIPS on all images would take longer than everything else.
        loss=LossWeights(gan=0.0, lpips_images=8, lpips_precision="bf16"),
        validation_images=1_000,
        best_by="l1",
        loop=LoopSettings(steps=10_000, validate_every=500, checkpoint_every=500),
    )
    if budget == "full":
        return run
    return replace(run, loop=LoopSettings(steps=1_000, validate_every=250, checkpoint_every=250, keep=1))


def photo(quantizer: str) -> TokenizerRun:
    """A tokenizer of photographs at their own resolution, for one CPU core: f = 8, K = 12,288.

    It trains on crops of 96 x 96 pixels, and works on images of any size, in parts if they are large: its
    networks are local. LPIPS costs more than the tokenizer, so it compares a part of each batch, in bf16. A
    run takes most of a day, and its averaged weights are of use long before. `photo-f8`, which comes with the
    package, is `photo-lgq`. Quantizers whose codes are a fixed grid have 16,384: some take powers of 2 only.
    """
    return replace(
        imagenet256(quantizer),
        codebook_size=12_288 if QUANTIZERS[quantizer].learned_codes else 16_384,
        quantizer_options=scale_options("photo", quantizer),
        backbone=Backbone(
            patch=4,
            widths=(128, 224),
            refinement=32,
            blocks=1,
            attention_heads=0,
            latent_channels=32,
            norm="layer",
        ),
        image_size=96,
        crop=RandomCrop(own_resolution=True),
        batch_size=12,
        learning_rate=1e-3,
        clip=1.0,
        schedule=Schedule(kind="cosine", warmup_steps=200),
        average_decay=0.998,
        workers=0,
        loss=LossWeights(gan=0.0, lpips_images=4, lpips_precision="bf16"),
        validation_images=150,
        best_by="lpips",
        loop=LoopSettings(steps=40_000, validate_every=500, checkpoint_every=250),
    )


def without_quantizer(run: TokenizerRun, *, steps: int) -> TokenizerRun:
    """Return the run of the continuous autoencoder from which this run may start, whatever its quantizer."""
    every = max(1, steps // 2)
    return replace(
        run,
        quantizer=CONTINUOUS,
        quantizer_options={},
        codebook_size=1,
        stages=1,
        rfid_images=None,
        loop=replace(run.loop, steps=steps, validate_every=every, checkpoint_every=every),
    )


def smoke(quantizer: str) -> TokenizerRun:
    """A trial of seconds, for any machine: 16 x 16 pixels, 16 tokens of 32 codes, four steps."""
    return replace(
        pocket(quantizer),
        codebook_size=32,
        quantizer_options=scale_options("smoke", quantizer),
        backbone=Backbone(
            widths=(4, 8, 8), blocks=1, groups=2, attention_heads=0, latent_channels=8, latent_groups=2
        ),
        image_size=16,
        batch_size=4,
        loss=LossWeights(lpips=0.0, gan=0.0),
        precision="float32",
        validation_images=8,
        loop=LoopSettings(steps=4, log_every=1, validate_every=2, checkpoint_every=2),
    )


def imagenet256_generator() -> GeneratorRun:
    """The paper's generator, for one GPU: 256 tokens of 16,384 codes, 1,000 classes, 51.3 M parameters."""
    return GeneratorRun(precision="bf16")


def pocket_generator() -> GeneratorRun:
    """The paper's generator in small, for two CPU cores: 64 tokens of 16,384 codes.

    It has 5.6 M parameters and the classes.
    """
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
    """A trial of seconds, for any machine: one layer of width 16, four steps."""
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
    "photo": photo,
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


class NamedRun(NamedTuple):
    """What a name stands for."""

    name: str
    method: str
    """Label of the quantizer, or of the generator."""
    image_size: int
    side: int
    """Tokens along a side of an image."""
    codes: int
    steps: int
    purpose: str
    """What it is for, and on which hardware."""


def named_tokenizers() -> list[NamedRun]:
    """Describe every tokenizer run that has a name."""
    return [
        _described(f"{scale}-{quantizer}", method.label, build, build(quantizer))
        for scale, build in SCALES.items()
        for quantizer, method in QUANTIZERS.items()
    ]


def named_generators() -> list[NamedRun]:
    """Describe every generator run, with the images and tokens of the tokenizers of its scale."""
    quantizer = next(iter(QUANTIZERS))
    return [
        _described(scale, "MaskGIT", build, SCALES[scale](quantizer))._replace(steps=build().loop.steps)
        for scale, build in GENERATORS.items()
    ]


def _described(name: str, method: str, build: Callable[..., Any], tokenizer: TokenizerRun) -> NamedRun:
    """Describe a run by its tokenizer; its function says in words what it is for."""
    size, side = tokenizer.image_size, tokenizer.image_size // tokenizer.backbone.factor
    purpose, _, _ = (build.__doc__ or "").partition(":")
    return NamedRun(name, method, size, side, tokenizer.codebook_size, tokenizer.loop.steps, purpose)


def run(
    name: str | None = None, *, config: str | Path | None = None, **changes: Any
) -> TokenizerRun | GeneratorRun:
    """Return a named run with changes: `pocket-lgq` is a tokenizer's, `pocket` a generator's.

    config: a settings file, whose fields replace those of the named run; a whole one needs no name.
    changes: settings by the names of their options on the command line, such as `steps` or `codebook_size`.
        Nested settings are given by a dotted name or as a mapping, such as `loss={"l1": 10.0}`, which keeps
        the settings that it does not name.
    """
    if name is None and config is not None:
        is_generator = "transformer" in _settings_in(Path(config))
        whole = read_run(GeneratorRun, config) if is_generator else read_run(TokenizerRun, config)
        return changed(whole, changes)  # type: ignore[type-var]  # one of the two
    require_known("run", name or "", (*tokenizer_names(), *GENERATORS))
    if name in GENERATORS:
        return _derived(named_generator(name), config, changes)
    return _derived(named_run(name or ""), config, changes)


def _derived(base: AnyRun, config: str | Path | None, changes: Mapping[str, Any]) -> AnyRun:
    return changed(with_file(base, config, changes), changes)


def with_file(base: AnyRun, file: str | Path | None, changes: Mapping[str, Any]) -> AnyRun:
    """Return a named run with the settings of a file, if any, in a form that suits the changes to come.

    changes: settings that the caller will change, by their option names; a file must agree with the name
        about the quantizer unless they decide.
    """
    values = {} if file is None else _run_settings_in(type(base), file)
    quantizer = getattr(base, "quantizer", None)
    if (own := values.get("quantizer", quantizer)) != quantizer:
        if "quantizer" not in changes:
            raise ConfigError(
                f"{file} sets `quantizer` {own}, and the name of the run asks for {quantizer}: leave out the "
                f"name, or set `quantizer` {quantizer}."
            )
        if changes["quantizer"] == quantizer:
            values = {
                name: value
                for name, value in values.items()
                if name not in ("quantizer", "quantizer_options")
            }
    return base if file is None else _read(type(base), file, values, base)


def read_run(kind: type[AnyRun], file: str | Path) -> AnyRun:
    """Read a run from a settings file that leaves nothing out.

    file: JSON, TOML if its name ends in .toml, or a run directory, whose config.json is read.
    """
    values = _run_settings_in(kind, file)
    if missing := _missing(kind(), values):
        shown = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if missing[3:] else "")
        raise ConfigError(f"{file} leaves out {shown}: give the name of a run too, whose settings they are.")
    return _read(kind, file, values)


def _read(kind: type[AnyRun], file: str | Path, values: dict[str, Any], base: AnyRun | None = None) -> AnyRun:
    try:
        return from_json(kind, values if base is None else _over(base, values))
    except ConfigError as error:
        # In quotes: these are fields of a file, not options.
        reason = str(error).replace("`", "'")
        raise ConfigError(f"{file}: {reason}") from error


def _run_settings_in(kind: type[TokenizerRun | GeneratorRun], file: str | Path) -> dict[str, Any]:
    """Read the fields of a run of that kind, each in its section."""
    values = _settings_in(Path(file))
    kinds = {TokenizerRun: ("backbone", "train"), GeneratorRun: ("transformer", "train-generator")}
    for other, (section, command) in kinds.items():
        if other is not kind and section in values:
            raise ConfigError(f"{file} has settings of a {other.__name__}: give it to `lgq {command}`.")
    values = {name: value for name, value in values.items() if name not in _FACTS[kind]}
    options = values.get("quantizer_options")
    if isinstance(options, dict) and options.get("seed") == values.get("seed"):
        # config.json writes it out; it is to follow a seed on the command line.
        values["quantizer_options"] = {name: value for name, value in options.items() if name != "seed"}
    return _in_sections(values, _option_paths(kind()), file)


def _in_sections(
    values: dict[str, Any], options: dict[str, tuple[str, ...]], file: str | Path
) -> dict[str, Any]:
    """Put settings that a file names as options are, such as `steps` or `loss.l1`, into their sections."""
    placed = {name: dict(value) if isinstance(value, dict) else value for name, value in values.items()}
    for option in values:
        path = options.get(option, (option,))
        if len(path) == 1:
            continue
        section: Any = placed
        for part in path[:-1]:
            section = section.setdefault(part, {})
        if not isinstance(section, dict) or path[-1] in section:
            raise ConfigError(f"{file} sets {'.'.join(path)} twice, once as {option}: leave out one of them.")
        section[path[-1]] = placed.pop(option)
    return placed


def _settings_in(file: Path) -> dict[str, Any]:
    with named_disk_errors(file):
        file = file / CONFIG if file.is_dir() else file
        data = file.read_bytes()
    try:
        values = tomllib.loads(data.decode()) if file.suffix == ".toml" else json.loads(data)
    except (ValueError, RecursionError) as error:
        form = "TOML" if file.suffix == ".toml" else "JSON"
        raise ConfigError(f"{file} is no {form}: {' '.join(str(error).split()):.200}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{file} must hold an object with the fields of a run, got {values!r:.60}.")
    return values


def _over(settings: Any, values: dict[str, Any]) -> dict[str, Any]:
    """Return settings as JSON with some values replaced, in the sections too."""
    sections = {name: value for name, value in vars(settings).items() if is_dataclass(value)}
    return to_json(settings) | {
        name: _over(sections[name], value) if name in sections and isinstance(value, dict) else value
        for name, value in values.items()
    }


def _missing(defaults: Any, values: dict[str, Any], path: str = "") -> list[str]:
    """List the fields that settings as JSON leave out, except those whose default is none."""
    missing = []
    for field in fields(defaults):
        default, place = getattr(defaults, field.name), f"{path}{field.name}"
        if field.name not in values:
            missing += [] if default is None else [place]
        elif is_dataclass(default) and isinstance(values[field.name], dict):
            missing += _missing(default, values[field.name], f"{place}.")
    return missing


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


def best_options(scale: str, quantizer: str, codebook_size: int) -> dict[str, Any]:
    """Return the options that the search of a scale found best at the nearest codebook size.

    Empty where the published ones were best, or none were searched. Of two sizes as near, the larger counts.
    """
    known = json.loads(BEST_OPTIONS.read_bytes()) if BEST_OPTIONS.is_file() else {}
    searched = known.get(scale, {}).get(quantizer, [])

    def distance(entry: dict[str, Any]) -> tuple[float, int]:
        size = entry["codebook_size"]
        return abs(math.log2(size / codebook_size)), -size

    return dict(min(searched, key=distance)["options"]) if searched else {}


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
