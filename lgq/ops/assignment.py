"""Which code does a vector belong to, and how strongly?   n = vectors, k = codes, c = channels.

Exact soft assignment p = softmax(score / tau), as LGQ (Altun et al. 2026) and IBQ (Shi et al. 2024)
need it, without the n x k matrix: both passes walk over tiles of vectors with one small workspace.
The forward pass keeps a handful of numbers per vector, the backward pass recomputes the rest, and
a training step costs six GEMMs of 2nkc operations: the least that the formulas allow.
"""

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lgq.ops.precision import least_log_weight, outside_autocast

Score = Literal["l2", "dot"]
CodebookGradient = Literal["soft", "hard", "both"]

_BLOCK = 128
_TILE_BYTES = 8 * 2**20  # two tiles stay in a CPU's last-level cache
_TILE_BYTES_ACCELERATOR = 128 * 2**20
_FEWEST_ROWS = 64  # fewer vectors a GEMM and reading the codebook takes longer than using it
_SEARCH_CODES = 4096  # the hard search needs no whole rows, so its tile is cut along the codes too


class SoftAssignment(NamedTuple):
    """What `soft_assignment` returns; all but the indices are differentiable."""

    codes: Float[Tensor, "n c"]
    """Value of the best code, gradient of the soft mean sum_k p_nk e_k."""
    indices: Int[Tensor, " n"]
    purity: Float[Tensor, " n"]
    """sum_k p_nk^2, which is 1 where the assignment is one-hot."""
    entropy: Float[Tensor, " n"]
    """-sum_k p_nk log p_nk, in nats."""
    usage: Float[Tensor, " k"]
    """mean_n p_nk."""


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
    _check(z, codes, score)
    return Choice(*_choose(z.detach(), codes.detach(), score))


def soft_assignment(
    z: Float[Tensor, "n c"],
    codes: Float[Tensor, "k c"],
    tau: float | Float[Tensor, ""],
    *,
    score: Score = "l2",
    codebook_gradient: CodebookGradient = "soft",
    tile: int | None = None,
) -> SoftAssignment:
    """Assign each vector to every code with p = softmax(score / tau), and to its best code.

    score: `l2` is -||z - e||^2, `dot` is <z, e>.
    codebook_gradient: where the gradient of the returned codes meets the codebook directly: every
        code in proportion to p (`soft`), the chosen code alone (`hard`), or `both`. The gradient
        through the scores is there in each case.
    tile: vectors handled at a time. Moves memory and speed, never results beyond rounding.
    """
    _check(z, codes, score)
    if codebook_gradient not in get_args(CodebookGradient):
        rule = " or ".join(map(repr, get_args(CodebookGradient)))
        raise ValueError(f"codebook_gradient must be {rule}, got {codebook_gradient!r}.")
    if tile is not None and tile < 1:
        raise ValueError(f"tile must be at least 1 vector, got {tile}.")
    settings = (score, codebook_gradient, tile or _tile_rows(z, codes))
    return SoftAssignment(*_soft_assignment(z, codes, _temperature(tau, z, codes), *settings)[:5])


def _check(z: Tensor, codes: Tensor, score: str) -> None:
    if score not in get_args(Score):
        raise ValueError(f"score must be {' or '.join(map(repr, get_args(Score)))}, got {score!r}.")
    if z.ndim != 2 or codes.ndim != 2 or z.shape[1] != codes.shape[1]:
        shapes = f"{tuple(z.shape)} and {tuple(codes.shape)}"
        raise ValueError(f"vectors (n, c) and codes (k, c) must share their channels, got {shapes}.")
    if len(codes) == 0:
        raise ValueError("a codebook needs at least one code, got none.")


def _temperature(tau: float | Tensor, z: Tensor, codes: Tensor) -> Tensor:
    if isinstance(tau, Tensor):
        if tau.ndim or tau.requires_grad:
            rule = "a single number without a gradient: pass tau.detach(), and anneal it instead"
            raise ValueError(f"tau must be {rule}, got shape {tuple(tau.shape)}.")
        return tau
    if not 0 < tau < float("inf"):
        raise ValueError(f"tau must be positive and finite, got {tau}; `nearest` is the limit of 0.")
    return torch.full((), tau, dtype=_work_dtype(z, codes), device=z.device)


def _work_dtype(z: Tensor, codes: Tensor) -> torch.dtype:
    # float32 at least: bf16 keeps 8 significant bits, so neighbouring codes would tie.
    return torch.promote_types(torch.promote_types(z.dtype, codes.dtype), torch.float32)


def _tile_bytes(z: Tensor) -> int:
    return _TILE_BYTES if z.device.type == "cpu" else _TILE_BYTES_ACCELERATOR


