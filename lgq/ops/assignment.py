"""Soft assignment of vectors to codes, in tiles.   n = vectors, k = codes, c = channels.

Exact p = softmax(score / tau), as LGQ (Altun et al. 2026) and IBQ (Shi et al. 2024) need it, without the
n x k matrix: both passes go over tiles of vectors with one small workspace. The forward pass keeps a few
numbers per vector and the backward pass recomputes the rest. A training step costs six GEMMs of 2nkc
operations, the minimum that the formulas allow.
"""

from typing import Any, Literal, NamedTuple, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lgq.errors import LGQError
from lgq.ops.numerics import full_float32, min_log_weight
from lgq.ops.search import (
    Score,
    Scores,
    blockwise_argmax,
    check_score_inputs,
    score_centre,
    score_dtype,
    tile_rows,
)

CodebookGradient = Literal["soft", "hard", "both"]


class SoftAssignment(NamedTuple):
    """Result of `soft_assignment`; all fields but the indices are differentiable."""

    codes: Float[Tensor, "n c"]
    """Value of the best code, gradient of the soft mean sum_k p_nk e_k."""
    indices: Int[Tensor, " n"]
    purity: Float[Tensor, " n"]
    """Purity sum_k p_nk^2; 1 for a one-hot assignment."""
    entropy: Float[Tensor, " n"]
    """Entropy -sum_k p_nk log p_nk, in nats."""
    usage: Float[Tensor, " k"]
    """Mean assignment of each code, mean_n p_nk."""


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
    codebook_gradient: codes that the gradient of the returned codes reaches directly: every code in
        proportion to p (`soft`), the chosen code alone (`hard`), or `both`. The gradient through the
        scores is the same in each case.
    tile: number of vectors per tile; changes memory and speed, and results only by rounding.
    """
    check_score_inputs(z, codes, score)
    if codebook_gradient not in get_args(CodebookGradient):
        rule = " or ".join(map(repr, get_args(CodebookGradient)))
        raise LGQError(f"codebook_gradient must be {rule}, got {codebook_gradient!r}.")
    if tile is not None and tile < 1:
        raise LGQError(f"tile must be at least 1 vector, got {tile}.")
    settings = (score, codebook_gradient, tile or tile_rows(z, codes))
    return SoftAssignment(*_soft_assignment(z, codes, _temperature(tau, z, codes), *settings)[:5])


def _temperature(tau: float | Tensor, z: Tensor, codes: Tensor) -> Tensor:
    if isinstance(tau, Tensor):
        if tau.ndim or tau.requires_grad:
            rule = "a single number without a gradient (pass tau.detach(), and anneal it instead)"
            raise LGQError(f"tau must be {rule}, got shape {tuple(tau.shape)}.")
        return tau
    if not 0 < tau < float("inf"):
        raise LGQError(f"tau must be positive and finite, got {tau}; `nearest_codes` is the limit of 0.")
    return torch.full((), tau, dtype=score_dtype(z, codes), device=z.device)


def assign_in_tiles(
    z: Tensor, codes: Tensor, tau: Tensor, score: str, codebook_gradient: str, rows: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Compute the operator with torch, on any device; `lgq.ops.fused` has another implementation for CUDA."""
    k = len(codes)
    _, indices, purity, entropy, usage, peak, log_sum = _empty_outputs(z, codes)
    usage.zero_()
    with full_float32(z):
        scores = Scores(z, codes, score, score_centre(z, codes))
        inverse = 1 / tau.to(usage.dtype)
        for tile, (s, p) in scores.tiles(rows, depth=2):
            # The best before the division by tau, which may round two scores to one value: `nearest_codes`
            # compares them undivided too.
            peak[tile], indices[tile] = blockwise_argmax(scores.write(s, tile))
            _to_log_weights(s.sub_(peak[tile, None]), inverse)
            torch.softmax(s, 1, out=p)
            purity[tile] = torch.linalg.vector_norm(p, dim=1).square()
            usage.addmv_(p[:, :k].T, p.new_full((len(p),), 1 / len(z)))
            log_sum[tile] = -p.gather(1, indices[tile, None]).squeeze(1).log()
            entropy[tile] = log_sum[tile] - s.mul_(p).sum(1)
    return codes[indices].to(z.dtype), indices, purity, entropy, usage, peak, log_sum


