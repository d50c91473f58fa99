"""The trainer that tokenizers and generators share: optimizer steps, gradient accumulation, state.

A subclass adds what its model needs: the loss of a batch, the validation, and what is published.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from lgq.data import ImageLoader, StreamLoader, to_png
from lgq.data.token_loader import TokenLoader
from lgq.data.transforms import image_grid
from lgq.distributed import rank, sum_over_ranks, world_size
from lgq.files import make_directory, named_disk_errors, replace_file
from lgq.training.checkpoint import seed_random_state
from lgq.training.ema import WeightAverage
from lgq.training.history import History
from lgq.training.run_directory import IMAGES
from lgq.training.settings import TrainingRun
from lgq.training.watch import Watch


class NonFiniteError(ArithmeticError):
    """NaN or infinity before there is a loss; the message names what holds it."""


Loader = ImageLoader | StreamLoader | TokenLoader
"""Source of endless batches from any position in the data."""


class ClippedAdamW:
    """AdamW (Loshchilov & Hutter 2019) with clipped gradients, and the loss scale that fp16 needs."""

    def __init__(self, module: nn.Module, run: TrainingRun, device: torch.device):
        self.parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self._adamw = torch.optim.AdamW(
            self.parameters, lr=run.learning_rate, betas=run.betas, weight_decay=run.weight_decay
        )
        self._scaler = torch.amp.GradScaler(device.type, enabled=run.precision == "fp16")
        self._clip = run.clip

    def backward(self, loss: Float[Tensor, ""]) -> None:
        """Add the gradients of a loss."""
        self._scaler.scale(loss).backward()

    def average_gradients(self) -> None:
        """Average gradients over ranks, for a module that DistributedDataParallel does not wrap."""
        if world_size() > 1:
            for parameter in self.parameters:
                if parameter.grad is not None:
                    parameter.grad.copy_(sum_over_ranks(parameter.grad) / world_size())

    def step(self, learning_rate: float) -> Float[Tensor, ""]:
        """Update the parameters and clear their gradients; returns the gradient's norm before clipping."""
        for group in self._adamw.param_groups:
            group["lr"] = learning_rate
        self._scaler.unscale_(self._adamw)
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        norm = nn.utils.get_total_norm(gradients)
        if self._clip is not None:
            nn.utils.clip_grads_with_norm_(self.parameters, self._clip, norm)
        self._scaler.step(self._adamw)
        self._scaler.update()
        self._adamw.zero_grad()
        # The scaler finds its scale by overflow: it skips such a step, and training continues.
        return norm.nan_to_num(posinf=0.0) if self._scaler.is_enabled() else norm

    def state(self) -> dict[str, Any]:
        return {"adamw": self._adamw.state_dict(), "scaler": self._scaler.state_dict()}

    def load_state(self, state: dict[str, Any]) -> None:
        self._adamw.load_state_dict(state["adamw"])
        if self._scaler.is_enabled():
            self._scaler.load_state_dict(state["scaler"])