def _tile_rows(z: Tensor, codes: Tensor) -> int:
    return max(_FEWEST_ROWS, _tile_bytes(z) // (_width(len(codes)) * _work_dtype(z, codes).itemsize))


def _width(k: int) -> int:
    """Row length of a tile of scores: whole blocks, and no stride that maps rows to one cache set."""
    width = -(-k // _BLOCK) * _BLOCK
    return width + _BLOCK if width % 1024 == 0 else width


class _Scores:
    """Scores as <inputs_n, e_k> + bias_k, less what is constant in k; walked in tiles.

    Distances are taken from `centre`: they do not change, while products of vectors that lie far
    from the origin would lose in rounding what tells neighbouring codes apart.
    """

    def __init__(self, z: Tensor, codes: Tensor, score: str, centre: Tensor):
        dtype = _work_dtype(z, codes)
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


def _best(scores: Float[Tensor, "t w"]) -> tuple[Float[Tensor, " t"], Int[Tensor, " t"]]:
    """Maximum of each row and where it is, in two levels: argmax of a long row is not vectorised."""
    peak, block = scores.unflatten(1, (-1, _BLOCK)).amax(2).max(1)
    first = block * _BLOCK
    inside = first[:, None] + torch.arange(_BLOCK, device=scores.device)
    return peak, first + scores.gather(1, inside).argmax(1)


def _centre(z: Tensor, codes: Tensor) -> Tensor:
    return codes.detach().to(_work_dtype(z, codes)).mean(0)


@torch.library.custom_op("lgq::choose", mutates_args=())
def _choose(z: Tensor, codes: Tensor, score: str) -> tuple[Tensor, Tensor]:
    indices = torch.zeros(len(z), dtype=torch.int64, device=z.device)
    peak = torch.full((len(z),), -torch.inf, dtype=_work_dtype(z, codes), device=z.device)
    with outside_autocast(z):
        centre = _centre(z, codes)
        for start in range(0, len(codes), _SEARCH_CODES):
            scores = _Scores(z, codes[start : start + _SEARCH_CODES], score, centre)
            rows = max(_FEWEST_ROWS, _tile_bytes(z) // (len(scores.bias) * peak.itemsize))
            for tile, (out,) in scores.tiles(rows, depth=1):
                best, where = _best(scores.write(out, tile))
                indices[tile] = torch.where(best > peak[tile], where + start, indices[tile])
                peak[tile] = torch.maximum(best, peak[tile])
    return indices, codes[indices]


@_choose.register_fake
def _(z: Tensor, codes: Tensor, score: str) -> tuple[Tensor, Tensor]:
    # shape[0], not len: a length would be fixed when torch.compile traces this.
    n = z.shape[0]
    return z.new_empty(n, dtype=torch.int64), codes.new_empty(n, codes.shape[1])


@torch.library.custom_op("lgq::soft_assignment", mutates_args=())
def _soft_assignment(
    z: Tensor, codes: Tensor, tau: Tensor, score: str, codebook_gradient: str, rows: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    k = len(codes)
    _, indices, purity, entropy, usage, peak = _empty_outputs(z, codes)
    usage.zero_()
    with outside_autocast(z):
        scores = _Scores(z, codes, score, _centre(z, codes))
        inverse = 1 / tau.to(usage.dtype)
        for tile, (s, p) in scores.tiles(rows, depth=2):
            # The best before the division by tau, which may round two scores to one: as `nearest` has it.
            peak[tile], indices[tile] = _best(scores.write(s, tile))
            _to_log_weights(s.sub_(peak[tile, None]), inverse)
            torch.softmax(s, 1, out=p)
            purity[tile] = torch.linalg.vector_norm(p, dim=1).square()
            usage.addmv_(p[:, :k].T, p.new_full((len(p),), 1 / len(z)))
            log_sum = -p.gather(1, indices[tile, None]).squeeze(1).log()
            entropy[tile] = log_sum - s.mul_(p).sum(1)
    return codes[indices].to(z.dtype), indices, purity, entropy, usage, peak


@_soft_assignment.register_fake
def _(
    z: Tensor, codes: Tensor, tau: Tensor, score: str, codebook_gradient: str, rows: int
) -> tuple[Tensor, ...]:
    return _empty_outputs(z, codes)


def _empty_outputs(z: Tensor, codes: Tensor) -> tuple[Tensor, ...]:
    n, dtype = z.shape[0], _work_dtype(z, codes)
    purity, entropy, peak = (z.new_empty(n, dtype=dtype) for _ in range(3))
    usage = z.new_empty(codes.shape[0], dtype=dtype)
    return z.new_empty(z.shape), z.new_empty(n, dtype=torch.int64), purity, entropy, usage, peak


@torch.library.custom_op("lgq::soft_assignment_backward", mutates_args=())
def _soft_assignment_backward(
    grad_output: Tensor | None,
    grad_purity: Tensor | None,
    grad_entropy: Tensor | None,
    grad_usage: Tensor | None,
    z: Tensor,
    codes: Tensor,
    tau: Tensor,
    indices: Tensor,
    peak: Tensor,
    score: str,
    codebook_gradient: str,
    rows: int,
    codes_learn: bool,
) -> tuple[Tensor, Tensor]:
    k = len(codes)
    with outside_autocast(z):
        scores = _Scores(z, codes, score, _centre(z, codes))
        inverse = 1 / tau.to(scores.inputs.dtype)
        # Without a gradient of the output, its rows are simply missing from the joint GEMMs.
        g = scores.inputs[:0] if grad_output is None else grad_output.to(scores.inputs.dtype)
        g_soft = g[:0] if codebook_gradient == "hard" else g
        dp_bias = torch.zeros_like(scores.bias)
        if grad_usage is not None:
            dp_bias[:k] = grad_usage / len(z)
        dz = scores.inputs.new_empty(z.shape)
        dcodes = scores.codes.new_zeros(codes.shape if codes_learn else 0)
        dbias = scores.bias.new_zeros(k)
        for tile, both in scores.tiles(rows, depth=2):
            torch.sub(scores.bias, peak[tile, None], out=both[0])
            both[1] = dp_bias
            left = torch.cat([scores.inputs[tile], g[tile]])
            both.flatten(0, 1)[: len(left), :k].addmm_(left, scores.codes.T)
            _to_log_weights(both[0], inverse)
            ds = _score_gradient(both, _rows(grad_purity, tile), _rows(grad_entropy, tile))[:, :k]
            torch.mm(ds, scores.codes, out=dz[tile])
            if codes_learn:
                right = torch.cat([g_soft[tile], scores.inputs[tile] * inverse])
                dcodes.addmm_(both.flatten(0, 1)[-len(right) :, :k].T, right)
                dbias.addmv_(ds.T, ds.new_ones(len(ds)))
        dz *= 2 * inverse if score == "l2" else inverse
        if codes_learn and score == "l2":
            dcodes.addcmul_(scores.codes, (dbias * -2 * inverse)[:, None])
        if codes_learn and codebook_gradient != "soft":
            dcodes.index_add_(0, indices[: len(g)], g)
    return dz.to(z.dtype), dcodes.to(codes.dtype)


def _to_log_weights(s: Tensor, inverse_tau: Tensor) -> None:
    """In place: scores less the row's best, over tau, raised out of the range of denormal weights."""
    s.mul_(inverse_tau).clamp_(min=least_log_weight(s.dtype))


def _rows(per_vector: Tensor | None, tile: slice) -> Tensor | None:
    return None if per_vector is None else per_vector[tile, None]


def _score_gradient(
    both: Float[Tensor, "2 t w"], grad_purity: Tensor | None, grad_entropy: Tensor | None
) -> Float[Tensor, "t w"]:
    """From (log-weights, dL/dp of the linear outputs), in place, to (p, dL/d log-weights)."""
    p, dp = both
    if grad_entropy is not None:
        dp.addcmul_(p, -grad_entropy)
    torch.softmax(p, 1, out=p)
    if grad_purity is not None:
        dp.addcmul_(p, 2 * grad_purity)
    dp.mul_(p)
    return dp.addcmul_(p, -dp.sum(1, keepdim=True))


@_soft_assignment_backward.register_fake
def _(*arguments: Any) -> tuple[Tensor, Tensor]:
    z, codes, codes_learn = arguments[4], arguments[5], arguments[-1]
    return z.new_empty(z.shape), codes.new_empty(codes.shape if codes_learn else 0)


def _keep_for_backward(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    z, codes, tau, *ctx.settings = inputs
    _, indices, _, _, _, peak = output
    ctx.save_for_backward(z, codes, tau, indices, peak)
    ctx.mark_non_differentiable(indices, peak)
    ctx.set_materialize_grads(False)


def _backward(ctx, grad_output, _indices, grad_purity, grad_entropy, grad_usage, _peak):  # type: ignore[no-untyped-def]
    codes_learn = ctx.needs_input_grad[1]
    gradients = (grad_output, grad_purity, grad_entropy, grad_usage)
    dz, dcodes = _soft_assignment_backward(*gradients, *ctx.saved_tensors, *ctx.settings, codes_learn)
    return dz, dcodes if codes_learn else None, None, None, None, None


def _refuse_second_derivative(ctx, *gradients):  # type: ignore[no-untyped-def]
    raise RuntimeError(
        "soft_assignment has no second derivative: call backward without create_graph, "
        "or detach the quantizer's output from the term that needs one."
    )


_soft_assignment.register_autograd(_backward, setup_context=_keep_for_backward)
_soft_assignment_backward.register_autograd(_refuse_second_derivative)
