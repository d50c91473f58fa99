"""How large an experiment is: the paper's, a pocket edition for two CPU cores, and one for tests.

Every run of a scale derives from one base, so that rows differ in what their table varies alone.
"""

from dataclasses import dataclass, replace
from typing import Any, TypeVar

from lgq.experiments.tasks import CostTask, GeneratorTask, TokenizerTask
from lgq.models.autoencoder import Backbone
from lgq.models.sampling import Sampling
from lgq.models.transformer import TransformerSettings
from lgq.runs import named_generator, named_run
from lgq.training.settings import GeneratorRun, LoopSettings, Precision, Schedule, TokenizerRun

AnyRun = TypeVar("AnyRun", TokenizerRun, GeneratorRun)

_VALIDATIONS = 10
"""Of a run whose number of steps was chosen: at least so many, for a curve."""


@dataclass(frozen=True, kw_only=True)
class Measuring:
    """How much is measured."""

    images: int
    """Of the validation data, a fixed random subset, for reconstruction and as reference of generators."""
    geometry_images: int
    """For the study of codebooks, likewise."""
    samples: int
    """That a generator draws with each sampling seed."""
    sampling_seeds: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Scale:
    """All that is decided once for every row."""

    name: str
    tokenizer: TokenizerRun
    """The base of every tokenizer."""
    ablation: TokenizerTask
    """The base of the ablations, for which the paper has a smaller budget."""
    search: TokenizerTask
    """The base of the search for settings: a small part of the steps."""
    searched_rates: tuple[float, ...]
    """Learning rates of that search."""
    searched_l1: tuple[float, ...]
    """Weights of l1 in the objective, likewise."""
    generator: GeneratorRun
    sizes: tuple[int, ...]
    """Codebook sizes of the sweep."""
    matched_sizes: tuple[int, ...]
    """Codebook sizes at which LGQ meets IBQ."""
    cost: CostTask
    cost_sizes: tuple[int, int, int, int]
    """The four codebook sizes of the cost table."""
    measuring: Measuring

    def row(
        self, quantizer: str = "lgq", codebook_size: int | None = None, *, stages: int = 1, **options: Any
    ) -> TokenizerTask:
        """The base with this quantizer, and nothing else changed."""
        return TokenizerTask(run=_with(self.tokenizer, quantizer, codebook_size, stages, options))

    def ablated(self, **options: Any) -> TokenizerTask:
        """The base of the ablations with these options of LGQ."""
        return replace(self.ablation, run=_with(self.ablation.run, "lgq", None, 1, options))

    def searched(self, quantizer: str, *, rate: float, l1: float) -> TokenizerTask:
        """The base of the search with this quantizer and these settings."""
        run = self.search.run
        run = replace(run, learning_rate=rate, loss=replace(run.loss, l1=l1))
        return replace(self.search, run=_with(run, quantizer, None, 1, {}))

    def generated(self, quantizer: str) -> GeneratorTask:
        """A generator on the tokens of the base with this quantizer."""
        return GeneratorTask(run=self.generator, tokenizer=self.row(quantizer))

    def adjusted(
        self, *, steps: int | None, generator_steps: int | None, precision: Precision | None
    ) -> "Scale":
        """With other lengths and another precision, for all rows alike."""
        return replace(
            self,
            tokenizer=_adjusted(self.tokenizer, steps, precision),
            ablation=replace(self.ablation, run=_adjusted(self.ablation.run, steps, precision)),
            search=replace(self.search, run=_adjusted(self.search.run, steps, precision)),
            generator=_adjusted(self.generator, generator_steps, precision),
            cost=replace(self.cost, around=_adjusted(self.tokenizer, None, precision)),
        )


def smoke() -> Scale:
    """Seconds: 16 x 16 pixels, 16 tokens of 32 codes, four steps."""
    loop = LoopSettings(steps=4, log_every=1, validate_every=2, checkpoint_every=2)
    backbone = Backbone(
        widths=(4, 8, 8), blocks=1, groups=2, attention_heads=0, latent_channels=8, latent_groups=2
    )
    tokenizer = replace(
        _pocket_tokenizer(),
        codebook_size=32,
        backbone=backbone,
        image_size=16,
        batch_size=4,
        schedule=Schedule(kind="cosine", warmup_steps=1),
        precision="float32",
        validation_images=8,
        rfid_images=None,
        loop=loop,
    )
    generator = replace(
        named_generator("pocket"),
        transformer=TransformerSettings(layers=1, width=16, heads=2, hidden=16),
        batch_size=4,
        schedule=Schedule(warmup_steps=1),
        validation_images=8,
        sample_images=2,
        sampling=Sampling(steps=2),
        loop=loop,
    )
    return Scale(
        name="smoke",
        tokenizer=tokenizer,
        ablation=TokenizerTask(run=tokenizer),
        search=TokenizerTask(run=tokenizer, judged=False),
        searched_rates=(1e-3,),
        searched_l1=(1.0, 10.0),
        generator=generator,
        sizes=(32, 64),
        matched_sizes=(32, 64),
        cost=CostTask(quantizer="lgq", codebook_size=32, tokens=64, dim=8, repeats=1, around=tokenizer),
        cost_sizes=(8, 16, 32, 64),
        measuring=Measuring(images=12, geometry_images=8, samples=12, sampling_seeds=(0, 1)),
    )


