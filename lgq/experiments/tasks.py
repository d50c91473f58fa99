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

_FREE = {"workers"}
_FREE_OF_THE_LOOP = {"log_every", "checkpoint_every", "keep", "minutes", "wandb"}
"""Settings that no number in a record depends on."""


@dataclass(frozen=True, kw_only=True)
class TokenizerTask:
    """Train a tokenizer and evaluate its best weights."""

    kind: ClassVar[str] = "tokenizer"
    run: TokenizerRun
    images: int | None = None
    """Training images, a random subset that is the same for all; None takes every one."""
    judged: bool = True
    """Whether networks judge the best weights (rFID, LPIPS); without, pixels and codes alone are measured."""

    @property
    def seed(self) -> int:
        return self.run.seed

    @property
    def steps(self) -> int:
        return self.run.loop.steps

    def seeded(self, seed: int) -> "TokenizerTask":
        return replace(self, run=replace(self.run, seed=seed))

    def name(self) -> str:
        run = self.run
        stages = f"-x{run.stages}" if run.stages > 1 else ""
        usual = {p.name: p.default for p in signature(QUANTIZERS[run.quantizer]).parameters.values()}
        given = sorted(run.quantizer_options.items())
        chosen = "".join(f"-{name}-{value}" for name, value in given if value != usual[name])
        return f"{run.quantizer}-k{run.codebook_size}{stages}{chosen}-s{run.seed}"

    def settings(self) -> dict[str, Any]:
        """Resolved, so that an option given at its default makes no other run."""
        options = self.planned_tokenizer().settings["quantizer_options"]
        decisive = _decisive(to_json(self.run)) | {"quantizer_options": options}
        return decisive | {"images": self.images, "judged": self.judged}

    def parameters(self) -> dict[str, int]:
        return self.planned_tokenizer().parameter_counts()

    def planned_tokenizer(self) -> Tokenizer:
        """Without memory for its weights."""
        run, options = self.run, {"seed": self.run.seed} | self.run.quantizer_options
        with torch.device("meta"):
            return Tokenizer(
                run.backbone, run.quantizer, run.codebook_size, stages=run.stages, quantizer_options=options
            )


@dataclass(frozen=True, kw_only=True)
class GeneratorTask:
    """Train a generator on the tokens of a tokenizer, which is trained first, and evaluate it likewise."""

    kind: ClassVar[str] = "generator"
    run: GeneratorRun
    tokenizer: TokenizerTask

    @property
    def seed(self) -> int:
        return self.run.seed

    @property
    def steps(self) -> int:
        return self.run.loop.steps

    def seeded(self, seed: int) -> "GeneratorTask":
        return GeneratorTask(run=replace(self.run, seed=seed), tokenizer=self.tokenizer.seeded(seed))

    def name(self) -> str:
        return f"maskgit-{self.tokenizer.name()}"

    def settings(self) -> dict[str, Any]:
        return _decisive(to_json(self.run)) | {"tokenizer": self.tokenizer.settings()}

    def parameters(self) -> dict[str, int]:
        """As of one class: each further one adds a vector."""
        return {"transformer": sum(p.numel() for p in self.planned_transformer("meta").parameters())}

    def planned_transformer(self, device: str | torch.device) -> MaskedTransformer:
        run = self.tokenizer.run
        length = (run.image_size // run.backbone.factor) ** 2 * run.stages
        with torch.device(device):
            return MaskedTransformer(run.codebook_size, length, 1, self.run.transformer)


@dataclass(frozen=True, kw_only=True)
class CostTask:
    """Time and memory of a quantizer's forward and backward pass, and the time of the networks around it."""

    kind: ClassVar[str] = "cost"
    quantizer: str
    codebook_size: int
    tokens: int
    """Vectors in a batch."""
    dim: int
    """Channels of a vector."""
    repeats: int
    around: TokenizerRun
    """Whose encoder and decoder are timed for comparison."""

    seed: ClassVar[int] = 0
    steps: ClassVar[int] = 0

    def seeded(self, seed: int) -> "CostTask":
        """A time has no seed."""
        return self

    def name(self) -> str:
        return f"cost-{self.quantizer}-k{self.codebook_size}"

    def settings(self) -> dict[str, Any]:
        return to_json(self) | {"around": _decisive(to_json(self.around))}

    def parameters(self) -> dict[str, int]:
        return {}


Task = TokenizerTask | GeneratorTask | CostTask


def _decisive(run: dict[str, Any]) -> dict[str, Any]:
    loop = {name: value for name, value in run["loop"].items() if name not in _FREE_OF_THE_LOOP}
    return {name: value for name, value in run.items() if name not in _FREE} | {"loop": loop}
