"""What a row of a table asks for: train a tokenizer, train a generator on its tokens, or time a quantizer."""

from dataclasses import dataclass, replace
from inspect import signature
from typing import Any, ClassVar

import torch

from lgq.config import to_json
from lgq.models.transformer import MaskedTransformer
from lgq.quantizers import QUANTIZERS
from lgq.tokenizer import Tokenizer
from lgq.training.settings import GeneratorRun, TokenizerRun

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
        defaults = {p.name: p.default for p in signature(QUANTIZERS[run.quantizer]).parameters.values()}
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
                run.backbone, run.quantizer, run.codebook_size, stages=run.stages, quantizer_options=options
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
