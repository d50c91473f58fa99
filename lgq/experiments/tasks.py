"""What a row of a table asks for: train an autoencoder, tokenizer, generator or quantizer, or time one."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch

from lgq.config import to_json
from lgq.experiments.quantizer_alone import AloneSettings
from lgq.experiments.speech import SpeechSettings, speech_tokenizer
from lgq.models.transformer import MaskedTransformer
from lgq.quantizers import build_quantizer
from lgq.tokenizer import Tokenizer, default_options
from lgq.training.settings import GeneratorRun, TokenizerRun

BUSY_LOAD = 1.5
"""Load per core from which on timings mean little; the timings of the row before are a load of 1."""
_UNRECORDED = {"workers"}
_UNRECORDED_OF_LOOP = {"log_every", "checkpoint_every", "keep", "minutes", "wandb"}
"""Settings that no number in a record depends on."""


@dataclass(frozen=True, kw_only=True)
class _TrainingTask:
    run: TokenizerRun | GeneratorRun

    @property
    def seed(self) -> int:
        return self.run.seed

    @property
    def steps(self) -> int:
        return self.run.loop.steps

    @property
    def before(self) -> "Task | None":
        """The task that must be finished first."""
        return None

    def settings(self) -> dict[str, Any]:
        """Return all that the record depends on."""
        return _recorded_settings(self.run)

    def identity(self) -> dict[str, Any]:
        """Return the settings that are not at their defaults: one that is added later changes no id."""
        return without_defaults(self.settings(), to_json(type(self.run)()))


@dataclass(frozen=True, kw_only=True)
class AutoencoderTask(_TrainingTask):
    """Train the continuous autoencoder from which all tokenizers of a seed start."""

    kind: ClassVar[str] = "autoencoder"
    run: TokenizerRun

    def seeded(self, seed: int) -> "AutoencoderTask":
        return replace(self, run=replace(self.run, seed=seed))

    def name(self) -> str:
        return f"autoencoder-s{self.seed}"

    def parameters(self) -> int:
        """Return the number of learned parameters."""
        return sum(planned_tokenizer(self.run).parameter_counts().values())


@dataclass(frozen=True, kw_only=True)
class TokenizerTask(_TrainingTask):
    """Train a tokenizer and evaluate its best weights."""

    kind: ClassVar[str] = "tokenizer"
    run: TokenizerRun
    start: AutoencoderTask | None = None
    """Autoencoder whose encoder and decoder it starts with; None starts from random weights."""
    images: int | None = None
    """Number of training images, a random subset that is the same for all rows; None takes all images."""
    searching: bool = False
    """Whether the row serves to choose settings: it is measured on images that no table reports, without
    rFID."""

    @property
    def before(self) -> AutoencoderTask | None:
        """The task that must be finished first."""
        return self.start

    def seeded(self, seed: int) -> "TokenizerTask":
        return replace(self, run=replace(self.run, seed=seed), start=self.start and self.start.seeded(seed))

    def name(self) -> str:
        run = self.run
        stages = f"-x{run.stages}" if run.stages > 1 else ""
        stages += "".join(f"-{side}" for side in ("scales", *run.scales)) if run.scales else ""
        defaults = default_options(run.quantizer)
        options = sorted(run.quantizer_options.items())
        changes = "".join(f"-{name}-{value}" for name, value in options if value != defaults.get(name))
        cold = "" if self.start else "-cold"
        return f"{run.quantizer}-k{run.codebook_size}{stages}{changes}{cold}-s{run.seed}"

    def settings(self) -> dict[str, Any]:
        # Options of the constructed quantizer: one that is given at its default makes no other run.
        options = planned_tokenizer(self.run).settings["quantizer_options"]
        extent = {"images": self.images, "searching": self.searching}
        start = {"start": self.start and self.start.settings()}
        return super().settings() | {"quantizer_options": options} | extent | start

    def identity(self) -> dict[str, Any]:
        defaults = to_json(TokenizerRun()) | {"quantizer_options": default_options(self.run.quantizer)}
        defaults |= {"images": None, "searching": False, "start": None}
        chosen = without_defaults(self.settings(), defaults)
        return chosen | ({"start": self.start.identity()} if self.start else {})

    def parameters(self) -> int:
        """Return the number of learned parameters."""
        return sum(planned_tokenizer(self.run).parameter_counts().values())


@dataclass(frozen=True, kw_only=True)
class GeneratorTask(_TrainingTask):
    """Train a generator on the tokens of a tokenizer, whose row comes first, and evaluate it."""

    kind: ClassVar[str] = "generator"
    run: GeneratorRun
    tokenizer: TokenizerTask

    @property
    def before(self) -> TokenizerTask:
        """The task that must be finished first."""
        return self.tokenizer

    def seeded(self, seed: int) -> "GeneratorTask":
        return GeneratorTask(run=replace(self.run, seed=seed), tokenizer=self.tokenizer.seeded(seed))

    def name(self) -> str:
        return f"maskgit-{self.tokenizer.name()}"

    def settings(self) -> dict[str, Any]:
        return super().settings() | {"tokenizer": self.tokenizer.settings()}

    def identity(self) -> dict[str, Any]:
        return super().identity() | {"tokenizer": self.tokenizer.identity()}

    def parameters(self) -> int:
        """Return the number of learned parameters with one class; each further class adds a vector."""
        return sum(p.numel() for p in self.planned_transformer("meta").parameters())

    def planned_transformer(self, device: str | torch.device) -> MaskedTransformer:
        run = self.tokenizer.run
        length = (run.image_size // run.backbone.factor) ** 2 * run.stages
        with torch.device(device):
            return MaskedTransformer(run.codebook_size, length, 1, self.run.transformer)


@dataclass(frozen=True)
class CostTask:
    """Measure time and memory of a quantizer's forward and backward pass."""

    kind: ClassVar[str] = "cost"
    quantizer: str
    codebook_size: int
    tokens: int
    """Vectors in a batch."""
    around: TokenizerRun
    """Run whose encoder and decoder are timed for comparison; its latents have as many channels."""
    repeats: int = 5

    before: ClassVar[None] = None
    seed: ClassVar[int] = 0
    steps: ClassVar[int] = 0

    def seeded(self, seed: int) -> "CostTask":
        """Return the task itself: a time has no seed."""
        return self

    def name(self) -> str:
        return f"cost-{self.quantizer}-k{self.codebook_size}"

    def settings(self) -> dict[str, Any]:
        dim = self.around.backbone.latent_channels
        return to_json(self) | {"dim": dim, "around": _recorded_settings(self.around)}

    def identity(self) -> dict[str, Any]:
        return self.settings() | {"around": TokenizerTask(run=self.around).identity()}

    def parameters(self) -> int:
        return 0


