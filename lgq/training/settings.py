"""The learning rate over training, as a multiplier that depends on the step alone.

When is a run over? After its steps, its epochs or its time, when it no longer improves, or when asked.

Recipes: what any training decides, and a tokenizer's: VQ-GAN's (Esser et al. 2021), as LGQ sets it.

The recipe of a generator: MaskGIT's (Chang et al. 2022), as LGQ (Altun et al. 2026) sets it.

LGQ gives the size of the network, the batch, the learning rate and when to stop. What it leaves open, the
decays of AdamW, its weight decay, the warm-up and the label smoothing, is usual for MaskGIT on ImageNet.
"""

import math
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar, get_args

import torch

from lgq.checks import require_above_zero, require_at_least, require_between, require_one_of
from lgq.data import RandomCrop
from lgq.errors import LGQError
from lgq.models.autoencoder import Backbone
from lgq.models.sampling import Sampling
from lgq.models.transformer import TransformerSettings
from lgq.training.losses import LossWeights
from lgq.training.signals import INTERRUPTED

Kind = Literal["constant", "cosine"]


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """A linear rise to 1, then what `kind` says."""

    kind: Kind = "constant"
    """After the rise: stay at 1, or fall to `final` along half a cosine (Loshchilov & Hutter 2017)."""
    warmup_steps: int = 0
    """Steps before the multiplier is 1. Step 0 has 1 / (warmup_steps + 1), so that it learns already."""
    final: float = 0.0
    """Multiplier at the end of the cosine; `constant` has no use for it."""

    def __post_init__(self) -> None:
        require_one_of(get_args(Kind), kind=self.kind)
        require_at_least(0, warmup_steps=self.warmup_steps)
        require_between(0, 1, final=self.final)

    def multiplier(self, step: int, total_steps: int) -> float:
        """Exactly 1 at step `warmup_steps`; exactly the end value at `total_steps`, and after it."""
        require_at_least(0, step=step)
        _require_room(self.warmup_steps, total_steps)
        if step < self.warmup_steps:
            return (step + 1) / (self.warmup_steps + 1)
        if self.kind == "constant":
            return 1.0
        progress = min(1.0, (step - self.warmup_steps) / (total_steps - self.warmup_steps))
        height = (1 + math.cos(math.pi * progress)) / 2
        return height + (1 - height) * self.final


def _require_room(warmup_steps: int, total_steps: int) -> None:
    if warmup_steps >= total_steps:
        raise LGQError(
            f"warmup_steps must be fewer than the steps of the run, got {warmup_steps} of {total_steps}: "
            "shorten the warm-up or lengthen the run."
        )


Reason = Literal["finished", "interrupted", "out_of_time", "no_improvement"]


