"""A linear layer of fixed seed that computes in float32 or better, also where its weights are half."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from lgq.ops.precision import at_least_float32


class Projection(nn.Module):
    """x W^T + b; rounding to bf16 would move vectors across the border between two codes."""

    def __init__(self, inputs: int, outputs: int, *, bias: bool = True, seed: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        self.bias = nn.Parameter(torch.empty(outputs)) if bias else None
        self.restart(seed)

    @torch.no_grad()
    def restart(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        bound = self.weight.shape[1] ** -0.5
        for parameter in self.parameters():
            start = torch.empty(parameter.shape, device=generator.device)
            parameter.copy_(start.uniform_(-bound, bound, generator=generator))

    def forward(self, x: Float[Tensor, "n i"]) -> Float[Tensor, "n o"]:
        bias = None if self.bias is None else at_least_float32(self.bias)
        return F.linear(at_least_float32(x), at_least_float32(self.weight), bias)
