"""Gradients through an assignment: straight-through (Bengio et al. 2013), rotation (Fifty et al. 2024), step.

Steps are those of DiVeQ (Vali et al. 2025): a reparameterization by the length of the way to the code.
"""

import torch
from jaxtyping import Float
from torch import Tensor


def straight_through(z: Float[Tensor, "*shape"], code: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Return the exact value of `code` with the gradient of `z`."""
    return code.detach() + (z - z.detach())


def rotate_to(z: Float[Tensor, "n c"], code: Float[Tensor, "n c"]) -> Float[Tensor, "n c"]:
    """Return the value of `code` with the gradient of the rotation and rescaling of each z onto its code.

    R = I - 2 w w^T + 2 q e^T for the unit vectors e of z, q of the code and w of e + q, all constant.
    Where R is undefined (a zero vector, or z opposite to its code), the gradient is straight-through.
    """
    length, code_length = _length(z.detach()), _length(code.detach())
    e, q = z.detach() / length, code.detach() / code_length
    middle = e + q
    w = middle / _length(middle)
    rotated = z - 2 * _dot(z, w) * w + 2 * _dot(z, e) * q
    eps = torch.finfo(z.dtype).eps
    defined = (length > eps) & (code_length > eps) & (_dot(middle, middle) > eps)
    # 1 where undefined: an infinite scale would give NaN gradients even in the branch not taken.
    scale = torch.where(defined, code_length / length, 1.0)
    return straight_through(torch.where(defined, rotated * scale, z), code)


def step_to(
    z: Float[Tensor, "n c"], code: Float[Tensor, "n c"], *, noise_variance: float
) -> Float[Tensor, "n c"]:
    """Return the value of `code` with the gradient of z + |code - z| d, for a constant direction d (DiVeQ).

    d is the unit vector of code - z plus normal noise. Vectors and codes both learn, without another loss.
    The published output has the noise in its value too; here the value is the code itself.
    """
    step = code - z
    noisy = step.detach()
    if noise_variance:
        noisy = noisy + torch.randn_like(step) * noise_variance**0.5
    direction = noisy / _length(noisy)
    path = z + direction * torch.linalg.vector_norm(step, dim=-1, keepdim=True)
    return code.detach() + (path - path.detach())


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum(-1, keepdim=True)


def _length(x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x, dim=-1, keepdim=True).clamp_min(torch.finfo(x.dtype).tiny)