def pocket() -> Scale:
    """Hours of two CPU cores: 64 x 64 pixels, f = 8, 2,048 tokens a step as in the paper, 1,000 steps.

    The objective is l1 alone: LPIPS and a discriminator would take several times the backbone's time. Its
    weight makes up for them: at 1, the terms of IBQ and SimVQ outweigh it, and both end with one code.
    The best weights are chosen by l1, since rfid on few images tells late validations apart by chance.
    Ablations have half of the steps, and no rfid in their validations.
    """
    tokenizer = _pocket_tokenizer()
    by_pixels = replace(tokenizer, rfid_images=None)
    half = replace(tokenizer.loop, steps=500, validate_every=125)
    short = replace(tokenizer.loop, steps=200, validate_every=100)
    return Scale(
        name="pocket",
        tokenizer=tokenizer,
        ablation=TokenizerTask(run=replace(by_pixels, loop=half)),
        search=TokenizerTask(run=replace(by_pixels, loop=short), judged=False),
        searched_rates=(1e-3, 3e-4),
        searched_l1=(1.0, 10.0),
        generator=named_generator("pocket"),
        sizes=(1_024, 4_096, 16_384),
        matched_sizes=(1_024, 4_096, 16_384),
        cost=_paper_cost(tokenizer),
        cost_sizes=(4_096, 16_384, 65_536, 262_144),
        # 5,000 images of 64 tokens: with 1,000, codes of 16,384 would count as dead for want of tokens.
        measuring=Measuring(images=1_000, geometry_images=5_000, samples=1_000, sampling_seeds=(0, 1)),
    )


def imagenet256() -> Scale:
    """The paper's, for four processes of 8 images a step each: rFID on 10,000 images, geometry on 5,000.

    Its ablations see 50,000 images ten times.
    """
    tokenizer = named_run("imagenet256-lgq")
    short = replace(tokenizer.loop, steps=15_625, validate_every=1_563, checkpoint_every=500)
    ablation = TokenizerTask(run=replace(tokenizer, loop=short), images=50_000)
    return Scale(
        name="imagenet256",
        tokenizer=tokenizer,
        ablation=ablation,
        search=ablation,
        searched_rates=(1e-3, 3e-4, 1e-4),
        searched_l1=(1.0,),
        generator=named_generator("imagenet256"),
        sizes=(4_096, 8_192, 16_384, 32_768, 65_536),
        matched_sizes=(4_096, 16_384, 65_536),
        cost=_paper_cost(tokenizer),
        cost_sizes=(4_096, 16_384, 65_536, 262_144),
        measuring=Measuring(
            images=10_000, geometry_images=5_000, samples=50_000, sampling_seeds=(0, 1, 2, 3)
        ),
    )


SCALES = {"smoke": smoke, "pocket": pocket, "imagenet256": imagenet256}


def _pocket_tokenizer() -> TokenizerRun:
    """Narrower than the named run, with fewer groups, which a CPU normalises faster."""
    run = named_run("pocket-lgq")
    return replace(
        run,
        backbone=replace(run.backbone, widths=(16, 32, 64, 64), groups=2),
        learning_rate=1e-3,
        loss=replace(run.loss, l1=10.0),
        schedule=Schedule(kind="cosine", warmup_steps=50),
        precision="bf16",
        best_by="l1",
        rfid_images=250,
        loop=replace(run.loop, steps=1_000, validate_every=250, checkpoint_every=250, keep=1),
    )


def _paper_cost(around: TokenizerRun) -> CostTask:
    """32 images of 256 tokens of 64 channels."""
    return CostTask(quantizer="lgq", codebook_size=16_384, tokens=8_192, dim=64, repeats=5, around=around)


def _with(
    base: TokenizerRun, quantizer: str, codebook_size: int | None, stages: int, options: dict[str, Any]
) -> TokenizerRun:
    return replace(
        base,
        quantizer=quantizer,
        codebook_size=codebook_size or base.codebook_size,
        stages=stages,
        quantizer_options=options,
    )


def _adjusted(run: AnyRun, steps: int | None, precision: Precision | None) -> AnyRun:
    if precision is not None:
        run = replace(run, precision=precision)
    if steps is None:
        return run
    every = min(run.loop.validate_every, max(1, steps // _VALIDATIONS))
    return replace(
        run,
        loop=replace(run.loop, steps=steps, validate_every=every),
        schedule=replace(run.schedule, warmup_steps=min(run.schedule.warmup_steps, steps // 10)),
    )
