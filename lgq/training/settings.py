"""Settings of a training run: learning rate schedule, length and logging, tokenizer runs, generator runs.

`TokenizerRun` follows VQ-GAN (Esser et al. 2021) and `GeneratorRun` follows MaskGIT (Chang et al. 2022);
their defaults are the ImageNet runs of LGQ (Altun et al. 2026). Docstrings of fields are the help texts of
`lgq train` and `lgq train-generator`.
"""

import math
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, TypeVar, get_args

import torch

from lgq.checks import require_above_zero, require_at_least, require_between, require_one_of
from lgq.data import RandomCrop
from lgq.errors import LGQError
from lgq.models.autoencoder import Backbone
from lgq.models.sampling import Sampling
from lgq.models.transformer import TransformerSettings
from lgq.training.losses import LossWeights

Kind = Literal["constant", "cosine"]
Precision = Literal["float32", "bf16", "fp16"]
BestBy = Literal["rfid", "lpips", "l1"]
Run = TypeVar("Run", bound="TrainingRun")

_LARGEST_SEED = 2**63 - 1  # the largest that torch takes
_HALF_PRECISION = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Multiplier of the learning rate: a linear warm-up to 1, then constant or a cosine decay."""

    kind: Kind = "constant"
    """After the warm-up: stay at 1, or decay to `final` along half a cosine (Loshchilov & Hutter 2017)."""
    warmup_steps: int = 0
    """Steps of the linear warm-up; 0 starts at the full learning rate. A run with no more steps than that
    warms up for a tenth of its own."""
    final: float = 0.0
    """Multiplier at the end of the cosine decay, between 0 and 1; `constant` ignores it."""

    def __post_init__(self) -> None:
        require_one_of(get_args(Kind), kind=self.kind)
        require_at_least(0, warmup_steps=self.warmup_steps)
        require_between(0, 1, final=self.final)

    def multiplier(self, step: int, total_steps: int) -> float:
        """Return the multiplier of a step: 1 at the end of the warm-up, the final value at `total_steps`."""
        # Not when the settings are made: a short run may become longer, and its settings stay the same.
        warmup = self.warmup_steps if self.warmup_steps < total_steps else total_steps // 10
        if step < warmup:
            # Step 0 is above 0, so that it trains too.
            return (step + 1) / (warmup + 1)
        if self.kind == "constant":
            return 1.0
        progress = min(1.0, (step - warmup) / (total_steps - warmup))
        height = (1 + math.cos(math.pi * progress)) / 2
        return height + (1 - height) * self.final


@dataclass(frozen=True, kw_only=True)
class LoopSettings:
    """When a run ends, and how often it logs, validates and saves."""

    prefixed: ClassVar[tuple[str, ...]] = ()
    """Every run has these settings, so their options need no prefix: --steps, not --loop.steps."""

    steps: int = 20_000
    """Optimizer steps of the whole run; learning rate schedule and temperatures span them. More than before
    extend the run."""
    epochs: float | None = None
    """End the run after this many epochs if they take fewer than `steps` steps; None sets no limit."""
    log_every: int = 50
    """Steps between two training records in metrics.jsonl, and two lines where there is no terminal; the last
    step is always logged."""
    validate_every: int = 1_000
    """Steps between two validations; the last step is always validated."""
    checkpoint_every: int = 1_000
    """Steps between two checkpoints, the most that a killed run repeats; a new best is saved at once."""
    keep: int = 3
    """Number of checkpoints to keep, the newest ones."""
    patience: int | None = None
    """Stop after this many validations in a row without a better score; None never stops early."""
    minutes: float | None = None
    """Stop after this many minutes of training, counted over restarts; None sets no limit."""
    wandb: str | None = None
    """Weights & Biases project (PROJECT or OWNER/PROJECT) that gets the records too; None sends none."""

    def __post_init__(self) -> None:
        require_at_least(1, steps=self.steps, log_every=self.log_every, validate_every=self.validate_every)
        require_at_least(1, checkpoint_every=self.checkpoint_every, keep=self.keep)
        if self.patience is not None:
            require_at_least(1, patience=self.patience)
        limits = {"epochs": self.epochs, "minutes": self.minutes}
        require_above_zero(**{name: limit for name, limit in limits.items() if limit is not None})

    def logs(self, step: int) -> bool:
        """Tell whether the run logs after this many steps."""
        return step % self.log_every == 0 or step == self.steps

    def for_data(self, images: int, images_per_step: int) -> "LoopSettings":
        """Return these settings with `steps` lowered to those of `epochs` over the data, rounded up."""
        if self.epochs is None:
            return self
        # Rounded first: 0.1 of 30 images are 3, though not in binary fractions.
        steps = math.ceil(round(self.epochs * images / images_per_step, 6))
        return replace(self, steps=min(self.steps, max(1, steps)))


@dataclass(frozen=True, kw_only=True)
class TrainingRun:
    """Settings that tokenizer runs and generator runs share."""

    batch_size: int
    """Images per batch on each process."""
    learning_rate: float
    """Learning rate of AdamW, before the schedule."""
    weight_decay: float = 0.01
    """Weight decay of AdamW."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Decay rates of AdamW's averages of the gradient and of its square."""
    schedule: Schedule = field(default_factory=Schedule)
    """Learning rate schedule."""
    accumulate: int = 1
    """Batches per optimizer step, whose gradients are averaged."""
    clip: float | None = None
    """Largest norm of the gradient; larger gradients are scaled down to it. None does not clip."""
    precision: Precision = "float32"
    """Precision of convolutions and matrix products; weights, losses and quantizers stay in float32."""
    average_decay: float | None = None
    """Decay of a moving average of the weights, which is then validated and saved; None keeps no average."""
    compile: bool = False
    """Compile the network with torch.compile."""
    seed: int = 0
    """Seed of the initial weights, of the order of the data and of everything else that is random."""
    validation_images: int = 1_000
    """Images per validation, evenly spread over the validation data."""
    loop: LoopSettings = field(default_factory=LoopSettings)
    """Length, logging and checkpoints."""

    def __post_init__(self) -> None:
        require_at_least(1, batch_size=self.batch_size, accumulate=self.accumulate)
        require_at_least(1, validation_images=self.validation_images)
        require_at_least(0, weight_decay=self.weight_decay)
        require_between(0, _LARGEST_SEED, seed=self.seed)
        require_above_zero(learning_rate=self.learning_rate)
        require_one_of(get_args(Precision), precision=self.precision)
        for beta in self.betas:
            require_between(0, 1, betas=beta)
        if self.clip is not None:
            require_above_zero(clip=self.clip)
        if self.average_decay is not None:
            require_between(0, 1, average_decay=self.average_decay)

    def rank_seed(self, rank: int, ranks: int) -> int:
        """Return the seed of the random numbers that one process draws, different for each process."""
        return (self.seed * ranks + rank) % (_LARGEST_SEED + 1)

    def learning_rate_at(self, step: int) -> float:
        return self.learning_rate * self.schedule.multiplier(step, self.loop.steps)

    def autocast(self, device: str) -> AbstractContextManager[Any]:
        """Return the context in which networks run at this run's precision on a type of device."""
        dtype = _HALF_PRECISION.get(self.precision)
        return torch.autocast(device, dtype) if dtype else nullcontext()

    def images_per_step(self, ranks: int = 1) -> int:
        return self.batch_size * self.accumulate * ranks

    def for_data(self: Run, images: int, *, ranks: int = 1) -> Run:
        """Return this run with `loop.epochs` resolved to steps over so many images."""
        return replace(self, loop=self.loop.for_data(images, self.images_per_step(ranks)))


