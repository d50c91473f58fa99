"""Recipes: what any training decides, and a tokenizer's: VQ-GAN's (Esser et al. 2021), as LGQ sets it."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar, get_args

import torch

from lgq.checks import require_above_zero, require_at_least, require_between, require_one_of
from lgq.data import RandomCrop
from lgq.models.autoencoder import Backbone
from lgq.training.losses import LossWeights
from lgq.training.schedule import Schedule
from lgq.training.stopping import LoopSettings

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
            raise ValueError(f"image_size must be {rule}, got {self.image_size}.")
