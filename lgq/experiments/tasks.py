"""What a row of a table asks for: train an autoencoder, a tokenizer, a generator or a quantizer, or time one.

A scale adds to its runs (`lgq.runs`) what tables need: codebook sizes, ablation budgets, measurements.
Every row of a scale derives from one run, so that rows differ only in what their table varies.
"""

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import torch

from lgq.checks import require_known
from lgq.config import to_json
from lgq.experiments.quantizer_alone import AloneSettings
from lgq.experiments.speech import SpeechSettings, speech_tokenizer
from lgq.models.transformer import MaskedTransformer
from lgq.quantizers import build_quantizer
from lgq.runs import AnyRun, named_generator, named_run, pocket, scale_options, without_quantizer
from lgq.tokenizer import Tokenizer, default_options
from lgq.training.settings import GeneratorRun, Precision, TokenizerRun

WarmStart = Literal["auto", "never"]
"""Whether tokenizers start from the scale's autoencoder, if it has one, or from random weights."""

GAUSSIAN_DIM = 8
"""Channels of the vectors in the experiment on Gaussians, as published for other quantizers."""

_UNRECORDED = {"workers"}
_UNRECORDED_OF_LOOP = {"log_every", "checkpoint_every", "keep", "minutes", "wandb"}
"""Settings that no number in a record depends on."""

_VALIDATIONS = 10
"""Least number of validations in a run whose number of steps the user chose: enough for a curve."""


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
        own = to_json(self)
        training: dict[str, Any] = own.pop("training")
        return training | own

    def identity(self) -> dict[str, Any]:
        return self.settings()

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
        return super().settings() | {"start": self.start.identity()}


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
        return to_json(self.training) | {"seed": self.seed, "recordings": self.recordings}

    def identity(self) -> dict[str, Any]:
        return self.settings()

    def parameters(self) -> int:
        """Return the number of learned parameters."""
        with torch.device("meta"):
            return sum(parameter.numel() for parameter in speech_tokenizer(self.training).parameters())


Task = AutoencoderTask | TokenizerTask | GeneratorTask | CostTask | GaussianTask | LatentsTask | SpeechTask


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