@dataclass(frozen=True, kw_only=True)
class _AloneTask:
    training: AloneSettings
    seed: int = 0

    @property
    def steps(self) -> int:
        return self.training.steps

    def name(self) -> str:
        return f"{self.training.quantizer}-k{self.training.codebook_size}-s{self.seed}"

    def settings(self) -> dict[str, Any]:
        """Return all that the record depends on."""
        return self._given() | {"quantizer_options": _options(self.training)}

    def identity(self) -> dict[str, Any]:
        """Return the settings without options at their defaults: one that is added later changes no id."""
        return self._given()

    def _given(self) -> dict[str, Any]:
        own = to_json(self)
        training: dict[str, Any] = own.pop("training")
        return training | own

    def parameters(self) -> int:
        """Return the number of learned parameters."""
        own = self.training
        with torch.device("meta"):
            quantizer = build_quantizer(own.quantizer, own.dim, own.codebook_size, **own.quantizer_options)
        return sum(parameter.numel() for parameter in quantizer.parameters())


@dataclass(frozen=True, kw_only=True)
class GaussianTask(_AloneTask):
    """Train a quantizer alone on vectors of N(mean, I)."""

    kind: ClassVar[str] = "gaussian"
    before: ClassVar[None] = None
    mean: float
    """Mean of every channel."""

    def seeded(self, seed: int) -> "GaussianTask":
        return replace(self, seed=seed)

    def name(self) -> str:
        return f"gaussian-{self.mean:g}-{super().name()}"


