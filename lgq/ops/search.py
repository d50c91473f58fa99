"""How well each code fits each vector, tile by tile.   n = vectors, k = codes, c = channels.

Which code is nearest to a vector?   n = vectors, k = codes, c = channels.
"""

from collections.abc import Iterator
from typing import Literal, NamedTuple, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lgq.errors import LGQError
from lgq.ops.numerics import outside_autocast

Score = Literal["l2", "dot"]

_BLOCK = 128
_TILE_BYTES = 8 * 2**20  # two tiles stay in a CPU's last-level cache
_TILE_BYTES_ACCELERATOR = 128 * 2**20
_FEWEST_ROWS = 64  # fewer vectors a GEMM and reading the codebook takes longer than using it


def require_comparable(z: Tensor, codes: Tensor, score: str) -> None:
    """Refuse a score, or shapes, that there are no scores of."""
    if score not in get_args(Score):
        raise LGQError(f"score must be {' or '.join(map(repr, get_args(Score)))}, got {score!r}.")
    if z.ndim != 2 or codes.ndim != 2 or z.shape[1] != codes.shape[1]:
        shapes = f"{tuple(z.shape)} and {tuple(codes.shape)}"
        raise LGQError(f"vectors (n, c) and codes (k, c) must share their channels, got {shapes}.")
    if len(codes) == 0:
        raise LGQError("a codebook needs at least one code, got none.")


class Scores:
    """Scores as <inputs_n, e_k> + bias_k, less what is constant in k; walked in tiles.

    Distances are taken from `centre`: they do not change, while products of vectors that lie far
    from the origin would lose in rounding what tells neighbouring codes apart.
    """

    def __init__(self, z: Tensor, codes: Tensor, score: str, centre: Tensor):
        dtype = work_dtype(z, codes)
        self.codes = codes.detach().to(dtype)
        self.inputs = z.detach().to(dtype)
        self.bias = self.codes.new_full((_width(len(codes)),), -torch.inf)
        self.bias[: len(codes)] = 0
        if score == "l2":
            self.codes = self.codes - centre
            self.inputs = (self.inputs - centre) * 2
            self.bias[: len(codes)] -= torch.linalg.vector_norm(self.codes, dim=1).square()

    def tiles(self, rows: int, *, depth: int) -> Iterator[tuple[slice, Tensor]]:
        """Slices of the vectors, each with `depth` adjacent (rows, width) matrices to work in."""
        n, width = len(self.inputs), len(self.bias)
        workspace = self.inputs.new_empty(depth * min(rows, n) * width)
        for start in range(0, n, rows):
            stop = min(start + rows, n)
            yield slice(start, stop), workspace[: depth * (stop - start) * width].view(depth, -1, width)

    def write(self, out: Float[Tensor, "t w"], tile: slice) -> Float[Tensor, "t w"]:
        """The scores of a tile; -inf in the columns beyond the codes."""
        out.copy_(self.bias.expand_as(out))
        out[:, : len(self.codes)].addmm_(self.inputs[tile], self.codes.T)
        return out


def blockwise_argmax(scores: Float[Tensor, "t w"]) -> tuple[Float[Tensor, " t"], Int[Tensor, " t"]]:
    """Maximum of each row and where it is, in two levels: argmax of a long row is not vectorised."""
    peak, block = scores.unflatten(1, (-1, _BLOCK)).amax(2).max(1)
    first = block * _BLOCK
    inside = first[:, None] + torch.arange(_BLOCK, device=scores.device)
    return peak, first + scores.gather(1, inside).argmax(1)


def centre_of(z: Tensor, codes: Tensor) -> Float[Tensor, " c"]:
    """What `Scores` takes distances from: the mean code, in the type that scores of `z` have."""
    return codes.detach().to(work_dtype(z, codes)).mean(0)


def work_dtype(z: Tensor, codes: Tensor) -> torch.dtype:
    """float32 at least: bf16 keeps 8 significant bits, so neighbouring codes would tie."""
    return torch.promote_types(torch.promote_types(z.dtype, codes.dtype), torch.float32)


def tile_rows(z: Tensor, codes: Tensor) -> int:
    """Vectors a tile that is large enough for GEMMs and small enough for the cache."""
    return max(_FEWEST_ROWS, _tile_bytes(z) // (_width(len(codes)) * work_dtype(z, codes).itemsize))


def _tile_bytes(z: Tensor) -> int:
    return _TILE_BYTES if z.device.type == "cpu" else _TILE_BYTES_ACCELERATOR


def _width(k: int) -> int:
    """Row length of a tile of scores: whole blocks, and no stride that maps rows to one cache set."""
    width = -(-k // _BLOCK) * _BLOCK
    return width + _BLOCK if width % 1024 == 0 else width


_SEARCH_CODES = 4096  # the hard search needs no whole rows, so its tile is cut along the codes too


class Choice(NamedTuple):
    """The code that a vector is given."""

    indices: Int[Tensor, " n"]
    codes: Float[Tensor, "n c"]


def nearest(
    z: Float[Tensor, "n c"], codes: Float[Tensor, "k c"], *, score: Score = "l2"
) -> Int[Tensor, " n"]:
    """Index of the code with the best score: smallest distance (`l2`) or largest product (`dot`)."""
    return choose(z, codes, score=score).indices


def choose(z: Float[Tensor, "n c"], codes: Float[Tensor, "k c"], *, score: Score = "l2") -> Choice:
    """The best code of each vector and its index, without gradients."""
    require_comparable(z, codes, score)
    return Choice(*_choose(z.detach(), codes.detach(), score))


def squared_distances(z: Float[Tensor, "n c"], codes: Float[Tensor, "k c"]) -> Float[Tensor, "n k"]:
    """All distances as one n x k matrix, for the dense references of the quantizers."""
    return z.square().sum(1, keepdim=True) - 2 * z @ codes.T + codes.square().sum(1)


@torch.library.custom_op("lgq::choose", mutates_args=())
def _choose(z: Tensor, codes: Tensor, score: str) -> tuple[Tensor, Tensor]:
    indices = torch.zeros(len(z), dtype=torch.int64, device=z.device)
    peak = torch.full((len(z),), -torch.inf, dtype=work_dtype(z, codes), device=z.device)
    with outside_autocast(z):
        centre = centre_of(z, codes)
        for start in range(0, len(codes), _SEARCH_CODES):
            some = codes[start : start + _SEARCH_CODES]
            scores = Scores(z, some, score, centre)
            for tile, (out,) in scores.tiles(tile_rows(z, some), depth=1):
                best, where = blockwise_argmax(scores.write(out, tile))
                indices[tile] = torch.where(best > peak[tile], where + start, indices[tile])
                peak[tile] = torch.maximum(best, peak[tile])
    return indices, codes[indices]


@_choose.register_fake
def _(z: Tensor, codes: Tensor, score: str) -> tuple[Tensor, Tensor]:
    # shape[0], not len: a length would be fixed when torch.compile traces this.
    n = z.shape[0]
    return z.new_empty(n, dtype=torch.int64), codes.new_empty(n, codes.shape[1])