@dataclass(frozen=True, kw_only=True)
class Measuring:
    """How much is measured; the defaults are the paper's."""

    images: int = 10_000
    """Validation images, a fixed random subset, for reconstruction and as reference of generators."""
    geometry_images: int = 5_000
    """Validation images for the use of codes and the study of codebooks, a fixed random subset."""
    samples: int = 50_000
    """Images that a generator samples with each seed."""
    sampling_seeds: tuple[int, ...] = (0, 1, 2, 3)


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Everything that is decided once for all rows."""

    name: str
    tokenizer: TokenizerTask
    """The task from which every tokenizer derives."""
    ablation: TokenizerTask
    """The task from which ablations derive; they are cheaper."""
    search: TokenizerTask
    """The task from which the search for settings derives: half of the steps."""
    generator: GeneratorRun
    sizes: tuple[int, ...]
    """Codebook sizes of the sweep."""
    matched_sizes: tuple[int, ...]
    """Codebook sizes at which LGQ and IBQ are compared."""
    cost_sizes: tuple[int, int, int, int] = (4_096, 16_384, 65_536, 262_144)
    """The four codebook sizes of the cost table."""
    cost_tokens: int = 8_192
    """Vectors in a batch of the cost table; by default the paper's 32 images of 256 tokens."""
    vectors: int = 256
    """Vectors per step of a quantizer that is trained alone."""
    gaussian_steps: int = 2_000
    latents_steps: int = 1_000
    latents_images: int = 10_000
    """Training images whose latents a quantizer learns alone."""
    speech: SpeechSettings = field(default_factory=SpeechSettings)
    """Settings of all tokenizers of speech, but for the quantizer."""
    measuring: Measuring = Measuring()
    seeds: int = 1
    """Largest number of training seeds where the user gives none."""

    @property
    def start(self) -> AutoencoderTask | None:
        """The autoencoder from which tokenizers start; None where they start from random weights."""
        return self.tokenizer.start

    def row(self, quantizer: str = "lgq", codebook_size: int | None = None, **options: Any) -> TokenizerTask:
        """Return the task of this quantizer, with everything else as in every row."""
        return self._with_quantizer(self.tokenizer, quantizer, codebook_size, options)

    def ablated(
        self,
        quantizer: str = "lgq",
        codebook_size: int | None = None,
        *,
        stages: int = 1,
        cold: bool = False,
        **options: Any,
    ) -> TokenizerTask:
        """Return an ablation with these options; cold: from random weights."""
        base = replace(self.ablation, start=None if cold else self.ablation.start)
        base = replace(base, run=replace(base.run, stages=stages))
        return self._with_quantizer(base, quantizer, codebook_size, options)

    def searched(self, quantizer: str, codebook_size: int, **options: Any) -> TokenizerTask:
        """Return the task of this quantizer with these options, for the steps of the search."""
        return self._with_quantizer(self.search, quantizer, codebook_size, options)

    def generated(self, quantizer: str) -> GeneratorTask:
        """Return the task of a generator on the tokens of this quantizer's row."""
        return GeneratorTask(run=self.generator, tokenizer=self.row(quantizer))

    def on_gaussian(self, quantizer: str, codebook_size: int, mean: float) -> GaussianTask:
        """Return the task that trains this quantizer on vectors of N(mean, I)."""
        # The codes of some methods have to travel: with 1e-3, none could reach a mean of 8.
        training = self._alone(quantizer, codebook_size, GAUSSIAN_DIM, self.gaussian_steps, 1e-2)
        return GaussianTask(training=training, mean=mean)

    def on_latents(self, quantizer: str, codebook_size: int) -> LatentsTask:
        """Return the task that trains this quantizer on the latents of the scale's autoencoder."""
        run = self.tokenizer.run
        start = self.start or AutoencoderTask(run=without_quantizer(run, steps=run.loop.steps))
        dim, rate = run.backbone.latent_channels, run.learning_rate
        training = self._alone(quantizer, codebook_size, dim, self.latents_steps, rate)
        return LatentsTask(training=training, start=start, images=self.latents_images)

    def on_speech(self, quantizer: str) -> SpeechTask:
        """Return the task that trains a tokenizer of speech with this quantizer."""
        options = scale_options(self.name, quantizer)
        return SpeechTask(training=replace(self.speech, quantizer=quantizer, quantizer_options=options))

    def _alone(
        self, quantizer: str, codebook_size: int, dim: int, steps: int, learning_rate: float
    ) -> AloneSettings:
        return AloneSettings(
            quantizer=quantizer,
            codebook_size=codebook_size,
            quantizer_options=scale_options(self.name, quantizer),
            dim=dim,
            vectors=self.vectors,
            steps=steps,
            learning_rate=learning_rate,
        )

    def timed(self, quantizer: str, codebook_size: int) -> CostTask:
        """Return the task that times this quantizer."""
        return CostTask(quantizer, codebook_size, self.cost_tokens, self.tokenizer.run)

    def _with_quantizer(
        self, base: TokenizerTask, quantizer: str, codebook_size: int | None, options: dict[str, Any]
    ) -> TokenizerTask:
        size, chosen = codebook_size or base.run.codebook_size, scale_options(self.name, quantizer) | options
        run = replace(base.run, quantizer=quantizer, codebook_size=size, quantizer_options=chosen)
        return replace(base, run=run)

    def adjusted(
        self,
        *,
        steps: int | None = None,
        generator_steps: int | None = None,
        precision: Precision | None = None,
        warm_start: WarmStart = "auto",
    ) -> "Scale":
        """Return the scale with other numbers of steps, another precision or start, the same for all rows."""

        def adjust(task: TokenizerTask) -> TokenizerTask:
            start = None if warm_start == "never" else task.start
            start = start and replace(start, run=_adjusted(start.run, None, precision))
            return replace(task, run=_adjusted(task.run, steps, precision), start=start)

        return replace(
            self,
            gaussian_steps=steps or self.gaussian_steps,
            latents_steps=steps or self.latents_steps,
            speech=replace(self.speech, steps=steps or self.speech.steps),
            tokenizer=adjust(self.tokenizer),
            ablation=adjust(self.ablation),
            search=adjust(self.search),
            generator=_adjusted(self.generator, generator_steps, precision),
        )


