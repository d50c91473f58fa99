"""The nearest code of each vector, by scores in tiles.   n = vectors, k = codes, c = channels."""

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Literal, NamedTuple, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from lgq.checks import is_jit_traced, needs_plain_formulas
from lgq.errors import LGQError
from lgq.ops.numerics import full_float32

Score = Literal["l2", "dot"]

_BLOCK = 128
_TILE_BYTES = 8 * 2**20  # two tiles stay in a CPU's last-level cache
_TILE_BYTES_ACCELERATOR = 128 * 2**20
_MIN_ROWS = 64  # with fewer vectors per GEMM, reading the codebook takes longer than using it
_ROW_MULTIPLE = 32  # GEMMs of 127 rows take a third longer than those of 128
_SEARCH_CODES = 4096  # the hard search needs no whole rows, so it also cuts its tiles along the codes


class NearestCodes(NamedTuple):
    """Result of `nearest_codes`, without gradients."""

    indices: Int[Tensor, " n"]
    codes: Float[Tensor, "n c"]


def nearest_codes(
    z: Float[Tensor, "n c"], codes: Float[Tensor, "k c"], *, score: Score = "l2"
) -> NearestCodes:
    """Find the code with the best score: smallest distance (`l2`) or largest inner product (`dot`)."""
    check_score_inputs(z, codes, score)
    z, codes = z.detach(), codes.detach()
    if needs_plain_formulas():
        indices = dense_scores(z, codes, score).argmax(1)
        return NearestCodes(indices, codes[indices])
    is_plain = z.is_cpu and type(z) is Tensor and not torch.compiler.is_compiling()
    return NearestCodes(*(search_on_cpu if is_plain else _nearest_codes)(z, codes, score))


def sample_codes(
    z: Float[Tensor, "n c"], codes: Float[Tensor, "k c"], temperature: float, *, score: Score = "l2"
) -> NearestCodes:
    """Draw a code for each vector with probability softmax(score / temperature), by the Gumbel-max trick."""
    check_score_inputs(z, codes, score)
    z, codes = z.detach(), codes.detach()
    if needs_plain_formulas():
        scores = dense_scores(z, codes, score) / temperature
        indices = (scores + _gumbel(scores)).argmax(1)
        return NearestCodes(indices, codes[indices])
    return NearestCodes(*_sample_codes(z, codes, score, temperature))


def search_in_tiles(z: Tensor, codes: Tensor, score: str) -> tuple[Tensor, Tensor]:
    """Compute the operator with torch, on any device; `lgq.ops.fused` has another implementation for CUDA."""
    return _best_in_tiles(z, codes, score, 0.0)


search_on_cpu: Callable[[Tensor, Tensor, str], tuple[Tensor, Tensor]] = search_in_tiles
"""Search of plain tensors on the CPU. The first call of an operator imports the compiler of torch, which
takes a second; only where the kernels of `lgq.ops.fused` are interpreted on the CPU, it is the operator."""


def _best_in_tiles(z: Tensor, codes: Tensor, score: str, temperature: float) -> tuple[Tensor, Tensor]:
    """Find the best code of each vector, with Gumbel noise of this temperature on the scores."""
    indices = torch.zeros(len(z), dtype=torch.int64, device=z.device)
    peak = torch.full((len(z),), -torch.inf, dtype=score_dtype(z, codes), device=z.device)
    with full_float32(z):
        centre = score_centre(z, codes)
        for start in range(0, len(codes), _SEARCH_CODES):
            block = codes[start : start + _SEARCH_CODES]
            scores = Scores(z, block, score, centre)
            for tile, (out,) in scores.tiles(tile_rows(z, block), depth=1):
                scores.write(out, tile)
                if temperature:
                    out.add_(_gumbel(out), alpha=temperature)  # -inf stays where there is no code
                block_peak, position = blockwise_argmax(out)
                indices[tile] = torch.where(block_peak > peak[tile], position + start, indices[tile])
                peak[tile] = torch.maximum(block_peak, peak[tile])
    return indices, codes[indices]


def _gumbel(like: Tensor) -> Tensor:
    return -torch.empty_like(like).exponential_().log()


_nearest_codes = torch.library.custom_op("lgq::nearest_codes", search_in_tiles, mutates_args=())
_sample_codes = torch.library.custom_op("lgq::sample_codes", _best_in_tiles, mutates_args=())


@_sample_codes.register_fake
def _(z: Tensor, codes: Tensor, score: str, temperature: float) -> tuple[Tensor, Tensor]:
    return z.new_empty(z.shape[0], dtype=torch.int64), codes.new_empty(z.shape[0], codes.shape[1])


@_nearest_codes.register_fake
def _(z: Tensor, codes: Tensor, score: str) -> tuple[Tensor, Tensor]:
    # shape[0], not len: torch.compile would trace a length as a constant.
    n = z.shape[0]
    return z.new_empty(n, dtype=torch.int64), codes.new_empty(n, codes.shape[1])


def squared_distances(z: Float[Tensor, "n c"], codes: Float[Tensor, "k c"]) -> Float[Tensor, "n k"]:
    """Compute all distances as one n x k matrix, for the dense references of the quantizers."""
    return z.square().sum(1, keepdim=True) - 2 * z @ codes.T + codes.square().sum(1)


