"""The scales of experiments: what a scale adds to its runs (`lgq.runs`) for tables.

Codebook sizes, ablation budgets, measurements. Every row of a scale derives from one run, so that rows differ
only in what their table varies.
"""

from dataclasses import dataclass, field, replace
from typing import Any, Literal

from lgq.checks import require_at_least, require_known
from lgq.experiments.quantizer_alone import AloneSettings
from lgq.experiments.speech import SpeechSettings
from lgq.experiments.tasks import (
    AutoencoderTask,
    CostTask,
    GaussianTask,
    GeneratorTask,
    LatentsTask,
    SpeechTask,
    TokenizerTask,
)
from lgq.runs import AnyRun, named_generator, named_run, pocket, scale_options, without_quantizer
from lgq.training.settings import GeneratorRun, Precision

WarmStart = Literal["auto", "never"]
"""Whether tokenizers start from the scale's autoencoder, if it has one, or from random weights."""

GAUSSIAN_DIM = 8
"""Channels of the vectors in the experiment on Gaussians, as published for other quantizers."""

_VALIDATIONS = 10
"""Least number of validations in a run whose number of steps the user chose: enough for a curve."""


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
    encoded_images: int | None = None
    """Training images, and images of each half of the validation images, whose tokens a generator has, a
    random subset; None takes all."""


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
        require_at_least(1, steps=1 if steps is None else steps)
        require_at_least(1, generator_steps=1 if generator_steps is None else generator_steps)

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
        measuring=Measuring(
            images=12, geometry_images=8, samples=12, sampling_seeds=(0, 1), encoded_images=64
        ),
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
