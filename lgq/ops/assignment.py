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

from lgq.checks import needs_plain_formulas
from lgq.errors import LGQError
from lgq.ops.numerics import full_float32
from lgq.ops.passes import LOG2_E, Weighed, passes_for
from lgq.ops.search import (
    Score,
    Scores,
    check_score_inputs,
    dense_scores,
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
    tile: number of vectors per tile of the backward pass, half of those of the forward pass; changes memory
        and speed, and results only by rounding.
    """
    check_score_inputs(z, codes, score)
    if codebook_gradient not in get_args(CodebookGradient):
        rule = " or ".join(map(repr, get_args(CodebookGradient)))
        raise LGQError(f"`codebook_gradient` must be {rule}, got {codebook_gradient!r}.")
    if tile is not None and tile < 1:
        raise LGQError(f"`tile` must be at least 1 vector, got {tile}.")
    if needs_plain_formulas():
        options = {"score": score, "codebook_gradient": codebook_gradient}
        return SoftAssignment(*dense_assignment(z, codes, _temperature(tau, z, codes), **options))
    settings = (score, codebook_gradient, tile or tile_rows(z, codes))
    return SoftAssignment(*_soft_assignment(z, codes, _temperature(tau, z, codes), *settings)[:5])


def _temperature(tau: float | Tensor, z: Tensor, codes: Tensor) -> Tensor:
    if isinstance(tau, Tensor):
        if tau.ndim or tau.requires_grad:
            rule = "a single number without a gradient (pass tau.detach(), and anneal it instead)"
            raise LGQError(f"`tau` must be {rule}, got shape {tuple(tau.shape)}.")
        return tau
    if not 0 < tau < float("inf"):
        raise LGQError(f"`tau` must be positive and finite, got {tau}; `nearest_codes` is the limit of 0.")
    return torch.full((), tau, dtype=score_dtype(z, codes), device=z.device)


def dense_assignment(
    z: Float[Tensor, "n c"],
    codes: Float[Tensor, "k c"],
    tau: float | Float[Tensor, ""],
    *,
    score: str,
    codebook_gradient: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the fields of `SoftAssignment` by plain formulas, with n x k matrices and autograd's gradients.

    For programs that cannot call the operator, such as those that `torch.func` transforms.
    """
    scores = dense_scores(z, codes, score)
    indices = scores.argmax(1)
    log_p = (scores / tau).log_softmax(1)
    p, rows = log_p.exp(), codes.to(scores.dtype)
    soft, chosen = p @ (rows.detach() if codebook_gradient == "hard" else rows), rows[indices]
    # The difference first: it is exactly 0, so the value is the code to the last bit.
    output = (chosen.detach() if codebook_gradient == "soft" else chosen) + (soft - soft.detach())
    return output.to(z.dtype), indices, p.square().sum(1), -(p * log_p).sum(1), p.mean(0)


def assign_in_tiles(
    z: Tensor, codes: Tensor, tau: Tensor, score: str, codebook_gradient: str, rows: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Compute the operator on any device; `lgq.ops.fused` has another implementation for CUDA."""
    _, indices, purity, entropy, usage, peak, log_sum = _empty_outputs(z, codes)
    passes = passes_for(len(z), len(codes), usage)
    with full_float32(z):
        scores = Scores(z, codes, score, score_centre(z, codes))
        scale = LOG2_E / tau.to(usage.dtype)
        for tile, (s,) in scores.tiles(2 * rows, depth=1):  # as much memory as the backward pass takes
            scores.write(s, tile)
            of_rows = Weighed(peak, indices, log_sum, purity, entropy)
            passes.weigh(s, scale, Weighed(*(part[tile] for part in of_rows)))
    return codes[indices].to(z.dtype), indices, purity, entropy, passes.column_sums(), peak, log_sum


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
    """Compute the gradients of the vectors and the codes on any device."""
    k, n = len(codes), len(z)
    with full_float32(z):
        scores = Scores(z, codes, score, score_centre(z, codes))
        inputs, dtype = scores.inputs, scores.inputs.dtype
        inverse = 1 / tau.to(dtype)
        scale = LOG2_E * inverse
        passes = passes_for(n, k, inputs)
        g = None if grad_output is None else grad_output.to(dtype)
        u = scores.bias.new_zeros(k) if grad_usage is None else grad_usage / n
        reference = best_code_gradient(scores.codes, indices, log_sum, g, grad_purity, u)
        if grad_entropy is not None:
            reference = reference + grad_entropy * log_sum
        # One product writes log-weights and dL/dp: what is added per code or per vector are further channels.
        right = torch.cat([scores.codes, torch.stack([scores.bias, torch.ones_like(u), u], 1)], 1)
        scores.codes = right[:, : scores.codes.shape[1]]  # frees the other copy
        zero = torch.zeros_like(peak)
        for_p = torch.stack([scale.expand(n), -peak * scale, zero], 1)
        for_dp = torch.stack([zero, -reference, zero + 1], 1)
        dz = inputs.new_empty(z.shape)
        dcodes = scores.codes.new_zeros(codes.shape if codes_learn else 0)
        for tile, both in scores.tiles(rows, depth=2):
            left = torch.cat([inputs[tile] * scale, for_p[tile]], 1)
            if g is None:
                torch.sub(u, reference[tile, None], out=both[1, :, :k])
            else:
                left = torch.cat([left, torch.cat([g[tile], for_dp[tile]], 1)])
            torch.mm(left, right.T, out=both.flatten(0, 1)[: len(left), :k])
            log_weights, dp = both
            of_purity, of_entropy = (
                grad if grad is None else grad[tile] for grad in (grad_purity, grad_entropy)
            )
            passes.differentiate(log_weights, dp, indices[tile], log_sum[tile], of_purity, of_entropy)
            ds = dp[:, :k]
            torch.mm(ds, scores.codes, out=dz[tile])
            if codes_learn and g is not None and codebook_gradient != "hard":
                of_both = torch.cat([g[tile], inputs[tile] * inverse])
                dcodes.addmm_(both.flatten(0, 1)[:, :k].T, of_both)
            elif codes_learn:
                dcodes.addmm_(ds.T, inputs[tile] * inverse)
        dz *= 2 * inverse if score == "l2" else inverse
        if codes_learn and score == "l2":
            dcodes.addcmul_(scores.codes, (passes.column_sums() * -2 * inverse)[:, None])
        if codes_learn and g is not None and codebook_gradient != "soft":
            dcodes.index_add_(0, indices, g)
    return dz.to(z.dtype), dcodes.to(codes.dtype)


def best_code_gradient(
    codes: Float[Tensor, "k c"],
    indices: Int[Tensor, " n"],
    log_sum: Float[Tensor, " n"],
    grad_output: Float[Tensor, "n c"] | None,
    grad_purity: Float[Tensor, " n"] | None,
    grad_usage: Float[Tensor, " k"] | None,
) -> Float[Tensor, " n"]:
    """Compute dL/dp of each vector's best code, from which the backward passes count those of all codes.

    A constant per row does not change the gradient of a softmax, and rows near one-hot lose nothing in
    cancellation then. The gradient of the entropy has no part in it where log-weights are 0 at the best code.
    """
    reference = torch.zeros_like(log_sum) if grad_usage is None else grad_usage[indices]
    if grad_output is not None:
        reference = reference + (grad_output * codes[indices]).sum(1)
    if grad_purity is not None:
        reference = reference + 2 * grad_purity * (-log_sum).exp()
    return reference


_soft_assignment_backward = torch.library.custom_op(
    "lgq::soft_assignment_gradients", gradients_in_tiles, mutates_args=()
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
