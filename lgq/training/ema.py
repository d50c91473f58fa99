"""Exponential moving average of weights (Polyak & Juditsky 1992), often better than the last weights."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from lgq.checks import require_between
from lgq.errors import LGQError
from lgq.ops.numerics import at_least_float32

_UPDATES = "updates"
_PREFIX = "weights."


class WeightAverage:
    """Average of a model's parameters: average <- d average + (1 - d) parameter; buffers are copied.

    model: gives the initial values. Models of later calls need the same names and shapes, on any device.
    decay: d, approached by min(decay, (1 + t) / (10 + t)) after t updates, so that the initial weights
        are soon forgotten.

    Averages of half-precision parameters are float32: at usual decays an update would round to nothing.
    """

    def __init__(self, model: nn.Module, decay: float):
        require_between(0, 1, decay=decay)
        self.decay = decay
        self.updates = 0
        self._buffers = {name: _copy(buffer) for name, buffer in model.named_buffers()}
        self._averages = {name: at_least_float32(_copy(p)) for name, p in model.named_parameters()}

    @property
    def present_decay(self) -> float:
        """Decay d of the next update."""
        return min(self.decay, (1 + self.updates) / (10 + self.updates))

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Add the model's weights to the average; call it once after each optimizer step."""
        parameters, buffers = dict(model.named_parameters()), dict(model.named_buffers())
        _require_same_shapes(self._weights(), parameters | buffers)
        self._averages = _on_devices_of(self._averages, parameters)
        self._buffers = _on_devices_of(self._buffers, buffers)
        values = [parameters[name].to(average.dtype) for name, average in self._averages.items()]
        if values:
            get_ema_multi_avg_fn(self.present_decay)(list(self._averages.values()), values, self.updates)
        _overwrite(self._buffers, buffers)
        self.updates += 1

    @contextmanager
    def applied_to(self, model: nn.Module) -> Iterator[None]:
        """Give the model the averaged weights for a block, and its own back afterwards, bit for bit."""
        _require_same_shapes(self._weights(), _weights_of(model))
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
        """Continue from a `state_dict`, on the devices of this average; errors leave it unchanged."""
        if _UPDATES not in state:
            raise LGQError(f"the state of a weight average has {_UPDATES!r}, got only {sorted(state)[:3]}.")
        weights = {key.removeprefix(_PREFIX): value for key, value in state.items() if key != _UPDATES}
        _require_same_shapes(self._weights(), weights)
        _overwrite(self._weights(), weights)
        self.updates = int(state[_UPDATES])

    def _weights(self) -> dict[str, Tensor]:
        return self._averages | self._buffers


def _weights_of(model: nn.Module) -> dict[str, Tensor]:
    return dict(model.named_parameters()) | dict(model.named_buffers())


def _on_devices_of(weights: dict[str, Tensor], model_weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights on the devices of the model, which may have moved."""
    return {name: weight.to(model_weights[name].device) for name, weight in weights.items()}


def _copy(weight: Tensor) -> Tensor:
    return weight.detach().clone()


@torch.no_grad()
def _overwrite(targets: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> None:
    for name, target in targets.items():
        target.copy_(values[name])


def _require_same_shapes(expected: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> None:
    if unmatched := sorted(expected.keys() ^ given.keys()):
        raise LGQError(
            f"the average and its model need the same weights; only one of them has {unmatched[0]!r} "
            f"({len(unmatched)} in all). Pass the model that the average was made of, wrapped as it was."
        )
    for name, weight in expected.items():
        if given[name].shape != weight.shape:
            shapes = f"{tuple(weight.shape)} in the average, now {tuple(given[name].shape)}"
            raise LGQError(f"{name!r} changed its shape: {shapes}; use a model of the same settings.")