def dense_scores(z: Float[Tensor, "n c"], codes: Float[Tensor, "k c"], score: str) -> Float[Tensor, "n k"]:
    """Compute the numbers of `Scores` as one n x k matrix, with autograd's gradients."""
    dtype = score_dtype(z, codes)
    inputs, rows = z.to(dtype), codes.to(dtype)
    if score == "dot":
        return inputs @ rows.T
    centre = score_centre(z, codes)
    rows = rows - centre
    return 2 * (inputs - centre) @ rows.T - rows.square().sum(1)


class Scores:
    """Scores as <inputs_n, e_k> + bias_k, without what is constant in k, computed tile by tile.

    Distances are taken from `centre`. This does not change them, but products of vectors far from the
    origin would lose in rounding what tells neighbouring codes apart.
    """

    def __init__(self, z: Tensor, codes: Tensor, score: str, centre: Tensor):
        dtype = score_dtype(z, codes)
        self.codes = codes.detach().to(dtype)
        self.inputs = z.detach().to(dtype)
        self.bias = self.codes.new_zeros(len(codes))
        if score == "l2":
            self.codes = self.codes - centre
            self.inputs = (self.inputs - centre) * 2
            self.bias -= torch.linalg.vector_norm(self.codes, dim=1).square()

    def tiles(self, rows: int, *, depth: int) -> Iterator[tuple[slice, Tensor]]:
        """Yield slices of the vectors, each with `depth` adjacent (rows, width) matrices to work in.

        Only their first columns, one per code, are for writing: the others stay at -inf.
        """
        n, width = len(self.inputs), _width(len(self.codes))
        workspace = self.inputs.new_empty(depth * min(rows, n) * width)
        workspace.view(-1, width)[:, len(self.codes) :] = -torch.inf
        for start in range(0, n, rows):
            stop = min(start + rows, n)
            yield slice(start, stop), workspace[: depth * (stop - start) * width].view(depth, -1, width)

    def write(self, out: Float[Tensor, "t w"], tile: slice) -> Float[Tensor, "t w"]:
        """Write the scores of a tile into the first columns of `out`, and return all of it."""
        left = F.pad(self.inputs[tile], (0, 1), value=1.0)
        torch.mm(left, self._codes_and_bias.T, out=out[:, : len(self.codes)])
        return out

    @cached_property
    def _codes_and_bias(self) -> Tensor:
        """Codes with the bias as one more channel: a pass over the scores takes longer than its product."""
        return torch.cat([self.codes, self.bias[:, None]], 1)


def blockwise_argmax(scores: Float[Tensor, "t w"]) -> tuple[Float[Tensor, " t"], Int[Tensor, " t"]]:
    """Maximum and argmax of each row, in two levels: torch does not vectorise the argmax of a long row."""
    peak, block = scores.unflatten(1, (-1, _BLOCK)).amax(2).max(1)
    first = block * _BLOCK
    columns = first[:, None] + torch.arange(_BLOCK, device=scores.device)
    return peak, first + scores.gather(1, columns).argmax(1)


def score_centre(z: Tensor, codes: Tensor) -> Float[Tensor, " c"]:
    """Mean code, from which `Scores` takes distances, in the dtype of the scores."""
    return codes.detach().to(score_dtype(z, codes)).mean(0)


def score_dtype(z: Tensor, codes: Tensor) -> torch.dtype:
    """Dtype of the scores, float32 at least: with the 8 significant bits of bf16, neighbouring codes tie."""
    return torch.promote_types(torch.promote_types(z.dtype, codes.dtype), torch.float32)


def tile_rows(z: Tensor, codes: Tensor) -> int:
    """Number of vectors per tile: enough for an efficient GEMM, few enough for the cache."""
    tile_bytes = _TILE_BYTES if z.device.type == "cpu" else _TILE_BYTES_ACCELERATOR
    rows = tile_bytes / (_width(len(codes)) * score_dtype(z, codes).itemsize)
    return max(_MIN_ROWS, round(rows / _ROW_MULTIPLE) * _ROW_MULTIPLE)


def _width(k: int) -> int:
    """Row length of a tile: whole blocks, and no stride that maps all rows to one cache set."""
    width = -(-k // _BLOCK) * _BLOCK
    return width + _BLOCK if width % 1024 == 0 else width


def check_score_inputs(z: Tensor, codes: Tensor, score: str) -> None:
    """Raise an error for an unknown score, or for shapes that do not fit."""
    if score not in get_args(Score):
        raise LGQError(f"`score` must be {' or '.join(map(repr, get_args(Score)))}, got {score!r}.")
    if is_jit_traced():
        return
    if z.ndim != 2 or codes.ndim != 2 or z.shape[1] != codes.shape[1]:
        shapes = f"{tuple(z.shape)} and {tuple(codes.shape)}"
        raise LGQError(f"vectors (n, c) and codes (k, c) must have equal channels, got {shapes}.")
    if len(codes) == 0:
        raise LGQError("a codebook needs at least one code, got none.")
