"""Finite scalar quantization (Mentzer et al. 2023): bound each channel, round it to L levels.

n = vectors, k = codes, c = channels, l = quantized channels.
"""

import math
from collections.abc import Sequence
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lgq.checks import require_one_of
from lgq.errors import LGQError
from lgq.ops.gradients import straight_through
from lgq.quantizers.base import Projection, Quantizer
from lgq.quantizers.quantized import Quantized

Bound = Literal["tan", "atanh"]

_SHRINK = 1e-3  # makes the outermost levels reachable at finite values


def levels_for(codebook_size: int) -> tuple[int, ...]:
    """Return levels of 8 and as few 4s as possible for 2^n codes, such as 8 x 8 x 8 x 8 x 4 = 16,384."""
    bits = codebook_size.bit_length() - 1
    if codebook_size < 2 or codebook_size != 2**bits:
        raise LGQError(
            f"FSQ has default levels for powers of two from 2 on, got `codebook_size` {codebook_size}: "
            f"set the levels, such as `quantizer_options` levels=[8,5,5,5] for 1,000."
        )
    if bits <= 2:
        return (codebook_size,)
    fours = -bits % 3
    return (8,) * ((bits - 2 * fours) // 3) + (4,) * fours


def _whole_numbers(levels: Any) -> tuple[int, ...]:
    """Return levels as a tuple, after checking their type: they may come from a command line or a file."""
    if not isinstance(levels, list | tuple) or any(type(level) is not int for level in levels):
        raise LGQError(f"levels must be a list of whole numbers, such as [8,5,5,5], got {levels!r:.100}.")
    return tuple(levels)


class FSQ(Quantizer):
    """A fixed grid behind a linear map, so no code can move or collapse.

    levels: number of values of each quantized channel, with `codebook_size` as product; None takes 8s and
        4s, for powers of two.
    bound: `tan` is that of the authors' code; `atanh`, with outer levels a little farther out, is that of
        common ports, such as vector-quantize-pytorch.
    """

    label = "FSQ"
    learned_codes = False
    levels: Tensor
    strides: Tensor

    def __init__(
        self,
        dim: int,
        codebook_size: int,
        *,
        channel_dim: int = -1,
        levels: Sequence[int] | None = None,
        bound: Bound = "tan",
        seed: int | None = None,
    ):
        super().__init__(dim, codebook_size, channel_dim=channel_dim, seed=seed)
        levels = levels_for(codebook_size) if levels is None else _whole_numbers(levels)
        if not levels or min(levels) < 2:
            raise LGQError(f"FSQ needs at least 2 levels per channel, got {levels}.")
        if math.prod(levels) != codebook_size:
            raise LGQError(
                f"levels {levels} make {math.prod(levels)} codes, not {codebook_size}: change one of them."
            )
        require_one_of(get_args(Bound), bound=bound)
        self.bound = bound
        strides = [math.prod(levels[:i]) for i in range(len(levels))]
        self.register_buffer("levels", torch.tensor(levels), persistent=False)
        self.register_buffer("strides", torch.tensor(strides), persistent=False)
        self.project_in = Projection(dim, len(levels), seed=2 * self.seed)
        self.project_out = Projection(len(levels), dim, seed=2 * self.seed + 1)

    @property
    def codebook(self) -> Float[Tensor, "k l"]:
        """Grid scaled to [-1, 1]; row i is the code of index i."""
        return self._grid(torch.arange(self.codebook_size, device=self.levels.device))

    def quantize_vectors(self, z: Float[Tensor, "n c"]) -> Quantized:
        bounded = self._bound(self.project_in(z))
        rounded = bounded.round()
        half_width = self.levels // 2
        codes = self.project_out(straight_through(bounded, rounded) / half_width)
        return Quantized(codes, self._index(rounded), codes.new_zeros(()))

    def select(self, z: Float[Tensor, "n c"]) -> Int[Tensor, " n"]:
        return self._index(self._bound(self.project_in(z)).round())

    def lookup(self, indices: Int[Tensor, " n"]) -> Float[Tensor, "n c"]:
        return self.project_out(self._grid(indices))

    def reset_parameters(self, seed: int) -> None:
        self.seed = seed
        self.project_in.reset_parameters(2 * seed)
        self.project_out.reset_parameters(2 * seed + 1)

    def _bound(self, z: Float[Tensor, "n l"]) -> Float[Tensor, "n l"]:
        """Bound each channel to the open interval around the levels -L//2 .. (L-1)//2."""
        offset = (self.levels % 2 == 0).to(z.dtype) / 2
        if self.bound == "atanh":
            half = (self.levels - 1).to(z.dtype) * (1 + _SHRINK) / 2
            return torch.tanh(z + torch.atanh(offset / half)) * half - offset
        half = (self.levels - 1).to(z.dtype) * (1 - _SHRINK) / 2
        return torch.tanh(z + torch.tan(offset / half)) * half - offset

    def _index(self, rounded: Float[Tensor, "n l"]) -> Int[Tensor, " n"]:
        return ((rounded.long() + self.levels // 2) * self.strides).sum(-1)

    def _grid(self, indices: Int[Tensor, " n"]) -> Float[Tensor, "n l"]:
        digits = indices[:, None] // self.strides % self.levels
        dtype = torch.promote_types(self.project_out.weight.dtype, torch.float32)
        return (digits - self.levels // 2).to(dtype) / (self.levels // 2)