@dataclass(frozen=True, kw_only=True)
class LatentsTask(_AloneTask):
    """Train a quantizer alone on the latents of a frozen autoencoder, whose row comes first."""

    kind: ClassVar[str] = "latents"
    start: AutoencoderTask
    images: int
    """Training images whose latents are learned, a random subset."""

    @property
    def before(self) -> AutoencoderTask:
        """The task that must be finished first."""
        return self.start

    def seeded(self, seed: int) -> "LatentsTask":
        return replace(self, seed=seed, start=self.start.seeded(seed))

    def name(self) -> str:
        return f"latents-{super().name()}"

    def settings(self) -> dict[str, Any]:
        return super().settings() | {"start": self.start.settings()}

    def identity(self) -> dict[str, Any]:
        return super().identity() | {"start": self.start.identity()}


@dataclass(frozen=True, kw_only=True)
class SpeechTask:
    """Train a tokenizer of speech."""

    kind: ClassVar[str] = "speech"
    before: ClassVar[None] = None
    training: SpeechSettings
    seed: int = 0
    recordings: str = ""
    """Fingerprint of the recordings."""

    @property
    def steps(self) -> int:
        return self.training.steps

    def seeded(self, seed: int) -> "SpeechTask":
        return replace(self, seed=seed)

    def name(self) -> str:
        return f"speech-{self.training.quantizer}-k{self.training.codebook_size}-s{self.seed}"

    def settings(self) -> dict[str, Any]:
        """Return all that the record depends on."""
        return self.identity() | {"quantizer_options": _options(self.training)}

    def identity(self) -> dict[str, Any]:
        return to_json(self.training) | {"seed": self.seed, "recordings": self.recordings}

    def parameters(self) -> int:
        """Return the number of learned parameters."""
        with torch.device("meta"):
            return sum(parameter.numel() for parameter in speech_tokenizer(self.training).parameters())


Task = AutoencoderTask | TokenizerTask | GeneratorTask | CostTask | GaussianTask | LatentsTask | SpeechTask


def _options(training: AloneSettings | SpeechSettings) -> dict[str, Any]:
    """Return all options of a quantizer, with the defaults written out."""
    options = default_options(training.quantizer) | training.quantizer_options
    return {name: value for name, value in options.items() if name != "seed"}


def planned_tokenizer(run: TokenizerRun) -> Tokenizer:
    """Return the tokenizer of a run without memory for its weights."""
    options = {"seed": run.seed} | run.quantizer_options
    with torch.device("meta"):
        return Tokenizer(
            run.backbone,
            run.quantizer,
            run.codebook_size,
            stages=run.stages,
            scales=run.scales,
            quantizer_options=options,
        )


def without_defaults(settings: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that differ from their defaults, in sections too."""
    chosen = {}
    for name, value in settings.items():
        default = defaults.get(name)
        if isinstance(value, dict) and isinstance(default, dict):
            value, default = without_defaults(value, default), {}
        if value != default or name not in defaults:
            chosen[name] = value
    return chosen


def _recorded_settings(run: TokenizerRun | GeneratorRun) -> dict[str, Any]:
    values = to_json(run)
    loop = {name: value for name, value in values["loop"].items() if name not in _UNRECORDED_OF_LOOP}
    return {name: value for name, value in values.items() if name not in _UNRECORDED} | {"loop": loop}
