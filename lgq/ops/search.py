"""Which code is nearest to a vector?   n = vectors, k = codes, c = channels."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lgq.ops.precision import outside_autocast
from lgq.ops.scores import Score, Scores, best_of, centre_of, require_comparable, tile_rows, work_dtype

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
                best, where = best_of(scores.write(out, tile))
                indices[tile] = torch.where(best > peak[tile], where + start, indices[tile])
                peak[tile] = torch.maximum(best, peak[tile])
    return indices, codes[indices]


@_choose.register_fake
def _(z: Tensor, codes: Tensor, score: str) -> tuple[Tensor, Tensor]:
    # shape[0], not len: a length would be fixed when torch.compile traces this.
    n = z.shape[0]
    return z.new_empty(n, dtype=torch.int64), codes.new_empty(n, codes.shape[1])
