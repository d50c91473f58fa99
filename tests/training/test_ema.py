"""Laws of the moving average of weights."""

from copy import deepcopy

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lgq.quantizers import VQ
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


def test_buffers_are_copied_not_averaged():
    model = Small()
    average = WeightAverage(model, 0.9)
    walk(model)
    average.update(model)
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    walk(model)
    with average.applied_to(model):
        assert {name: buffer.tolist() for name, buffer in model.named_buffers()} == {
            name: buffer.tolist() for name, buffer in buffers.items()
        }


def test_shared_weights_stay_shared():
    model = Small()
    average = WeightAverage(model, 0.9)
    walk(model)
    average.update(model)
    with average.applied_to(model):
        assert model.twin.weight is model.convolution.weight


def test_an_update_leaves_the_model_and_its_gradients_alone():
    model = Small()
    average = WeightAverage(model, 0.9)
    walk(model)
    before = snapshot(model)
    average.update(model)
    assert_same_bits(model, before)
    assert all(p.requires_grad and p.grad is None for p in model.parameters())


@pytest.mark.parametrize("fails", [False, True])
def test_own_weights_come_back_to_the_last_bit(fails):
    model = Small()
    with torch.no_grad():
        model.norm.weight.copy_(torch.tensor([torch.nan, -0.0, torch.inf]))
    average = WeightAverage(Small(), 0.9)
    before, tensors = snapshot(model), all_weights(model)
    try:
        with average.applied_to(model):
            assert not torch.equal(model.convolution.weight, before["convolution.weight"])
            walk(model)
            if fails:
                raise KeyboardInterrupt
    except KeyboardInterrupt:
        assert fails
    assert_same_bits(model, before)
    assert all(weight is tensors[name] for name, weight in all_weights(model).items())


def test_a_body_that_replaces_buffers_is_undone():
    model = Small()
    average, before = WeightAverage(model, 0.9), snapshot(model)
    with average.applied_to(model):
        model.scratch = torch.full((2,), 7.0)
    assert_same_bits(model, before)


def test_evaluation_in_training_mode_leaves_no_trace_in_a_codebook():
    model = VQ(4, 8)
    average = WeightAverage(model, 0.9)
    model(torch.randn(16, 4))
    average.update(model)
    before, kept = snapshot(model), averaged(average, model)
    with average.applied_to(model):
        model(torch.randn(16, 4))
    assert_same_bits(model, before)
    with average.applied_to(model):
        assert_same_bits(model, kept)


def test_state_round_trips_and_goes_on_alike():
    model = Small()
    average = WeightAverage(model, 0.6)
    for _ in range(3):
        walk(model)
        average.update(model)
    other = WeightAverage(Small(), 0.6)
    other.load_state_dict(deepcopy(average.state_dict()))
    assert other.updates == 3
    for _ in range(3):
        walk(model)
        average.update(model)
        other.update(model)
    expected = averaged(average, model)
    with other.applied_to(model):
        assert_same_bits(model, expected)


def test_a_loaded_average_does_not_share_memory_with_its_state():
    state = WeightAverage(Small(), 0.6).state_dict()
    other = WeightAverage(model := Small(), 0.6)
    other.load_state_dict(state)
    before = deepcopy(state)
    other.update(model)
    assert all(torch.equal(value, before[name]) for name, value in state.items())


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


def test_a_model_without_weights_has_an_average():
    average = WeightAverage(nn.Identity(), 0.9)
    average.update(nn.Identity())
    assert average.updates == 1


@pytest.mark.parametrize("decay", [-0.1, 1.1, float("nan")])
def test_a_decay_out_of_range_is_refused(decay):
    with pytest.raises(ValueError, match=rf"decay must lie in 0\.\.1, got {decay}"):
        WeightAverage(Small(), decay)