_soft_assignment = torch.library.custom_op("lgq::soft_assignment", assign_in_tiles, mutates_args=())


@_soft_assignment.register_fake
def _(
    z: Tensor, codes: Tensor, tau: Tensor, score: str, codebook_gradient: str, rows: int
) -> tuple[Tensor, ...]:
    return _empty_outputs(z, codes)


def _empty_outputs(z: Tensor, codes: Tensor) -> tuple[Tensor, ...]:
    n, dtype = z.shape[0], score_dtype(z, codes)
    purity, entropy, peak, log_sum = (z.new_empty(n, dtype=dtype) for _ in range(4))
    usage = z.new_empty(codes.shape[0], dtype=dtype)
    return z.new_empty(z.shape), z.new_empty(n, dtype=torch.int64), purity, entropy, usage, peak, log_sum


def gradients_in_tiles(
    grad_output: Tensor | None,
    grad_purity: Tensor | None,
    grad_entropy: Tensor | None,
    grad_usage: Tensor | None,
    z: Tensor,
    codes: Tensor,
    tau: Tensor,
    indices: Tensor,
    peak: Tensor,
    log_sum: Tensor,
    score: str,
    codebook_gradient: str,
    rows: int,
    codes_learn: bool,
) -> tuple[Tensor, Tensor]:
    """Compute the gradients of the vectors and the codes with torch, on any device."""
    k = len(codes)
    with full_float32(z):
        scores = Scores(z, codes, score, score_centre(z, codes))
        inverse = 1 / tau.to(scores.inputs.dtype)
        # Without a gradient of the output, the joint GEMMs have no rows for it.
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
            row_gradients = (_rows(grad_purity, tile), _rows(grad_entropy, tile))
            ds = _score_gradient(both, k, indices[tile, None], *row_gradients)[:, :k]
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
    """Divide scores relative to the row's best by tau in place, and clamp them above denormal weights."""
    s.mul_(inverse_tau).clamp_(min=min_log_weight(s.dtype))


def _rows(per_vector: Tensor | None, tile: slice) -> Tensor | None:
    return None if per_vector is None else per_vector[tile, None]


def _score_gradient(
    both: Float[Tensor, "2 t w"],
    k: int,
    best: Int[Tensor, "t 1"],
    grad_purity: Tensor | None,
    grad_entropy: Tensor | None,
) -> Float[Tensor, "t w"]:
    """Turn (log-weights, dL/dp of the linear outputs) into (p, dL/d log-weights), in place."""
    p, dp = both
    if grad_entropy is not None:
        dp.addcmul_(p, -grad_entropy)
    torch.softmax(p, 1, out=p)
    if grad_purity is not None:
        dp.addcmul_(p, 2 * grad_purity)
    # A constant per row does not change the gradient of a softmax. With exactly 0 at the best code, the sum
    # below has only the weights of the others, which cancellation against a weight of almost 1 would lose.
    dp[:, :k] -= dp.gather(1, best)
    dp.mul_(p)
    return dp.addcmul_(p, -dp.sum(1, keepdim=True))


_soft_assignment_backward = torch.library.custom_op(
    "lgq::soft_assignment_backward", gradients_in_tiles, mutates_args=()
)


@_soft_assignment_backward.register_fake
def _(*arguments: Any) -> tuple[Tensor, Tensor]:
    z, codes, codes_learn = arguments[4], arguments[5], arguments[-1]
    return z.new_empty(z.shape), codes.new_empty(codes.shape if codes_learn else 0)


def _keep_for_backward(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    z, codes, tau, *ctx.settings = inputs
    _, indices, _, _, _, peak, log_sum = output
    ctx.save_for_backward(z, codes, tau, indices, peak, log_sum)
    ctx.mark_non_differentiable(indices, peak, log_sum)
    ctx.set_materialize_grads(False)


def _backward(ctx, grad_output, _indices, grad_purity, grad_entropy, grad_usage, *_constants):  # type: ignore[no-untyped-def]
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
