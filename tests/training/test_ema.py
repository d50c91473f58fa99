"""Laws of the moving average of weights."""

from copy import deepcopy

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lgq.training.ema import WeightAverage


class Small(nn.Module):
    """Parameters, buffers of two kinds, and a weight that two layers share."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(2, 3, 1)
        self.norm = nn.BatchNorm2d(3)
        self.twin = nn.Conv2d(2, 3, 1, bias=False)
        self.twin.weight = self.convolution.weight
        self.register_buffer("scratch", torch.zeros(2), persistent=False)


def all_weights(model: nn.Module) -> dict[str, Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def snapshot(model: nn.Module) -> dict[str, Tensor]:
    return {name: weight.detach().clone() for name, weight in all_weights(model).items()}


@torch.no_grad()
def walk(model: nn.Module) -> None:
    """A random step of every parameter and buffer."""
    for weight in all_weights(model).values():
        weight.add_(1 if not weight.is_floating_point() else torch.randn(weight.shape).to(weight))


def averaged(average: WeightAverage, model: nn.Module) -> dict[str, Tensor]:
    with average.applied_to(model):
        return snapshot(model)


def assert_same_bits(model: nn.Module, expected: dict[str, Tensor]) -> None:
    assert all_weights(model).keys() == expected.keys()
    for name, weight in all_weights(model).items():
        ours, theirs = weight.detach().contiguous(), expected[name].contiguous()
        assert ours.dtype == theirs.dtype
        assert ours.numpy().tobytes() == theirs.numpy().tobytes(), name


@pytest.mark.parametrize("decay", [0.0, 0.3, 0.9, 1.0])
def test_average_equals_the_plain_formula(decay):
    model = Small()
    average = WeightAverage(model, decay)
    expected = {name: p.detach().double().numpy() for name, p in model.named_parameters()}
    for t in range(12):
        walk(model)
        average.update(model)
        d = min(decay, (1 + t) / (10 + t))
        for name, p in model.named_parameters():
            expected[name] = d * expected[name] + (1 - d) * p.detach().double().numpy()
    with average.applied_to(model):
        for name, p in model.named_parameters():
            np.testing.assert_allclose(p.detach().numpy(), expected[name], rtol=1e-5, atol=1e-6)


def test_weights_that_stand_still_are_their_own_average():
    model = Small()
    before = snapshot(model)
    average = WeightAverage(model, 0.99)
    for _ in range(5):
        average.update(model)
    with average.applied_to(model):
        assert_same_bits(model, before)


def test_an_update_copies_buffers_and_leaves_the_model_alone():
    model = Small()
    average = WeightAverage(model, 0.9)
    walk(model)
    before = snapshot(model)
    average.update(model)
    assert_same_bits(model, before)
    assert all(p.requires_grad and p.grad is None for p in model.parameters())
    walk(model)
    with average.applied_to(model):
        assert model.twin.weight is model.convolution.weight
        assert all(torch.equal(buffer, before[name]) for name, buffer in model.named_buffers())


@pytest.mark.parametrize("fails", [False, True])
def test_own_weights_come_back_to_the_last_bit_and_the_average_stays(fails):
    model = Small()
    with torch.no_grad():
        model.norm.weight.copy_(torch.tensor([torch.nan, -0.0, torch.inf]))
    average = WeightAverage(Small(), 0.9)
    before, tensors, kept = snapshot(model), all_weights(model), averaged(average, model)
    try:
        with average.applied_to(model):
            assert not torch.equal(model.convolution.weight, before["convolution.weight"])
            walk(model)  # as a codebook does when it is evaluated in training mode
            if fails:
                raise KeyboardInterrupt
    except KeyboardInterrupt:
        assert fails
    assert_same_bits(model, before)
    assert all(weight is tensors[name] for name, weight in all_weights(model).items())
    with average.applied_to(model):
        assert_same_bits(model, kept)


def test_a_body_that_replaces_buffers_is_undone():
    model = Small()
    average, before = WeightAverage(model, 0.9), snapshot(model)
    with average.applied_to(model):
        model.scratch = torch.full((2,), 7.0)
    assert_same_bits(model, before)


def test_state_round_trips_and_goes_on_alike():
    model = Small()
    average = WeightAverage(model, 0.6)
    for _ in range(3):
        walk(model)
        average.update(model)
    other, state = WeightAverage(Small(), 0.6), average.state_dict()
    other.load_state_dict(state)
    assert other.updates == 3
    for _ in range(3):
        walk(model)
        before = deepcopy(state)
        other.update(model)
        assert all(torch.equal(value, before[name]) for name, value in state.items()), "shares memory"
        average.update(model)
    expected = averaged(average, model)
    with other.applied_to(model):
        assert_same_bits(model, expected)


def test_half_precision_weights_are_averaged_in_float32():
    model = nn.Linear(1, 1, bias=False).bfloat16()
    nn.init.ones_(model.weight)
    average = WeightAverage(model, 0.999)
    average.updates = 10**6  # past the warm-up
    nn.init.constant_(model.weight, 2.0)
    for _ in range(100):
        average.update(model)
    with average.applied_to(model):
        assert model.weight.dtype == torch.bfloat16
        assert model.weight.item() == torch.tensor(2 - 0.999**100).bfloat16().item()
    assert average.state_dict()["weights.weight"].item() == pytest.approx(2 - 0.999**100, rel=1e-5)
