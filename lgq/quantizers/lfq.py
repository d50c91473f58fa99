"""Lookup-free quantization (Yu et al. 2023, MAGVIT-v2): the sign of each channel, with entropy losses.

n = vectors, k = 2^d codes, c = channels, d = bits, h = bits of one half, m = 2^h corners.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from lgq.checks import require_above_zero, require_at_least
from lgq.errors import LGQError
from lgq.ops.gradients import straight_through
from lgq.ops.numerics import entropy, mean, min_log_weight, mse
from lgq.quantizers.base import Projection, Quantizer
from lgq.quantizers.quantized import Quantized


class LFQ(Quantizer):
    """The corners of a hypercube behind a linear map.

    entropy_weight: weight of the mean entropy per vector minus the entropy of the batch.
    commitment_weight: weight of the mean squared difference that pulls bits to their signs.
    inverse_temperature: factor of the soft assignment softmax(inverse_temperature * 2 <z, code>).
    """

    label = "LFQ"
    learned_codes = False
    powers: Tensor
    dense_matrices = 7

    def __init__(
        self,
        dim: int,
        codebook_size: int,
        *,
        channel_dim: int = -1,
        entropy_weight: float = 0.1,
        commitment_weight: float = 0.25,
        inverse_temperature: float = 100.0,
        seed: int | None = None,
    ):
        super().__init__(dim, codebook_size, channel_dim=channel_dim, seed=seed)
        bits = bits_of(codebook_size, "LFQ")
        require_at_least(0, entropy_weight=entropy_weight, commitment_weight=commitment_weight)
        require_above_zero(inverse_temperature=inverse_temperature)
        self.entropy_weight, self.commitment_weight = entropy_weight, commitment_weight
        self.inverse_temperature = inverse_temperature
        self.register_buffer("powers", 2 ** torch.arange(bits), persistent=False)
        self.project_in = Projection(dim, bits, seed=2 * self.seed)
        self.project_out = Projection(bits, dim, seed=2 * self.seed + 1)

    @property
    def codebook(self) -> Float[Tensor, "k d"]:
        """Corners +-1; row i is i in binary, lowest bit first."""
        return self._corners(torch.arange(self.codebook_size, device=self.powers.device))

    def quantize_vectors(self, z: Float[Tensor, "n c"]) -> Quantized:
        bits = self.project_in(z)
        signs = sign(bits)
        commitment = mse(bits, signs)
        loss, terms = self.commitment_weight * commitment, {"commitment": commitment}
        if self.entropy_weight:
            terms["vector_entropy"] = mean(bit_entropies(bits, self.inverse_temperature).sum(1))
            terms["batch_entropy"] = entropy(corner_usage(bits, self.inverse_temperature))
            loss = loss + self.entropy_weight * (terms["vector_entropy"] - terms["batch_entropy"])
        codes = self.project_out(straight_through(bits, signs))
        return Quantized(codes, self._index(signs), loss, terms)

    def dense_forward(self, z: Float[Tensor, "n c"]) -> Quantized:
        bits = self.project_in(z)
        signs = torch.where(bits > 0, 1.0, -1.0).to(bits.dtype)
        logits = 2 * self.inverse_temperature * bits @ self.codebook.T.to(bits.dtype)
        p, log_p = logits.softmax(1), logits.log_softmax(1)
        usage = p.mean(0)
        batch_entropy = -(usage * usage.clamp_min(1e-30).log()).sum()
        loss = self.entropy_weight * (-(p * log_p).sum(1).mean() - batch_entropy)
        loss = loss + self.commitment_weight * F.mse_loss(bits, signs)
        indices = ((signs > 0) * self.powers).sum(1)
        return Quantized(self.project_out(bits + (signs - bits).detach()), indices, loss)

    def select(self, z: Float[Tensor, "n c"]) -> Int[Tensor, " n"]:
        return self._index(sign(self.project_in(z)))

    def lookup(self, indices: Int[Tensor, " n"]) -> Float[Tensor, "n c"]:
        return self.project_out(self._corners(indices))

    def reset_parameters(self, seed: int) -> None:
        self.seed = seed
        self.project_in.reset_parameters(2 * seed)
        self.project_out.reset_parameters(2 * seed + 1)

    def _index(self, signs: Float[Tensor, "n d"]) -> Int[Tensor, " n"]:
        return ((signs > 0) * self.powers).sum(1)

    def _corners(self, indices: Int[Tensor, " n"]) -> Float[Tensor, "n d"]:
        dtype = torch.promote_types(self.project_out.weight.dtype, torch.float32)
        return corners_of(indices, self.powers).to(dtype)


def bits_of(codebook_size: int, kind: str) -> int:
    """Return the number of bits of each code; other sizes than powers of two are an error."""
    bits = codebook_size.bit_length() - 1
    if codebook_size < 2 or codebook_size != 2**bits:
        raise LGQError(
            f"{kind} codes are bit strings, so `codebook_size` must be a power of two from 2 on, "
            f"got {codebook_size}: try {2 ** max(1, bits)}."
        )
    return bits


def bit_entropies(z: Float[Tensor, "n d"], inverse_temperature: float) -> Float[Tensor, "n d"]:
    """Entropy of each bit under P(+1) = sigmoid(4 z inverse_temperature).

    The softmax over all 2^d corners is the product of these distributions, so its entropy is their sum.
    """
    logits = (4 * inverse_temperature * z).abs()
    return F.softplus(-logits) + logits * torch.sigmoid(-logits)


def corner_usage(z: Float[Tensor, "n d"], inverse_temperature: float) -> Float[Tensor, " k"]:
    """Exact mean over the batch of softmax(2 inverse_temperature <z, corner>), in one GEMM.

    The weight of a corner is the weight of its low bits times that of its high bits, so the mean of their
    outer products over n is a product of two matrices with sqrt(k) columns.
    """
    low, high = z.tensor_split([z.shape[1] // 2], dim=1)
    weights = [_corner_weights(half, inverse_temperature) for half in (low, high)]
    return (weights[1].T @ weights[0]).flatten() / max(z.shape[0], 1)


def _corner_weights(z: Float[Tensor, "n h"], inverse_temperature: float) -> Float[Tensor, "n m"]:
    powers = 2 ** torch.arange(z.shape[1], device=z.device)
    corners = corners_of(torch.arange(2 ** z.shape[1], device=z.device), powers).to(z.dtype)
    scores = 2 * inverse_temperature * z @ corners.T
    scores = scores - scores.detach().amax(1, keepdim=True)
    return torch.softmax(scores.clamp_min(min_log_weight(z.dtype)), dim=1)


def corners_of(indices: Int[Tensor, " m"], powers: Int[Tensor, " h"]) -> Int[Tensor, "m h"]:
    return indices[:, None] // powers % 2 * 2 - 1


def sign(z: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
    return torch.where(z > 0, 1.0, -1.0).to(z.dtype)
