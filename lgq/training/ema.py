"""Exponential moving average of weights (Polyak & Juditsky 1992), often better than the last weights."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from lgq.ops.numerics import at_least_float32

_UPDATES = "updates"
_PREFIX = "weights."


class WeightAverage:
    """Average of a model's parameters: average <- d average + (1 - d) parameter; buffers are copied.

    model: gives the initial values, and stays on its device.
    decay: d, approached by min(decay, (1 + t) / (10 + t)) after t updates, so that the initial weights
        are soon forgotten.

    Averages of half-precision parameters are float32: at usual decays an update would round to nothing.
    """

    def __init__(self, model: nn.Module, decay: float):
        self.decay = decay
        self.updates = 0
        self._averages = {name: at_least_float32(_copy(p)) for name, p in model.named_parameters()}
        self._buffers = {name: _copy(buffer) for name, buffer in model.named_buffers()}

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Add the model's weights to the average; call it once after each optimizer step."""
        parameters = dict(model.named_parameters())
        values = [parameters[name].to(average.dtype) for name, average in self._averages.items()]
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        get_ema_multi_avg_fn(decay)(list(self._averages.values()), values, self.updates)
        _overwrite(self._buffers, dict(model.named_buffers()))
        self.updates += 1

    @contextmanager
    def applied_to(self, model: nn.Module) -> Iterator[None]:
        """Give the model the averaged weights for a block, and its own back afterwards, bit for bit."""
        own = {name: _copy(weight) for name, weight in _weights_of(model).items()}
        try:
            _overwrite(_weights_of(model), self._weights())
            yield
        finally:
            _overwrite(_weights_of(model), own)

    def state_dict(self) -> dict[str, Tensor]:
        """Return everything that resuming needs except the decay; shares memory, as a module's does."""
        weights = {_PREFIX + name: weight for name, weight in self._weights().items()}
        return {_UPDATES: torch.tensor(self.updates), **weights}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from a `state_dict`, on the devices of this average."""
        _overwrite(self._weights(), {name: state[_PREFIX + name] for name in self._weights()})
        self.updates = int(state[_UPDATES])

    def _weights(self) -> dict[str, Tensor]:
        return self._averages | self._buffers


def _weights_of(model: nn.Module) -> dict[str, Tensor]:
    return dict(model.named_parameters()) | dict(model.named_buffers())


def _copy(weight: Tensor) -> Tensor:
    return weight.detach().clone()


@torch.no_grad()
def _overwrite(targets: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> None:
    for name, target in targets.items():
        target.copy_(values[name])
