"""Soft assignment by its plain formulas, for programs that cannot call the operator of `assignment`.

n = vectors, k = codes, c = channels.
"""

from jaxtyping import Float
from torch import Tensor

from lgq.ops.search import dense_scores


def dense_assignment(
    z: Float[Tensor, "n c"],
    codes: Float[Tensor, "k c"],
    tau: float | Float[Tensor, ""],
    *,
    score: str,
    codebook_gradient: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the fields of `SoftAssignment`, computed with n x k matrices and autograd's gradients."""
    scores = dense_scores(z, codes, score)
    indices = scores.argmax(1)
    log_p = (scores / tau).log_softmax(1)
    p, rows = log_p.exp(), codes.to(scores.dtype)
    soft, chosen = p @ (rows.detach() if codebook_gradient == "hard" else rows), rows[indices]
    # The difference first: it is exactly 0, so the value is the code to the last bit.
    output = (chosen.detach() if codebook_gradient == "soft" else chosen) + (soft - soft.detach())
    return output.to(z.dtype), indices, p.square().sum(1), -(p * log_p).sum(1), p.mean(0)
