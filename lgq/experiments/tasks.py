"""What a row of a table asks for: train a tokenizer, train a generator on its tokens, or time a quantizer.

A scale adds to its runs (`lgq.runs`) what tables need: codebook sizes, ablation budgets, measurements.
Every row of a scale derives from one run, so that rows differ only in what their table varies.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch

from lgq.checks import require_known
from lgq.config import to_json
from lgq.models.transformer import MaskedTransformer
from lgq.runs import AnyRun, named_generator, named_run, pocket, scale_options
from lgq.tokenizer import Tokenizer, default_options
from lgq.training.settings import GeneratorRun, Precision, TokenizerRun

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

    def settings(self) -> dict[str, Any]:
        """Return all that the record depends on."""
        return _recorded_settings(self.run)


@dataclass(frozen=True, kw_only=True)
class TokenizerTask(_TrainingTask):
    """Train a tokenizer and evaluate its best weights."""

    kind: ClassVar[str] = "tokenizer"
    run: TokenizerRun
    images: int | None = None
    """Number of training images, a random subset that is the same for all rows; None takes all images."""
    metric_networks: bool = True
    """Whether rFID and LPIPS are measured; without them, only metrics of pixels and codes."""

    def seeded(self, seed: int) -> "TokenizerTask":
        return replace(self, run=replace(self.run, seed=seed))

    def name(self) -> str:
        run = self.run
        stages = f"-x{run.stages}" if run.stages > 1 else ""
        stages += "".join(f"-{side}" for side in ("scales", *run.scales)) if run.scales else ""
        defaults = default_options(run.quantizer)
        options = sorted(run.quantizer_options.items())
        changes = "".join(f"-{name}-{value}" for name, value in options if value != defaults.get(name))
        return f"{run.quantizer}-k{run.codebook_size}{stages}{changes}-s{run.seed}"

    def settings(self) -> dict[str, Any]:
        # Options of the constructed quantizer: one that is given at its default makes no other run.
        options = self.planned_tokenizer().settings["quantizer_options"]
        extent = {"images": self.images, "metric_networks": self.metric_networks}
        return super().settings() | {"quantizer_options": options} | extent

    def parameters(self) -> int:
        """Return the number of learned parameters."""
        return sum(self.planned_tokenizer().parameter_counts().values())

    def planned_tokenizer(self) -> Tokenizer:
        """Return the tokenizer without memory for its weights."""
        run, options = self.run, {"seed": self.run.seed} | self.run.quantizer_options
        with torch.device("meta"):
            return Tokenizer(
                run.backbone,
                run.quantizer,
                run.codebook_size,
                stages=run.stages,
                scales=run.scales,
                quantizer_options=options,
            )


@dataclass(frozen=True, kw_only=True)
class GeneratorTask(_TrainingTask):
    """Train a generator on the tokens of a tokenizer, whose row comes first, and evaluate it."""

    kind: ClassVar[str] = "generator"
    run: GeneratorRun
    tokenizer: TokenizerTask

    def seeded(self, seed: int) -> "GeneratorTask":
        return GeneratorTask(run=replace(self.run, seed=seed), tokenizer=self.tokenizer.seeded(seed))

    def name(self) -> str:
        return f"maskgit-{self.tokenizer.name()}"

    def settings(self) -> dict[str, Any]:
        return super().settings() | {"tokenizer": self.tokenizer.settings()}

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

    def parameters(self) -> int:
        return 0


Task = TokenizerTask | GeneratorTask | CostTask


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
    """Validation images for the study of codebooks, a fixed random subset."""
    samples: int = 50_000
    """Images that a generator samples with each seed."""
    sampling_seeds: tuple[int, ...] = (0, 1, 2, 3)


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Everything that is decided once for all rows."""

    name: str
    tokenizer: TokenizerRun
    """The run from which every tokenizer derives."""
    ablation: TokenizerTask
    """The task from which ablations derive; the paper has a smaller budget for them."""
    search: TokenizerTask
    """The task from which the search for settings derives: a small part of the steps."""
    searched_rates: tuple[float, ...]
    """Learning rates of the search."""
    searched_l1: tuple[float, ...] = (1.0,)
    """Weights of l1 in the search."""
    generator: GeneratorRun
    sizes: tuple[int, ...]
    """Codebook sizes of the sweep."""
    matched_sizes: tuple[int, ...]
    """Codebook sizes at which LGQ and IBQ are compared."""
    cost_sizes: tuple[int, int, int, int] = (4_096, 16_384, 65_536, 262_144)
    """The four codebook sizes of the cost table."""
    cost_tokens: int = 8_192
    """Vectors in a batch of the cost table; by default the paper's 32 images of 256 tokens."""
    measuring: Measuring = Measuring()

    def row(
        self, quantizer: str = "lgq", codebook_size: int | None = None, *, stages: int = 1, **options: Any
    ) -> TokenizerTask:
        """Return the task of this quantizer, with everything else as in every row."""
        size = codebook_size or self.tokenizer.codebook_size
        base = TokenizerTask(run=replace(self.tokenizer, codebook_size=size, stages=stages))
        return self._with_quantizer(base, quantizer, options)

    def ablated(self, **options: Any) -> TokenizerTask:
        """Return an ablation with these options of LGQ."""
        return self._with_quantizer(self.ablation, "lgq", options)

    def searched(self, quantizer: str, *, rate: float, l1: float) -> TokenizerTask:
        """Return the task of this quantizer with these settings, for the steps of the search."""
        run = self.search.run
        run = replace(run, learning_rate=rate, loss=replace(run.loss, l1=l1))
        return self._with_quantizer(replace(self.search, run=run), quantizer, {})

    def generated(self, quantizer: str) -> GeneratorTask:
        """Return the task of a generator on the tokens of this quantizer's row."""
        return GeneratorTask(run=self.generator, tokenizer=self.row(quantizer))

    def timed(self, quantizer: str, codebook_size: int) -> CostTask:
        """Return the task that times this quantizer."""
        return CostTask(quantizer, codebook_size, self.cost_tokens, self.tokenizer)

    def _with_quantizer(self, base: TokenizerTask, quantizer: str, options: dict[str, Any]) -> TokenizerTask:
        chosen = scale_options(self.name, quantizer) | options
        return replace(base, run=replace(base.run, quantizer=quantizer, quantizer_options=chosen))

    def adjusted(
        self,
        *,
        steps: int | None = None,
        generator_steps: int | None = None,
        precision: Precision | None = None,
    ) -> "Scale":
        """Return the scale with other numbers of steps and another precision, the same for all rows."""
        return replace(
            self,
            tokenizer=_adjusted(self.tokenizer, steps, precision),
            ablation=replace(self.ablation, run=_adjusted(self.ablation.run, steps, precision)),
            search=replace(self.search, run=_adjusted(self.search.run, steps, precision)),
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
    tokenizer = named_run("smoke-lgq")
    return Scale(
        name="smoke",
        tokenizer=tokenizer,
        ablation=TokenizerTask(run=tokenizer),
        search=TokenizerTask(run=tokenizer, metric_networks=False),
        searched_rates=(1e-3,),
        generator=named_generator("smoke"),
        sizes=(32, 64),
        matched_sizes=(32, 64),
        cost_sizes=(8, 16, 32, 64),
        cost_tokens=64,
        measuring=Measuring(images=12, geometry_images=8, samples=12, sampling_seeds=(0, 1)),
    )


def _pocket() -> Scale:
    """Hours of two CPU cores. Ablations have half of the steps, and no rFID in their validations.

    The best weights are chosen by l1: rFID on few images cannot tell late validations apart.
    """
    base = pocket("lgq", budget="table")
    half = replace(base.loop, steps=500, validate_every=125)
    short = replace(base.loop, steps=200, validate_every=100)
    return Scale(
        name="pocket",
        tokenizer=replace(base, rfid_images=250),
        ablation=TokenizerTask(run=replace(base, loop=half)),
        search=TokenizerTask(run=replace(base, loop=short), metric_networks=False),
        searched_rates=(1e-3, 3e-4),
        searched_l1=(1.0, 10.0),
        generator=named_generator("pocket"),
        sizes=(1_024, 4_096, 16_384),
        matched_sizes=(1_024, 4_096, 16_384),
        # 5,000 images of 64 tokens: with 1,000, some of 16,384 codes would be unused for lack of tokens.
        measuring=Measuring(images=1_000, geometry_images=5_000, samples=1_000, sampling_seeds=(0, 1)),
    )


def _imagenet256() -> Scale:
    """The paper's protocol, for four processes. Ablations train on 50,000 images for ten epochs."""
    tokenizer = named_run("imagenet256-lgq")
    short = replace(tokenizer.loop, steps=15_625, validate_every=1_563, checkpoint_every=500)
    ablation = TokenizerTask(run=replace(tokenizer, loop=short), images=50_000)
    return Scale(
        name="imagenet256",
        tokenizer=tokenizer,
        ablation=ablation,
        search=ablation,
        searched_rates=(1e-3, 3e-4, 1e-4),
        generator=named_generator("imagenet256"),
        sizes=(4_096, 8_192, 16_384, 32_768, 65_536),
        matched_sizes=(4_096, 16_384, 65_536),
    )


SCALES = {"smoke": _smoke, "pocket": _pocket, "imagenet256": _imagenet256}


def named_scale(name: str) -> Scale:
    """Return the scale of that name."""
    require_known("scale", name, SCALES)
    return SCALES[name]()
