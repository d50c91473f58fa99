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


def test_rotation_gradient_is_that_of_the_explicit_matrix():
    z, code = pair()
    weights = torch.randn_like(z)
    (rotate_to(z, code) * weights).sum().backward()
    for i in range(len(z)):
        e, q = (v / v.norm() for v in (z[i].detach(), code[i]))
        w = (e + q) / (e + q).norm()
        matrix = torch.eye(4) - 2 * torch.outer(w, w) + 2 * torch.outer(q, e)
        torch.testing.assert_close(matrix @ e, q)
        expected = code[i].norm() / z[i].detach().norm() * matrix.T @ weights[i]
        torch.testing.assert_close(z.grad[i], expected)


@pytest.mark.parametrize("case", ["zero vector", "zero code", "antiparallel"])
def test_rotation_falls_back_to_straight_through_where_it_is_undefined(case):
    z = torch.zeros(1, 3) if case == "zero vector" else torch.tensor([[1.0, -2.0, 0.5]])
    code = torch.zeros(1, 3) if case == "zero code" else torch.tensor([[-2.0, 4.0, -1.0]])
    z.requires_grad_()
    output = rotate_to(z, code)
    output.sum().backward()
    assert torch.equal(output, code)
    assert torch.equal(z.grad, torch.ones(1, 3))
