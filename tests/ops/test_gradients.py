"""Gradient estimators return the code exactly, with a finite gradient for every input."""

import pytest
import torch

from lgq.ops.gradients import rotate_to, straight_through


def pair(dtype=torch.float64):
    return torch.randn(6, 4, dtype=dtype, requires_grad=True), torch.randn(6, 4, dtype=dtype)


@pytest.mark.parametrize("estimator", [straight_through, rotate_to])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_value_is_the_code_to_the_last_bit(estimator, dtype):
    z, code = pair(dtype)
    assert torch.equal(estimator(z, code), code)


def test_straight_through_passes_the_gradient_unchanged():
    z, code = pair()
    weights = torch.randn_like(z)
    (straight_through(z, code) * weights).sum().backward()
    assert torch.equal(z.grad, weights)


@pytest.mark.parametrize("case", ["zero vector", "zero code", "antiparallel"])
def test_rotation_falls_back_to_straight_through_where_it_is_undefined(case):
    z = torch.zeros(1, 3) if case == "zero vector" else torch.tensor([[1.0, -2.0, 0.5]])
    code = torch.zeros(1, 3) if case == "zero code" else torch.tensor([[-2.0, 4.0, -1.0]])
    z.requires_grad_()
    output = rotate_to(z, code)
    output.sum().backward()
    assert torch.equal(output, code)
    assert torch.equal(z.grad, torch.ones(1, 3))