@dataclass(frozen=True, kw_only=True)
class LoopSettings:
    """How long a run goes on, and what it leaves behind on the way."""

    steps: int = 20_000
    """Optimizer steps of the whole run, over which schedules and temperatures go their way."""
    epochs: float | None = None
    """Passes over the data after which the run is over, if these come before `steps`: a run that knows
    its data lowers its `steps` to them. None has no such limit."""
    log_every: int = 50
    """Steps from one training record to the next."""
    validate_every: int = 1_000
    """Steps from one validation to the next; the last step has one in any case."""
    checkpoint_every: int = 1_000
    """Steps that a killed run may have to do again; a new best score has a checkpoint in any case."""
    keep: int = 3
    """Checkpoints to keep, the newest ones."""
    patience: int | None = None
    """Stop after this many validations in a row without a better score; None never does."""
    minutes: float | None = None
    """Stop after this time, which counts over restarts; None has no limit."""
    wandb: str | None = None
    """Project of Weights & Biases, or owner/project, that gets the records too; None does without."""

    def __post_init__(self) -> None:
        require_at_least(1, steps=self.steps, log_every=self.log_every, validate_every=self.validate_every)
        require_at_least(1, checkpoint_every=self.checkpoint_every, keep=self.keep)
        if self.patience is not None:
            require_at_least(1, patience=self.patience)
        limits = {"epochs": self.epochs, "minutes": self.minutes}
        require_above_zero(**{name: limit for name, limit in limits.items() if limit is not None})

    def for_data(self, items: int, items_per_step: int) -> "LoopSettings":
        """With `steps` lowered to those that take `epochs` passes over this many items, rounded up."""
        if self.epochs is None:
            return self
        # Rounded first: 0.1 of 30 items are 3, though not in binary fractions.
        whole = math.ceil(round(self.epochs * items / items_per_step, 6))
        return replace(self, steps=min(self.steps, max(1, whole)))


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a run ended."""

    reason: Reason
    step: int
    """Optimizer steps done, over all restarts."""
    best: float | None
    """The best score of a validation, if there was one."""
    best_step: int | None

    @property
    def exit_code(self) -> int:
        """75 where the same command should be run again, 0 where the run is over."""
        return INTERRUPTED if self.reason == "interrupted" else 0


@dataclass
class Best:
    """The best score so far, and how long ago it was."""

    score: float | None = None
    step: int | None = None
    validations_since: int = 0

    def take(self, score: float, step: int, *, higher_is_better: bool) -> bool:
        """Whether this score is the best one."""
        better = self.score is None or (score > self.score if higher_is_better else score < self.score)
        if better and math.isfinite(score):
            self.score, self.step, self.validations_since = score, step, 0
            return True
        self.validations_since += 1
        return False


Precision = Literal["float32", "bf16", "fp16"]
BestBy = Literal["rfid", "lpips", "l1"]
Run = TypeVar("Run", bound="TrainingRun")

_HIGHEST_SEED = 2**63 - 1  # that fits into torch's own
_HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True, kw_only=True)
class TrainingRun:
    """What every recipe has, whatever it trains."""

    batch_size: int
    """Images a process takes at a time."""
    learning_rate: float
    """Of AdamW, before the schedule."""
    weight_decay: float = 0.01
    """Of AdamW."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Decays of AdamW's running means of the gradient and of its square."""
    schedule: Schedule = field(default_factory=Schedule)
    """The learning rate over the run."""
    accumulate: int = 1
    """Batches whose gradients make one optimizer step."""
    clip: float | None = None
    """Largest norm of a gradient, longer ones are shortened to it; None leaves all as they are."""
    precision: Precision = "float32"
    """Of convolutions and products; losses and weights stay float32, as does a quantizer."""
    average_decay: float | None = None
    """Of a moving average of the weights, which is then what is validated and saved; None has none."""
    compile: bool = False
    """Compile the network for training."""
    seed: int = 0
    """Of the random start, and of all else that is random."""
    validation_images: int = 1_000
    """Images of a validation, evenly spread over its data."""
    loop: LoopSettings = field(default_factory=LoopSettings)
    """Length, records, checkpoints."""

    def __post_init__(self) -> None:
        require_at_least(1, batch_size=self.batch_size, accumulate=self.accumulate)
        require_at_least(1, validation_images=self.validation_images)
        require_at_least(0, weight_decay=self.weight_decay)
        require_between(0, _HIGHEST_SEED, seed=self.seed)
        require_above_zero(learning_rate=self.learning_rate)
        require_one_of(get_args(Precision), precision=self.precision)
        require_between(0, 1, beta_1=self.betas[0], beta_2=self.betas[1])
        if self.clip is not None:
            require_above_zero(clip=self.clip)
        if self.average_decay is not None:
            require_between(0, 1, average_decay=self.average_decay)
        self.schedule.multiplier(0, self.loop.steps)  # refuses a warm-up without end

    def rank_seed(self, rank: int, ranks: int) -> int:
        """Of what a process draws by itself: another one for each."""
        return (self.seed * ranks + rank) % (_HIGHEST_SEED + 1)

    def rate(self, step: int) -> float:
        """The learning rate of a step."""
        return self.learning_rate * self.schedule.multiplier(step, self.loop.steps)

    def autocast(self, device: str) -> AbstractContextManager[Any]:
        """The precision of convolutions and products, on a type of device."""
        # Not Accelerate's own, whose precision is one for all that a process ever does.
        half = _HALF.get(self.precision)
        return torch.autocast(device, half) if half else nullcontext()

    def for_data(self: Run, images: int, *, ranks: int = 1) -> Run:
        """This run over so many images, with the number of its steps resolved."""
        images_per_step = self.batch_size * self.accumulate * ranks
        return replace(self, loop=self.loop.for_data(images, images_per_step))