class Trainer(ABC):
    """A model in training; with several processes, all call every method in the same order.

    run: the settings, with `loop.steps` resolved for the data.
    model: the network that is trained, on `device`.
    loader: gives endless batches from any position in the data.
    out: the run directory.

    A trainer seeds the random numbers of its process, so that a step does not depend on how many were
    drawn before; build other networks first.
    """

    best_by: str
    """Name of the validation metric whose lowest value selects the best weights."""
    history = History()
    """What the weights depend on besides the settings; a resumed run takes over that of its checkpoint."""
    pictures: Mapping[str, Float[Tensor, "3 height width"]] = MappingProxyType({})
    """Images in [-1, 1] that the last validation drew, by name; on the first rank only."""

    def __init__(self, run: TrainingRun, model: nn.Module, loader: Loader, out: Path, device: torch.device):
        self.run, self.model, self.out, self.device = run, model, out, device
        self.batch_names: list[str] = []
        """Names of the images that this rank saw in the last step."""
        self._parallel = model
        if world_size() > 1:
            devices = None if device.index is None else [device.index]
            self._parallel = DistributedDataParallel(model, device_ids=devices)
        self._forward = torch.compile(self._parallel) if run.compile else self._parallel
        self._optimizer = ClippedAdamW(model, run, device)
        self._average = WeightAverage(model, run.average_decay) if run.average_decay else None
        self._loader = loader
        self._position: Any = 0  # of the loader, which knows what it means
        self._batches: Iterator[Any] | None = None
        seed_random_state(run.rank_seed(rank(), world_size()))

    @abstractmethod
    def config(self) -> dict[str, Any]:
        """Return everything that the weights depend on, resolved, as JSON; it has a `seed`."""

    @abstractmethod
    def default_config(self) -> dict[str, Any]:
        """Return the defaults of the settings in `config`."""

    def described(self) -> dict[str, Any]:
        """Return the content of config.json: `config`, and the history of the run where it has one."""
        return self.config() | self.history.described()

    def watch(self) -> Watch:
        """Return what watches over the run's records; nothing, unless a subclass knows what may go wrong."""
        return Watch()

    @abstractmethod
    def _accumulate(self, step: int) -> dict[str, Tensor]:
        """Add the gradients of the next batch; returns detached scalars, causes before effects."""

    @abstractmethod
    def validate(self, step: int) -> dict[str, float]:
        """Return the metrics after `step` steps, equal on every rank; draws no random numbers."""

    @abstractmethod
    def save_pretrained(self, directory: Path) -> None:
        """Write what users load; called on the first rank only."""

    def train_step(self, step: int) -> dict[str, Tensor]:
        """Take optimizer step number `step`, counted from 0; returns detached scalars for the log.

        Their order tells where a NaN began: a term comes before those that it spoils.
        """
        learning_rate = self.run.learning_rate_at(step)
        self.model.train()
        self.batch_names.clear()
        batches = []
        for last in [False] * (self.run.accumulate - 1) + [True]:
            # Ranks exchange gradients once per step, with the last batch.
            with nullcontext() if last else self._without_sync():
                batches.append(self._accumulate(step))
        terms = {name: torch.stack([batch[name] for batch in batches]).mean() for name in batches[0]}
        terms["gradient"] = self._optimizer.step(learning_rate)
        if self._average is not None:
            self._average.update(self.model)
        return terms | {"learning_rate": torch.tensor(learning_rate)}

    def state(self) -> dict[str, Any]:
        """Return everything that `load_state` needs to continue bit for bit, except random states."""
        return {
            "position": self._position,
            "model": self.model.state_dict(),
            "optimizer": self._optimizer.state(),
            "average": self._average.state_dict() if self._average else None,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        self._position, self._batches = state["position"], None
        self.model.load_state_dict(state["model"])
        self._optimizer.load_state(state["optimizer"])
        if self._average is not None:
            self._average.load_state_dict(state["average"])

    def _next_batch(self) -> Any:
        if self._batches is None:
            self._batches = self._loader.stream(self._position)
        batch = next(self._batches)
        self._position = batch.position
        self.batch_names += batch.names
        return batch

    def _averaged_weights(self) -> AbstractContextManager[None]:
        """Give the model its averaged weights, if there is an average, for the length of a block."""
        return nullcontext() if self._average is None else self._average.applied_to(self.model)

    def _save_picture(
        self, step: int, images: Float[Tensor, "b 3 s s"], columns: int = 8
    ) -> Float[Tensor, "3 height width"]:
        """Write a grid of images into images/ of the run directory, and return it."""
        grid = image_grid(images, columns).cpu()
        with named_disk_errors(self.out):
            make_directory(self.out / IMAGES)
            replace_file(self.out / IMAGES / f"step-{step:06d}.png", to_png(grid))
        return grid

    def _without_sync(self) -> AbstractContextManager[Any]:
        parallel = self._parallel
        return parallel.no_sync() if isinstance(parallel, DistributedDataParallel) else nullcontext()
