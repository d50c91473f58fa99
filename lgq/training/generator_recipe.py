"""The recipe of a generator: MaskGIT's (Chang et al. 2022), as LGQ (Altun et al. 2026) sets it.

LGQ gives the size of the network, the batch, the learning rate and when to stop. What it leaves open, the
decays of AdamW, its weight decay, the warm-up and the label smoothing, is usual for MaskGIT on ImageNet.
"""

from dataclasses import dataclass, field

from lgq.checks import require_at_least, require_between
from lgq.models.maskgit import Transformer
from lgq.models.sampling import Sampling
from lgq.training.recipe import TrainingRun
from lgq.training.schedule import Schedule
from lgq.training.stopping import LoopSettings


@dataclass(frozen=True, kw_only=True)
class GeneratorRun(TrainingRun):
    """All that decides how a generator is trained on tokens; the defaults are the paper's ImageNet run.

    The paper's generators saw ImageNet about 100 times, 1,000,000 steps of 4 x 32 images. A validation
    comes after each time.
    """

    transformer: Transformer = field(default_factory=Transformer)
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
