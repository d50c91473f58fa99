"""The plain formulas with their n x k matrices: what the library is tested and measured against.

n = vectors, k = codes, c = channels, d = bits.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from lgq.ops.assignment import CodebookGradient, SoftAssignment
from lgq.ops.search import Score
from lgq.quantizers import LFQ, VQ, SimVQ
from lgq.quantizers.base import Quantized


def squared_distances(z: Float[Tensor, "n c"], codes: Float[Tensor, "k c"]) -> Float[Tensor, "n k"]:
    return z.square().sum(1, keepdim=True) - 2 * z @ codes.T + codes.square().sum(1)


def soft_assignment(
    z: Float[Tensor, "n c"],
    codes: Float[Tensor, "k c"],
    tau: float,
    *,
    score: Score = "l2",
    codebook_gradient: CodebookGradient = "soft",
) -> SoftAssignment:
    """`lgq.ops.assignment.soft_assignment` as one would write it on paper, with autograd's gradients."""
    logits = (-squared_distances(z, codes) if score == "l2" else z @ codes.T) / tau
    p = logits.softmax(1)
    indices = logits.argmax(1)
    soft = p @ (codes.detach() if codebook_gradient == "hard" else codes)
    chosen = codes[indices]
    direct = 0 if codebook_gradient == "soft" else chosen - chosen.detach()
    output = chosen.detach() + (soft - soft.detach()) + direct
    entropy = -(p * logits.log_softmax(1)).sum(1)
    return SoftAssignment(output, indices, p.square().sum(1), entropy, p.mean(0))


class DenseLGQ(nn.Module):
    """LGQ at temperature 1 with the paper's weights."""

    def __init__(self, dim: int, codebook_size: int):
        super().__init__()
        self.codebook = nn.Parameter(torch.randn(codebook_size, dim) * dim**-0.5)

    def forward(self, z: Float[Tensor, "n c"]) -> tuple[Tensor, Tensor, Tensor]:
        p = (-squared_distances(z, self.codebook)).softmax(1)
        soft, indices = p @ self.codebook, p.argmax(1)
        output = self.codebook[indices].detach() + soft - soft.detach()
        peak = F.relu(1 - p.square().sum(1)).mean()
        diversity = len(self.codebook) * p.mean(0).square().sum()
        return output, indices, 0.005 * peak + 0.005 * diversity


class DenseIBQ(nn.Module):
    """IBQ as published."""

    def __init__(self, dim: int, codebook_size: int):
        super().__init__()
        self.codebook = nn.Parameter(torch.randn(codebook_size, dim))

    def forward(self, z: Float[Tensor, "n c"]) -> tuple[Tensor, Tensor, Tensor]:
        logits = z @ self.codebook.T
        p, indices = logits.softmax(1), logits.argmax(1)
        onehot = F.one_hot(indices, len(self.codebook)).to(p.dtype)
        output, chosen = (onehot + p - p.detach()) @ self.codebook, onehot @ self.codebook
        latent = (
            F.mse_loss(output, z) + F.mse_loss(chosen.detach(), z) + 0.25 * F.mse_loss(chosen, z.detach())
        )
        sharp = (logits / 0.01).softmax(1)
        vector_entropy = -(sharp * (logits / 0.01).log_softmax(1)).sum(1).mean()
        usage = sharp.mean(0)
        batch_entropy = -(usage * (usage + 1e-5).log()).sum()
        return output, indices, latent + 0.05 * (vector_entropy - batch_entropy)


class DenseVQ(VQ):
    def choose(self, z: Float[Tensor, "n c"]) -> tuple[Int[Tensor, " n"], Float[Tensor, "n c"]]:
        indices = squared_distances(z, self.codebook).argmin(1)
        return indices, self.codebook[indices]


class DenseSimVQ(SimVQ):
    @torch.no_grad()
    def select(self, z: Float[Tensor, "n c"]) -> Int[Tensor, " n"]:
        return squared_distances(z, self.codebook).argmin(1)


class DenseLFQ(LFQ):
    def quantize_vectors(self, z: Float[Tensor, "n c"]) -> Quantized:
        bits = self.project_in(z)
        signs = torch.where(bits > 0, 1.0, -1.0)
        logits = 2 * self.inverse_temperature * bits @ self.codebook.T
        p = logits.softmax(1)
        vector_entropy = -(p * logits.log_softmax(1)).sum(1).mean()
        usage = p.mean(0)
        batch_entropy = -(usage * usage.clamp_min(1e-30).log()).sum()
        entropy = self.entropy_weight * (vector_entropy - batch_entropy)
        loss = entropy + self.commitment_weight * F.mse_loss(bits, signs)
        indices = ((signs > 0) * self.powers).sum(1)
        return Quantized(self.project_out(bits + (signs - bits).detach()), indices, loss)
