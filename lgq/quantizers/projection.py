"""The linear map between latents and codes, whatever precision the rest of a model has.

n = vectors, i = input channels, o = output channels.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from lgq.checks import is_jit_traced
from lgq.ops.numerics import at_least_float32

_NARROW = 32
"""Number of columns below which products of a long matrix are slow if it is stored by rows."""


class Projection(nn.Module):
    """Linear layer of a fixed seed that computes in float32 or better, whatever its weights are.

    Rounding to bf16 would move vectors across the border between two codes.
    """

    def __init__(self, inputs: int, outputs: int, *, bias: bool = True, seed: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        self.bias = nn.Parameter(torch.empty(outputs)) if bias else None
        self.reset_parameters(seed)

    @torch.no_grad()
    def reset_parameters(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        bound = self.weight.shape[1] ** -0.5
        for parameter in self.parameters():
            initial = torch.empty(parameter.shape, device=generator.device)
            parameter.copy_(initial.uniform_(-bound, bound, generator=generator))

    def extra_repr(self) -> str:
        outputs, inputs = self.weight.shape
        return f"{inputs}, {outputs}, bias={self.bias is not None}"

    def forward(self, x: Float[Tensor, "n i"]) -> Float[Tensor, "n o"]:
        dtype = torch.promote_types(at_least_float32(x).dtype, self.weight.dtype)
        x, weight = x.to(dtype), self.weight.to(dtype)
        bias = None if self.bias is None else self.bias.to(dtype)
        if torch.compiler.is_compiling() or is_jit_traced():  # a compiler chooses layouts for itself
            return F.linear(x, weight, bias)
        outputs, inputs = weight.shape
        # Matrices of n rows and few columns are stored by columns here: their products, and those of the
        # backward pass, then take a half to a sixth of the time on a CPU.
        if outputs < _NARROW:
            return (weight @ x.T).T if bias is None else torch.addmm(bias[:, None], weight, x.T).T
        return F.linear(x, weight.T.contiguous().T if inputs < _NARROW else weight, bias)
