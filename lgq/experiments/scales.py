"""What tables need beyond the runs of a scale (`lgq.runs`): codebook sizes, ablation budgets, measurements.

Every row of a scale derives from one run, so that rows differ only in what their table varies.
"""

from dataclasses import dataclass, replace
from typing import Any

from lgq.checks import require_known
from lgq.experiments.tasks import CostTask, GeneratorTask, TokenizerTask
from lgq.runs import AnyRun, named_generator, named_run, pocket, scale_options
from lgq.training.settings import GeneratorRun, Precision, TokenizerRun

_VALIDATIONS = 10
"""Least number of validations in a run whose number of steps the user chose: enough for a curve."""


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
        searched_rates=(3e-4,),
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
