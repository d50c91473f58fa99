"""Gradients through a hard choice: straight-through (Bengio et al. 2013), rotation (Fifty et al. 2024)."""

import torch
from jaxtyping import Float
from torch import Tensor


def straight_through(z: Float[Tensor, "*shape"], code: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Value of `code`, to the last bit; gradient of `z`."""
    return code.detach() + (z - z.detach())


def rotate_to(z: Float[Tensor, "n c"], code: Float[Tensor, "n c"]) -> Float[Tensor, "n c"]:
    """Value of `code`; gradient of the rotation and rescaling that carries each z onto its code.

    R = I - 2 w w^T + 2 q e^T for the unit vectors e of z, q of the code and w of e + q, held
    constant. Where that is undefined (a zero vector, or z opposite to its code): straight-through.
    """
    length, code_length = _length(z.detach()), _length(code.detach())
    e, q = z.detach() / length, code.detach() / code_length
    middle = e + q
    w = middle / _length(middle)
    rotated = z - 2 * _dot(z, w) * w + 2 * _dot(z, e) * q
    smallest = torch.finfo(z.dtype).eps
    regular = (length > smallest) & (code_length > smallest) & (_dot(middle, middle) > smallest)
    scale = torch.where(regular, code_length / length, 1.0)  # not infinite in the branch not taken
    return straight_through(torch.where(regular, rotated * scale, z), code)


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum(-1, keepdim=True)


def _length(x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x, dim=-1, keepdim=True).clamp_min(torch.finfo(x.dtype).tiny)
