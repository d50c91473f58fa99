"""The plain formulas with their n x k matrices: what the tiled operator is tested and measured against.

n = vectors, k = codes, c = channels.
"""

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from lgq.ops.assignment import CodebookGradient, Score, SoftAssignment


def soft_assignment(
    z: Float[Tensor, "n c"],
    codes: Float[Tensor, "k c"],
    tau: float,
    *,
    score: Score = "l2",
    codebook_gradient: CodebookGradient = "soft",
) -> SoftAssignment:
    """`lgq.ops.assignment.soft_assignment` as one would write it on paper, with autograd's gradients."""
    product = z @ codes.T
    if score == "l2":
        product = 2 * product - codes.square().sum(1) - z.square().sum(1, keepdim=True)
    logits = product / tau
    p = logits.softmax(1)
    indices = logits.argmax(1)
    soft = p @ (codes.detach() if codebook_gradient == "hard" else codes)
    chosen = codes[indices]
    direct = 0 if codebook_gradient == "soft" else chosen - chosen.detach()
    output = chosen.detach() + (soft - soft.detach()) + direct
    entropy = -(p * logits.log_softmax(1)).sum(1)
    return SoftAssignment(output, indices, p.square().sum(1), entropy, p.mean(0))


def lgq_loss(z: Float[Tensor, "n c"], codes: Float[Tensor, "k c"]) -> tuple[Tensor, Tensor]:
    """Output and loss of LGQ at temperature 1 with the paper's weights."""
    distance = z.square().sum(1, keepdim=True) - 2 * z @ codes.T + codes.square().sum(1)
    p = (-distance).softmax(1)
    soft = p @ codes
    output = codes[p.argmax(1)].detach() + soft - soft.detach()
    peak = F.relu(1 - p.square().sum(1)).mean()
    diversity = len(codes) * p.mean(0).square().sum()
    return output, 0.005 * peak + 0.005 * diversity


def ibq_loss(z: Float[Tensor, "n c"], codes: Float[Tensor, "k c"]) -> tuple[Tensor, Tensor]:
    """Output and loss of IBQ as published."""
    logits = z @ codes.T
    p = logits.softmax(1)
    onehot = F.one_hot(p.argmax(1), len(codes)).to(p.dtype)
    output = (onehot + p - p.detach()) @ codes
    chosen = onehot @ codes
    latent = F.mse_loss(output, z) + F.mse_loss(chosen.detach(), z) + 0.25 * F.mse_loss(chosen, z.detach())
    sharp = (logits / 0.01).softmax(1)
    vector_entropy = -(sharp * (logits / 0.01).log_softmax(1)).sum(1).mean()
    usage = sharp.mean(0)
    batch_entropy = -(usage * (usage + 1e-5).log()).sum()
    return output, latent + 0.05 * (vector_entropy - batch_entropy)