@dataclass(frozen=True, kw_only=True)
class TokenizerRun(TrainingRun):
    """All that decides how a tokenizer is trained; the defaults are the paper's ImageNet run."""

    batch_size: int = 8
    """Images a process takes at a time."""
    learning_rate: float = 3e-4
    """Of AdamW, for tokenizer and discriminator alike, before the schedule."""
    quantizer: str = "lgq"
    """lgq, ibq, vq, rotvq, fsq, lfq or simvq."""
    codebook_size: int = 16_384
    """Number of codes, of each stage if there are several."""
    stages: int = 1
    """Above 1, a residual quantizer: each stage takes what the last left over."""
    quantizer_options: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of the quantizer's constructor; its `seed` is the run's unless given here."""
    backbone: Backbone = field(default_factory=Backbone)
    """Encoder and decoder."""
    rfid_images: int | None = None
    """Of the images of a validation, evenly spread, those that rfid is taken on, whatever the best weights
    are chosen by; None takes all where they are chosen by rfid, and otherwise none."""
    image_size: int = 256
    """Side of the square images, a multiple of the backbone's factor."""
    workers: int = 4
    """Processes that decode images ahead of each trainer; 0 leaves it to the trainer itself."""
    crop: RandomCrop = field(default_factory=RandomCrop)
    """How training images are cut."""
    loss: LossWeights = field(default_factory=LossWeights)
    """What each part of the objective counts."""
    channels_last: bool = False
    """Keep images and features with the channels last in memory, often faster."""
    best_by: BestBy = "rfid"
    """What a validation chooses the best weights by; where the network for it is not at hand, by the
    next one of rfid, lpips and l1. The former two cost a CPU more time than the training does."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(1, codebook_size=self.codebook_size, stages=self.stages, image_size=self.image_size)
        require_at_least(0, workers=self.workers)
        if self.rfid_images is not None:
            require_between(2, self.validation_images, rfid_images=self.rfid_images)
        require_one_of(get_args(BestBy), best_by=self.best_by)
        if self.image_size % self.backbone.factor:
            rule = f"a multiple of {self.backbone.factor}, the backbone's factor"
            raise LGQError(f"image_size must be {rule}, got {self.image_size}.")


@dataclass(frozen=True, kw_only=True)
class GeneratorRun(TrainingRun):
    """All that decides how a generator is trained on tokens; the defaults are the paper's ImageNet run.

    The paper's generators saw ImageNet about 100 times, 1,000,000 steps of 4 x 32 images. A validation
    comes after each time.
    """

    transformer: TransformerSettings = field(default_factory=TransformerSettings)
    """Size of the network."""
    batch_size: int = 32
    """Images a process takes at a time."""
    accumulate: int = 4
    """Batches whose gradients make one optimizer step; each counts alike, however many tokens it hides."""
    learning_rate: float = 1e-4
    """Of AdamW, before the schedule."""
    weight_decay: float = 0.045
    """Of AdamW."""
    betas: tuple[float, float] = (0.9, 0.96)
    """Decays of AdamW's running means of the gradient and of its square."""
    schedule: Schedule = field(default_factory=lambda: Schedule(warmup_steps=5_000))
    """The learning rate over the run."""
    label_smoothing: float = 0.1
    """Share of a token's target that is spread over all codes."""
    label_dropout: float = 0.1
    """Probability that an image is shown without its class, from which guidance learns what none means."""
    flips: bool = True
    """Whether to take every other image mirrored, at random, where the tokens have mirrored images."""
    validation_images: int = 10_000
    """Images of a validation, evenly spread over its data."""
    sample_images: int = 16
    """Images that a validation draws into the run's images/; 0 draws none."""
    sampling: Sampling = field(default_factory=Sampling)
    """How these are drawn; the network does not depend on it."""
    loop: LoopSettings = field(
        default_factory=lambda: LoopSettings(
            steps=1_000_000, validate_every=10_000, checkpoint_every=5_000, patience=10
        )
    )
    """Length, records, checkpoints."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(0, sample_images=self.sample_images)
        require_between(0, 1, label_smoothing=self.label_smoothing, label_dropout=self.label_dropout)
