"""Finite scalar quantization (Mentzer et al. 2023): bound each channel, round it to L levels; also in stages.

The symmetric grids of `ResidualFSQ` are those of Parker et al. (2024); stages that share one projection are
those of vector-quantize-pytorch.

n = vectors, k = codes, c = channels, l = quantized channels, s = stages.
"""

import math
from collections.abc import Sequence
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lgq.checks import require_at_least, require_indexable, require_one_of, require_whole
from lgq.errors import LGQError
from lgq.ops.gradients import straight_through
from lgq.quantizers.base import LEAST_MAPPED_SPREAD, NORMALIZE, Quantizer, draw_seed
from lgq.quantizers.compositions.residual import Residual
from lgq.quantizers.projection import Projection
from lgq.quantizers.quantized import Quantized

Bound = Literal["tan", "atanh"]

_SHRINK = 1e-3  # makes the outermost levels reachable at finite values


def levels_for(codebook_size: int) -> tuple[int, ...]:
    """Return levels of 8 and as few 4s as possible for 2^n codes, such as 8 x 8 x 8 x 8 x 4 = 16,384."""
    bits = codebook_size.bit_length() - 1
    if codebook_size < 2 or codebook_size != 2**bits:
        raise LGQError(
            f"FSQ has default levels for powers of two from 2 on, got `codebook_size` {codebook_size}: "
            "set levels=[8,5,5,5], as for 1,000 codes (in a run, by `quantizer_options`)."
        )
    if bits <= 2:
        return (codebook_size,)
    fours = -bits % 3
    return (8,) * ((bits - 2 * fours) // 3) + (4,) * fours


def levels_of(codebook_size: int, levels: Any) -> tuple[int, ...]:
    """Return levels that make `codebook_size` codes, by default those of `levels_for`."""
    require_indexable(codebook_size)
    if levels is None:
        return levels_for(codebook_size)
    # Their type too: they may come from a command line or a file.
    if not isinstance(levels, list | tuple) or any(type(level) is not int for level in levels):
        raise LGQError(f"levels must be a list of whole numbers, such as [8,5,5,5], got {levels!r:.100}.")
    levels = tuple(levels)
    if not levels or min(levels) < 2:
        raise LGQError(f"FSQ needs at least 2 levels per channel, got {levels}.")
    if math.prod(levels) != codebook_size:
        raise LGQError(
            f"levels {levels} make {math.prod(levels)} codes, not {codebook_size}: change one of them."
        )
    return levels


class FSQ(Quantizer):
    """A fixed grid behind a linear map, so no code can move or collapse.

    levels: number of values of each quantized channel, with `codebook_size` as product; None takes 8s and
        4s, for powers of two.
    bound: `tan` is that of the authors' code; `atanh`, with outer levels a little farther out, is that of
        common ports, such as vector-quantize-pytorch.
    """

    label = "FSQ"
    learned_codes = False
    good_scale = (LEAST_MAPPED_SPREAD, math.inf)
    off_scale_advice = NORMALIZE
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
        levels = levels_of(codebook_size, levels)
        require_one_of(get_args(Bound), bound=bound)
        self.bound = bound
        strides = [math.prod(levels[:i]) for i in range(len(levels))]
        self._index_of_zero = sum(level // 2 * stride for level, stride in zip(levels, strides, strict=True))
        self.register_constants(levels=levels, strides=strides)
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
        return rounded.long().mul_(self.strides).sum(-1) + self._index_of_zero

    def _grid(self, indices: Int[Tensor, " n"]) -> Float[Tensor, "n l"]:
        digits = indices[:, None] // self.strides % self.levels
        dtype = torch.promote_types(self.project_out.weight.dtype, torch.float32)
        return (digits - self.levels // 2).to(dtype) / (self.levels // 2)


class ResidualFSQ(Residual):
    """One linear map to few channels, stages of finer and finer grids there, and one linear map back.

    codebook_size: number of codes of each stage; together they make `codebook_size` ** `stages` points.
    stages: number of grids. With L levels, the steps of each are L times as small as those of the last.
    levels: number of values of each quantized channel, as in `FSQ`.
    dropout: as in `Residual`.

    `Residual` of several `FSQ` gives each stage maps of its own instead: other directions, at several times
    the cost. The gradient is that of the bounded channels, straight through all stages.
    """

    label = "ResidualFSQ"

    def __init__(
        self,
        dim: int,
        codebook_size: int,
        stages: int,
        *,
        channel_dim: int = -1,
        levels: Sequence[int] | None = None,
        dropout: float = 0.0,
        seed: int | None = None,
    ):
        require_whole(stages=stages)
        require_at_least(1, stages=stages)
        self.levels = levels_of(codebook_size, levels)
        seed = draw_seed() if seed is None else seed
        grids = [
            Grid(self.levels, [float(level) ** -i for level in self.levels], seed=seed) for i in range(stages)
        ]
        super().__init__(grids, dim=dim, channel_dim=channel_dim, dropout=dropout)

    def quantize_vectors(self, z: Float[Tensor, "n l"]) -> Quantized:
        bounded = self._bound(z)
        # What is left of a straight-through stage has no gradient, so all stages together pass it once.
        codes, indices, loss = super().quantize_vectors(bounded.detach())
        return Quantized(straight_through(bounded, codes), indices, loss)

    def select(self, z: Float[Tensor, "n l"]) -> Int[Tensor, "n s"]:
        return super().select(self._bound(z))

    def _bound(self, z: Float[Tensor, "n l"]) -> Float[Tensor, "n l"]:
        """Bound each channel to half a step beyond the outermost points, so that no error exceeds that."""
        first: Any = self.parts[0]
        edge = first.scales + first.steps / 2
        return torch.tanh(z / edge) * edge


class Grid(Quantizer):
    """Points of a symmetric grid, (2 i / (L - 1) - 1) * scale for i = 0 .. L - 1 in each channel.

    levels: number L of values of each channel; latents have as many channels.
    scales: half the width of the grid in each channel.
    """

    label = "Grid"
    learned_codes = False
    levels: Tensor
    strides: Tensor
    scales: Tensor
    steps: Tensor

    def __init__(self, levels: Sequence[int], scales: Sequence[float], *, seed: int = 0):
        super().__init__(len(levels), math.prod(levels), seed=seed)
        strides = [math.prod(levels[:i]) for i in range(len(levels))]
        steps = [2 * scale / (level - 1) for level, scale in zip(levels, scales, strict=True)]
        self.register_constants(levels=levels, strides=strides, scales=scales, steps=steps)

    @property
    def codebook(self) -> Float[Tensor, "k l"]:
        """Points of the grid; row i is the code of index i."""
        return self.lookup(torch.arange(self.codebook_size, device=self.levels.device))

    def quantize_vectors(self, z: Float[Tensor, "n l"]) -> Quantized:
        places = self._places(z.detach())
        return Quantized(straight_through(z, self._points(places)), self._index(places), z.new_zeros(()))

    def select(self, z: Float[Tensor, "n l"]) -> Int[Tensor, " n"]:
        return self._index(self._places(z))

    def lookup(self, indices: Int[Tensor, " n"]) -> Float[Tensor, "n l"]:
        return self._points((indices[:, None] // self.strides % self.levels).to(self.steps.dtype))

    def reset_parameters(self, seed: int) -> None:
        self.seed = seed

    def _places(self, z: Float[Tensor, "n l"]) -> Float[Tensor, "n l"]:
        """Return i of the nearest point in each channel."""
        return (z / self.steps + self.levels / 2).floor().clamp_min(0).minimum(self.levels - 1)

    def _points(self, places: Float[Tensor, "n l"]) -> Float[Tensor, "n l"]:
        return places * self.steps - self.scales

    def _index(self, places: Float[Tensor, "n l"]) -> Int[Tensor, " n"]:
        return places.long().mul_(self.strides).sum(-1)
