"""Multi-scale residual quantization (Tian et al. 2024, VAR): growing grids, each for what the last left over.

b = grids, c = channels, l = tokens of all scales, n = vectors, s = scales.
"""

import math
import warnings
from collections.abc import Sequence
from operator import index

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Integer
from torch import Tensor, nn

from lgq.checks import (
    has_values,
    is_exported,
    is_jit_traced,
    is_recomputed,
    require_at_least,
    require_between,
    require_channels,
    require_finite,
    require_one_of,
    require_tensor,
    require_whole,
)
from lgq.errors import LGQError
from lgq.ops.numerics import at_least_float32, mse, outside_autocast
from lgq.quantizers.base import Quantizer
from lgq.quantizers.compositions.composition import Composition
from lgq.quantizers.quantized import Quantized

_COMMITMENT = 0.25
_KERNEL = 3
_AXES = (1, 2, 3)


class MultiScale(Composition):
    """One codebook on grids of growing size: next-scale tokens, coarse to fine.

    quantizer: is used on every scale, for vectors with the channels of the input.
    sizes: side of the grid of each scale, for inputs whose side is the last of them. Other inputs have grids
        in the same proportion.
    axes: number of spatial axes of the input: 1 for sequences, 2 for images, 3 for videos. They are the last
        ones beside the channels; all axes before them are batches, of which there is at least one, except
        for sequences whose channels are not at axis 1.
    convolutions: number of convolutions that smooth the enlarged codes, at most one per scale; neighbouring
        scales share one.
    smoothing: share of the convolution in what is added, 0 for none; the rest is added as it is.
    latent_weight: weight of the mean over the scales of mse(sum so far, sg z) + .25 mse(sg sum so far, z).

    Each scale averages the residual over the cells of its grid, quantizes it, enlarges the codes bicubically,
    smooths them, and subtracts the result. Indices are one sequence of all scales, the coarsest first, each
    in row-major order: (..., l). `grids` cuts it, and `decode` takes the tokens of the first scales too.
    """

    label = "MultiScale"
    codebooks_at = "quantizer.codebook"
    takes_vectors = False
    maps = ("smooth",)
    index_shape = ()

    def __init__(
        self,
        quantizer: Quantizer,
        sizes: Sequence[int],
        *,
        axes: int = 2,
        channel_dim: int | None = None,
        convolutions: int = 4,
        smoothing: float = 0.5,
        latent_weight: float = 0.0,
    ):
        if not isinstance(quantizer, Quantizer):
            raise LGQError(f"quantizer must be one of lgq, got {type(quantizer).__name__}.")
        if quantizer.index_shape or isinstance(quantizer, MultiScale):
            raise LGQError(
                f"each cell of a scale has one index, and {quantizer.label} gives several: "
                "take a plain quantizer."
            )
        sizes = _growing(sizes)
        require_whole(axes=axes, convolutions=convolutions)
        require_one_of(tuple(map(str, _AXES)), axes=str(axes))
        require_at_least(1, convolutions=convolutions)
        require_between(0, 1, smoothing=smoothing)
        require_at_least(0, latent_weight=latent_weight)
        channel_dim = quantizer.channel_dim if channel_dim is None else channel_dim
        super().__init__(quantizer.dim, quantizer.codebook_size, channel_dim=channel_dim, seed=quantizer.seed)
        self.quantizer = quantizer
        self.sizes, self.axes = sizes, axes
        self.smoothing, self.latent_weight = smoothing, latent_weight
        self.convolutions = convolutions
        self.smooth = nn.ModuleList(
            _Smoothing(self.dim, axes, seed=self.seed + 1 + i)
            for i in range(min(convolutions, len(sizes)) if smoothing else 0)
        )

    @property
    def parts(self) -> list[Quantizer]:
        return [self.quantizer]

    def reset_parameters(self, seed: int) -> None:
        super().reset_parameters(seed)
        for i, layer in enumerate(self.smooth):
            layer.reset_parameters(seed + 1 + i)  # type: ignore[operator]

    def watch(self, z: Float[Tensor, "n c"]) -> None:
        self.quantizer.watch(z)

    def grid_sizes(self, size: Sequence[int] | None = None) -> list[tuple[int, ...]]:
        """Return the shape of the grid of each scale, for an input of this spatial `size`.

        size: None means that of an input whose side is the last of `sizes`.
        """
        size = self._size(size)
        return [tuple(max(1, (2 * n * s + last) // (2 * last)) for n in size) for s, last in self._ratios()]

    def lengths(self, size: Sequence[int] | None = None) -> list[int]:
        """Return the number of tokens of each scale, for an input of this spatial `size`."""
        return [math.prod(grid) for grid in self.grid_sizes(size)]

    def grids(self, indices: Integer[Tensor, "*batch l"], size: Sequence[int] | None = None) -> list[Tensor]:
        """Cut the sequence of tokens into the grid of each scale that it holds.

        size: spatial size of the input, as in `decode`.
        """
        size, scales = self._size_of(_sizes(indices.shape[-1:])[0], size)
        grids = self.grid_sizes(size)[:scales]
        parts = indices.split([math.prod(grid) for grid in grids], dim=-1)
        return [part.unflatten(-1, grid) for part, grid in zip(parts, grids, strict=True)]

    def forward(self, z: Float[Tensor, "*shape"], mask: Tensor | None = None) -> Quantized:
        """Quantize grids; there is no `mask`, as every scale averages over neighbours."""
        grid, batch = self._to_grid(z, mask)
        new_batch = self.training and not is_recomputed()
        if new_batch and has_values(grid):
            self.watch(_to_vectors(grid).detach())
        elif not self.training and has_values(grid):
            self.watch_evaluation()
        with outside_autocast(z):
            if new_batch:
                self.begin_batch()
            learns = self.training or (torch.is_grad_enabled() and not is_exported())
            result = self._quantize_grid(grid, learns=learns)
        quantized = self._from_grid(result.quantized.to(z.dtype), batch)
        loss = result.loss if self.training else torch.zeros_like(result.loss.detach())
        terms = {name: term.detach() for name, term in result.terms.items()}
        return Quantized(quantized, result.indices.reshape((*batch, result.indices.shape[1])), loss, terms)

    @torch.no_grad()
    def encode(self, z: Float[Tensor, "*shape"], mask: Tensor | None = None) -> Int[Tensor, "*tokens"]:
        """Return the tokens of all scales as one sequence, the coarsest scale first, without gradients."""
        grid, batch = self._to_grid(z, mask)
        if has_values(grid):
            self.watch_evaluation()
        with outside_autocast(z):
            indices = self._quantize_grid(grid, learns=False).indices
        return indices.reshape((*batch, indices.shape[1]))

    def decode(
        self, indices: Integer[Tensor, "*indices"], size: Sequence[int] | None = None
    ) -> Float[Tensor, "*shape"]:
        """Return the sum of all scales; tokens of only the first scales give a coarser result.

        size: spatial size of the result; None is the last of `sizes` if its first scales have that many
            tokens, or else the square or cubic input with that many.
        """
        require_tensor("indices", indices)
        if indices.ndim < 1:
            raise LGQError("expected a sequence of tokens, got a single one.")
        batch = indices.shape[:-1]
        size, _ = self._size_of(_sizes(indices.shape[-1:])[0], size)
        with outside_autocast(indices):
            total = None
            grids = self.grids(indices.reshape(-1, indices.shape[-1]), size)
            for i, (grid, shape) in enumerate(zip(grids, self.grid_sizes(size), strict=False)):
                checked = self.quantizer.checked_indices(grid.flatten())
                codes = self.quantizer.codes_of(checked)
                part = self._enlarge(codes, i, shape, size)
                total = part if total is None else total + part
        assert total is not None
        return self._from_grid(total, batch)

    def quantize_vectors(self, z: Float[Tensor, "n c"]) -> Quantized:
        raise LGQError(_NO_VECTORS)

    def lookup(self, indices: Int[Tensor, "n ..."]) -> Float[Tensor, "n c"]:
        raise LGQError(_NO_VECTORS)

    def _quantize_grid(self, z: Float[Tensor, "b c ..."], *, learns: bool) -> Quantized:
        rest, total = z, torch.zeros_like(z)
        loss, distance = z.new_zeros(()), z.new_zeros(())
        indices: list[Tensor] = []
        terms: dict[str, Tensor] = {}
        size = _sizes(z.shape[2:])
        grids = self.grid_sizes(size)
        for i, shape in enumerate(grids):
            vectors = _to_vectors(_shrink(rest, shape))
            if learns:
                result = self.quantizer.quantize(vectors)
            else:
                chosen = self.quantizer.assign(vectors)
                result = Quantized(self.quantizer.codes_of(chosen), chosen, loss)
            codes = self._enlarge(result.quantized, i, shape, size)
            rest, total, loss = rest - codes, total + codes, loss + result.loss / len(grids)
            if self.latent_weight:
                step = mse(total, z.detach()) + _COMMITMENT * mse(total.detach(), z)
                distance = distance + step / len(grids)
            indices.append(result.indices.reshape(z.shape[0], math.prod(shape)))
            terms |= {f"{name}/{i}": term for name, term in result.terms.items()}
        if self.latent_weight:
            terms["latent"], loss = distance, loss + self.latent_weight * distance
        return Quantized(total, torch.cat(indices, 1), loss, terms)

    def _enlarge(
        self, codes: Float[Tensor, "n c"], scale: int, shape: tuple[int, ...], size: tuple[int, ...]
    ) -> Float[Tensor, "b c ..."]:
        """Return the codes of a grid of `shape` as one of `size`, enlarged and smoothed."""
        cells = at_least_float32(codes).reshape(-1, *shape, self.dim)
        grid = cells.movedim(cells.ndim - 1, 1)
        for i, (source, target) in enumerate(zip(shape, size, strict=True)):
            grid = _along(grid, i + 2, _bicubic(source, target, grid))
        if not self.smoothing:
            return grid
        smooth = self.smooth[_shared_part(scale, len(self.sizes), len(self.smooth))]
        return (1 - self.smoothing) * grid + self.smoothing * smooth(grid)

    def _ratios(self) -> list[tuple[int, int]]:
        return [(size, self.sizes[-1]) for size in self.sizes]

    def _size(self, size: Sequence[int] | None) -> tuple[int, ...]:
        size = (self.sizes[-1],) * self.axes if size is None else tuple(size)
        if len(size) != self.axes or min(size) < 1:
            raise LGQError(f"`size` must be {self.axes} lengths of at least 1, got {size}.")
        return size

    def _size_of(self, tokens: int, size: Sequence[int] | None) -> tuple[tuple[int, ...], int]:
        """Return the spatial size of the input and the number of scales behind so many tokens."""
        reference = self._size(size)
        lengths = self.lengths(reference)
        prefixes = [sum(lengths[: i + 1]) for i in range(len(lengths))]
        if tokens in prefixes:
            return reference, prefixes.index(tokens) + 1
        side = 1
        while size is None and sum(self.lengths((side,) * self.axes)) < tokens:
            side += 1
        if size is None and sum(self.lengths((side,) * self.axes)) == tokens:
            return (side,) * self.axes, len(self.sizes)
        raise LGQError(
            f"an input of size {' x '.join(map(str, reference))} has {' or '.join(map(str, prefixes))} "
            f"tokens in its first scales, got {tokens}: give `size` for another input."
        )

    def _to_grid(self, z: Tensor, mask: Tensor | None) -> tuple[Tensor, torch.Size]:
        if mask is not None:
            raise LGQError(
                "MultiScale averages over neighbours, so it takes no `mask`: crop or pad the input."
            )
        require_channels(z, self.dim, self.channel_dim)
        if z.ndim < self.axes + 1:
            raise LGQError(f"expected {self.axes} spatial axes, got shape {tuple(z.shape)}: set `axes`.")
        # A sequence may come alone, where no axis before its channels can be a batch.
        if z.ndim == self.axes + 1 and (self.axes > 1 or self.channel_dim > 0):
            fewer = {1: "", 2: "for sequences pass axes=1, ", 3: "for images pass axes=2, "}[self.axes]
            raise LGQError(
                f"expected a batch of inputs with {self.axes} spatial axes, got shape "
                f"{tuple(z.shape)}: {fewer}for a single input z[None]."
            )
        first = z.movedim(self.channel_dim % z.ndim, z.ndim - 1 - self.axes)
        batch, grid = first.shape[: first.ndim - 1 - self.axes], first.shape[first.ndim - 1 - self.axes :]
        if not is_jit_traced() and 0 in grid:
            raise LGQError(f"each spatial axis needs a length of at least 1, got shape {tuple(z.shape)}.")
        grids = at_least_float32(first.reshape((-1, *grid)))
        require_finite(_to_vectors(grids))
        return grids, batch

    def _from_grid(self, grid: Float[Tensor, "b c ..."], batch: torch.Size) -> Tensor:
        first = grid.reshape((*batch, *grid.shape[1:]))
        return first.movedim(len(batch), self.channel_dim % first.ndim)


_NO_VECTORS = "MultiScale quantizes grids, not single vectors: call it on the whole grid."


class _Smoothing(nn.Module):
    """A convolution of width 3 that computes in float32 or better, whatever its weights are."""

    def __init__(self, dim: int, axes: int, *, seed: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(dim, dim, *(_KERNEL,) * axes))
        self.bias = nn.Parameter(torch.empty(dim))
        self.reset_parameters(seed)

    @torch.no_grad()
    def reset_parameters(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        bound = self.weight[0].numel() ** -0.5
        for parameter in self.parameters():
            initial = torch.empty(parameter.shape, device=generator.device)
            parameter.copy_(initial.uniform_(-bound, bound, generator=generator))

    def forward(self, x: Float[Tensor, "b c ..."]) -> Float[Tensor, "b c ..."]:
        convolve = (F.conv1d, F.conv2d, F.conv3d)[x.ndim - 3]
        weight, bias = at_least_float32(self.weight), at_least_float32(self.bias)
        dtype = torch.promote_types(x.dtype, weight.dtype)
        return convolve(x.to(dtype), weight.to(dtype), bias.to(dtype), padding=_KERNEL // 2)


def _growing(sizes: Sequence[int]) -> tuple[int, ...]:
    whole = isinstance(sizes, list | tuple) and all(type(size) is int and size > 0 for size in sizes)
    if not whole or not sizes or list(sizes) != sorted(set(sizes)):
        raise LGQError(f"sizes must be whole numbers that grow, such as (1, 2, 4, 8), got {sizes!r:.80}.")
    return tuple(sizes)


def _to_vectors(grid: Float[Tensor, "b c ..."]) -> Float[Tensor, "n c"]:
    return grid.movedim(1, grid.ndim - 1).reshape(-1, grid.shape[1])


def _shrink(grid: Float[Tensor, "b c ..."], shape: tuple[int, ...]) -> Float[Tensor, "b c ..."]:
    """Average over the cells of a coarser grid, as adaptive pooling does."""
    for i, (source, target) in enumerate(zip(_sizes(grid.shape[2:]), shape, strict=True)):
        grid = _along(grid, i + 2, _cell_means(source, target, grid))
    return grid


def _sizes(shape: torch.Size) -> tuple[int, ...]:
    """Return sizes as numbers, in place of the tensors of torch.jit.trace and the symbols of torch.compile.

    Each program has grids of fixed sizes: the layouts of unknown ones are too much for torch's compiler.
    """
    if not is_jit_traced():
        return tuple(index(size) for size in shape)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return tuple(int(size) for size in shape)


def _along(grid: Tensor, axis: int, matrix: Float[Tensor, "target source"] | None) -> Tensor:
    """Apply a linear map along one axis; None is the identity."""
    if matrix is None:
        return grid
    return (grid.movedim(axis, grid.ndim - 1) @ matrix.T).movedim(grid.ndim - 1, axis)


def _cell_means(source: int, target: int, like: Tensor) -> Tensor | None:
    """Return the matrix of adaptive average pooling: cell i covers floor(i n / m) to ceil((i + 1) n / m)."""
    if source == target:
        return None
    place, cell = torch.arange(source, device=like.device), torch.arange(target, device=like.device)[:, None]
    first, stop = cell * source // target, -(-(cell + 1) * source // target)
    inside = ((place >= first) & (place < stop)).to(like.dtype)
    return inside / inside.sum(1, keepdim=True)


def _bicubic(source: int, target: int, like: Tensor) -> Tensor | None:
    """Return the matrix of cubic interpolation (a = -0.75, half-pixel centres, borders repeated)."""
    if source == target:
        return None
    a = -0.75
    dtype = at_least_float32(like).dtype
    place = (torch.arange(target, device=like.device, dtype=dtype) + 0.5) * (source / target) - 0.5
    base = place.floor()
    matrix = torch.zeros(target, source, device=like.device, dtype=dtype)
    for offset in (-1, 0, 1, 2):
        distance = (place - base - offset).abs()
        near = ((a + 2) * distance - (a + 3)) * distance**2 + 1
        far = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
        weight = torch.where(distance <= 1, near, far)
        column = (base + offset).clamp(0, source - 1).long()
        matrix = matrix + weight[:, None] * (column[:, None] == torch.arange(source, device=like.device))
    return matrix


def _shared_part(scale: int, scales: int, parts: int) -> int:
    """Return which of `parts` convolutions serves a scale, by the place of the scale among all (VAR)."""
    if scales == 1 or parts == 1:
        return 0
    margin = 1 / (3 * parts) if parts == 4 else 1 / (2 * parts)
    ticks = [margin + i * (1 - 2 * margin) / (parts - 1) for i in range(parts)]
    place = scale / (scales - 1)
    return min(range(parts), key=lambda i: abs(ticks[i] - place))
