"""What the loop trains: anything that takes a step, validates, and can be saved to the last bit.

A module that learns: AdamW (Loshchilov & Hutter 2019), clipped gradients, the loss scale of fp16.

What all trainings have in common, around the loop: sources, means, averages, pictures.

Devices and processes of a training, as torchrun starts them or alone.
"""

import os
from collections.abc import Sized
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from accelerate import Accelerator  # type: ignore[import-untyped]
from jaxtyping import Float
from torch import Tensor, nn

from lgq.distributed import join_processes, sum_over_ranks, world_size
from lgq.files import make_directory, replace_file
from lgq.training.ema import WeightAverage
from lgq.training.run_directory import RunError, disk_errors_named
from lgq.training.settings import TrainingRun


@runtime_checkable
class Trainee(Protocol):
    """What learns. With several processes every method is called on every rank, in the same order."""

    score: str
    """The value of `validate` that decides which weights are the best."""
    higher_is_better: bool
    items_per_step: int
    """Over all ranks; for the rate that is shown."""

    def config(self) -> dict[str, Any]:
        """All that the result depends on, resolved, as JSON; with a `seed`."""

    def train_step(self, step: int) -> dict[str, Tensor]:
        """One optimizer step, the `step`-th from 0; detached scalars, in the order in which one spoils
        the next. May raise `NonFiniteError` where it cannot go on."""

    def validate(self, step: int) -> dict[str, float]:
        """After `step` steps, the same on every rank; draws no random numbers."""

    def state(self) -> dict[str, Any]:
        """All that `load_state` needs to go on to the last bit, but the random states."""

    def load_state(self, state: dict[str, Any]) -> None: ...

    def save_pretrained(self, directory: Path) -> None:
        """Write what users load; on the first rank alone."""

    def describe_batch(self) -> list[str]:
        """Names of the files in the present batch of this rank."""


class NonFiniteError(ArithmeticError):
    """Raised by a trainee that met NaN or infinity before it had a loss; names the term."""


class Learner:
    """A module's parameters with their optimizer, and the scale that keeps fp16 gradients from vanishing."""

    def __init__(self, module: nn.Module, run: TrainingRun, device: torch.device):
        self.parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self._optimizer = torch.optim.AdamW(
            self.parameters, lr=run.learning_rate, betas=run.betas, weight_decay=run.weight_decay
        )
        self._scaler = torch.amp.GradScaler(device.type, enabled=run.precision == "fp16")
        self._clip = float("inf") if run.clip is None else run.clip

    def backward(self, loss: Float[Tensor, ""]) -> None:
        self._scaler.scale(loss).backward()

    def average_gradients(self) -> None:
        """Over ranks, for a module that no wrapper does it for."""
        if world_size() > 1:
            for parameter in self.parameters:
                if parameter.grad is not None:
                    parameter.grad.copy_(sum_over_ranks(parameter.grad) / world_size())

    def step(self, rate: float) -> Float[Tensor, ""]:
        """Follow the gradients at this learning rate, and forget them; returns their norm."""
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._scaler.unscale_(self._optimizer)
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        norm = nn.utils.get_total_norm(gradients)
        if self._clip < float("inf"):
            nn.utils.clip_grads_with_norm_(self.parameters, self._clip, norm)
        self._scaler.step(self._optimizer)
        self._scaler.update()
        self._optimizer.zero_grad()
        # Overflow is how the scaler finds its scale: it leaves such a step out, and the run goes on.
        return norm.nan_to_num(posinf=0.0) if self._scaler.is_enabled() else norm

    def state(self) -> dict[str, Any]:
        return {"optimizer": self._optimizer.state_dict(), "scaler": self._scaler.state_dict()}

    def load_state(self, state: dict[str, Any]) -> None:
        self._optimizer.load_state_dict(state["optimizer"])
        if self._scaler.is_enabled():
            self._scaler.load_state_dict(state["scaler"])


IMAGES = "images"


def describe_data(dataset: Sized) -> dict[str, Any]:
    """What config.json says of a data set."""
    return {"source": repr(dataset), "images": len(dataset)}


def mean_terms(parts: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Of the batches of one step, term by term."""
    return {name: torch.stack([part[name] for part in parts]).mean() for name in parts[0]}


def averaged(model: nn.Module, average: WeightAverage | None) -> AbstractContextManager[None]:
    """Within, the model has its averaged weights, if there is an average."""
    return nullcontext() if average is None else average.applied_to(model)


def save_picture(run: Path, step: int, png: bytes) -> None:
    """Into the images of a run directory, by the step."""
    with disk_errors_named(run):
        make_directory(run / IMAGES)
        replace_file(run / IMAGES / f"step-{step:06d}.png", png)


def prepare_accelerator() -> Accelerator:
    """The process group, if there is one; refuses to train alone what was started as one of several."""
    device = join_processes()
    expected = int(os.environ.get("WORLD_SIZE", "1"))
    # Under torchrun without a GPU, each rank would otherwise believe that it is alone.
    accelerator = Accelerator(cpu=device.type == "cpu")
    if accelerator.num_processes != expected:
        raise RunError(
            f"started as one of {expected} processes (WORLD_SIZE), but accelerate sees "
            f"{accelerator.num_processes}: start with torchrun, or unset WORLD_SIZE."
        )
    return accelerator