def _adjusted(run: AnyRun, steps: int | None, precision: Precision | None) -> AnyRun:
    run = replace(run, precision=precision or run.precision)
    if steps is None:
        return run
    every = min(run.loop.validate_every, max(1, steps // _VALIDATIONS))
    schedule = replace(run.schedule, warmup_steps=min(run.schedule.warmup_steps, steps // 10))
    return replace(run, loop=replace(run.loop, steps=steps, validate_every=every), schedule=schedule)


def _smoke() -> Scale:
    run = named_run("smoke-lgq")
    tokenizer = TokenizerTask(run=run, start=AutoencoderTask(run=without_quantizer(run, steps=2)))
    return Scale(
        name="smoke",
        tokenizer=tokenizer,
        ablation=tokenizer,
        search=replace(tokenizer, searching=True),
        generator=named_generator("smoke"),
        sizes=(32, 64),
        matched_sizes=(32, 64),
        cost_sizes=(8, 16, 32, 64),
        cost_tokens=64,
        vectors=16,
        gaussian_steps=3,
        latents_steps=3,
        latents_images=8,
        speech=SpeechSettings(codebook_size=32, start_steps=1, steps=2, batch_size=2),
        measuring=Measuring(images=12, geometry_images=8, samples=12, sampling_seeds=(0, 1)),
    )


def _pocket() -> Scale:
    """A day of two CPU cores. Every row starts from the autoencoder of its seed.

    The best weights are chosen by l1: rFID on few images cannot tell late validations apart.
    """
    run = replace(pocket("lgq", budget="table"), quantizer_options={})
    half = replace(run.loop, steps=run.loop.steps // 2, validate_every=run.loop.steps // 4)
    tokenizer = TokenizerTask(run=run, start=AutoencoderTask(run=without_quantizer(run, steps=1_500)))
    return Scale(
        name="pocket",
        tokenizer=tokenizer,
        # A run with these codes takes half the time.
        ablation=replace(tokenizer, run=replace(run, codebook_size=4_096)),
        search=replace(tokenizer, run=replace(run, loop=half), searching=True),
        generator=named_generator("pocket"),
        sizes=(1_024, 4_096, 16_384),
        matched_sizes=(1_024, 4_096, 16_384),
        # 5,000 images of 64 tokens: with 1,000, some of 16,384 codes would be unused for lack of tokens.
        measuring=Measuring(images=1_000, geometry_images=5_000, samples=1_000, sampling_seeds=(0, 1)),
        seeds=5,
    )


def _imagenet256() -> Scale:
    """The paper's protocol, for four processes. Ablations train on 50,000 images for ten epochs."""
    run = named_run("imagenet256-lgq")
    short = replace(run.loop, steps=15_625, validate_every=1_563, checkpoint_every=500)
    ablation = TokenizerTask(run=replace(run, loop=short), images=50_000)
    return Scale(
        name="imagenet256",
        tokenizer=TokenizerTask(run=run),
        ablation=ablation,
        search=replace(ablation, searching=True),
        generator=named_generator("imagenet256"),
        sizes=(4_096, 8_192, 16_384, 32_768, 65_536),
        matched_sizes=(4_096, 16_384, 65_536),
    )


SCALES = {"smoke": _smoke, "pocket": _pocket, "imagenet256": _imagenet256}


def named_scale(name: str) -> Scale:
    """Return the scale of that name."""
    require_known("scale", name, SCALES)
    return SCALES[name]()