def require_run(run: object, kind: type[TrainingRun]) -> None:
    """Refuse a name, or settings of another kind, where settings of a run are needed."""
    if not isinstance(run, kind):
        example = "pocket-lgq" if kind is TokenizerRun else "pocket"
        raise LGQError(f"expected a {kind.__name__}, such as lgq.run({example!r}), got {run!r:.60}.")


@dataclass(frozen=True, kw_only=True)
class TokenizerRun(TrainingRun):
    """Settings of a tokenizer's training; the defaults are the paper's ImageNet run."""

    batch_size: int = 8
    """Images per batch on each process."""
    learning_rate: float = 3e-4
    """Learning rate of AdamW for tokenizer and discriminator, before the schedule."""
    quantizer: str = "lgq"
    """Name of the quantizer, such as lgq, vq or fsq."""
    codebook_size: int = 16_384
    """Number of codes, per stage if there are several."""
    stages: int = 1
    """Stages of a residual quantizer, each for what the last one left over; 1 is a plain quantizer."""
    scales: tuple[int, ...] = ()
    """Sides of the growing grids of a multi-scale quantizer (VAR), such as 1 2 3 4 6 8, whose tokens are one
    sequence per image; none is one grid."""
    quantizer_options: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of the quantizer's constructor, such as tau_end=0.05. Its seed is the run's unless
    it is given here."""
    backbone: Backbone = field(default_factory=Backbone)
    """Encoder and decoder."""
    frozen_tokens: bool = False
    """Train the decoder alone: encoder and quantizer, and so all tokens, stay those of `start_from`."""
    rfid_images: int | None = None
    """Validation images on which rFID is computed; None: all of them if `best_by` is rfid, else none."""
    image_size: int = 256
    """Side of the square training images in pixels, a multiple of the backbone's factor."""
    workers: int = 4
    """Processes that read and decode images for each trainer; 0 decodes in the trainer itself."""
    crop: RandomCrop = field(default_factory=RandomCrop)
    """Random crops of training images."""
    loss: LossWeights = field(default_factory=LossWeights)
    """Weights of the loss terms."""
    channels_last: bool = False
    """Store images and features channels-last, which is often faster."""
    best_by: BestBy = "rfid"
    """Validation metric whose lowest value selects the best weights: rfid, or lpips if Inception's weights
    are missing, or l1 if LPIPS's are too. On a CPU, rfid and lpips take longer than the training."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(1, codebook_size=self.codebook_size, stages=self.stages, image_size=self.image_size)
        require_at_least(0, workers=self.workers)
        if self.scales and self.stages > 1:
            raise LGQError(f"a run has `stages` or `scales`, got {self.stages} stages and {self.scales}.")
        if self.rfid_images is not None:
            require_between(2, self.validation_images, rfid_images=self.rfid_images)
        require_one_of(get_args(BestBy), best_by=self.best_by)
        if self.image_size % self.backbone.factor:
            rule = f"a multiple of {self.backbone.factor}, the backbone's factor"
            raise LGQError(f"`image_size` must be {rule}, got {self.image_size}.")


@dataclass(frozen=True, kw_only=True)
class GeneratorRun(TrainingRun):
    """Settings of a generator's training on tokens; the defaults are the paper's ImageNet run.

    The paper trained for about 100 epochs of ImageNet: 1,000,000 steps of 4 x 32 images, with a validation
    per epoch. It leaves open AdamW's decay rates and weight decay, the warm-up and the label smoothing;
    these are the usual ones for MaskGIT on ImageNet.
    """

    transformer: TransformerSettings = field(default_factory=TransformerSettings)
    """Size of the network."""
    batch_size: int = 32
    """Images per batch on each process."""
    accumulate: int = 4
    """Batches per optimizer step; each has the same weight, however many of its tokens are masked."""
    learning_rate: float = 1e-4
    """Learning rate of AdamW, before the schedule."""
    weight_decay: float = 0.045
    """Weight decay of AdamW."""
    betas: tuple[float, float] = (0.9, 0.96)
    """Decay rates of AdamW's averages of the gradient and of its square."""
    schedule: Schedule = field(default_factory=lambda: Schedule(warmup_steps=5_000))
    """Learning rate schedule."""
    label_smoothing: float = 0.1
    """Share of each target that is spread evenly over all codes, between 0 and 1."""
    label_dropout: float = 0.1
    """Probability of hiding an image's class, which classifier-free guidance needs."""
    flips: bool = True
    """Replace half of the images, chosen at random, by their mirror images, if the tokens include them."""
    validation_images: int = 10_000
    """Images per validation, evenly spread over the validation data."""
    sample_images: int = 16
    """Images that each validation generates into images/ of the run directory; 0 generates none."""
    sampling: Sampling = field(default_factory=Sampling)
    """How these images are sampled; the weights do not depend on it."""
    loop: LoopSettings = field(
        default_factory=lambda: LoopSettings(
            steps=1_000_000, validate_every=10_000, checkpoint_every=5_000, patience=10
        )
    )
    """Length, logging and checkpoints."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(0, sample_images=self.sample_images)
        require_between(0, 1, label_smoothing=self.label_smoothing, label_dropout=self.label_dropout)
