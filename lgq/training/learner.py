"""A module that learns: AdamW (Loshchilov & Hutter 2019), clipped gradients, the loss scale of fp16."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lgq.distributed import sum_over_ranks, world_size
from lgq.training.recipe import TrainingRun


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
