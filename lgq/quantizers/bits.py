"""Codes that are strings of bits, the corners of a cube: what LFQ and BSQ share.

n = vectors, k = 2^d codes, c = channels, d = bits, h = bits of one half, m = 2^h corners.
"""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from lgq.checks import require_above_zero, require_at_least, require_indexable, require_whole
from lgq.errors import LGQError
from lgq.ops.numerics import entropy, mean, min_log_weight
from lgq.quantizers.base import LEAST_MAPPED_SPREAD, NORMALIZE, Quantizer
from lgq.quantizers.projection import Projection

_MOST_IN_BATCH_ENTROPY = 2**28
"""Codes per group whose probabilities in a batch fit into memory: about 7 GB in training."""


class BitQuantizer(Quantizer):
    """A linear map to d channels, whose signs are the code, and a linear map back.

    side: absolute value of each channel of a code; None gives codes of unit norm.
    groups: number of equal groups of bits. The entropy of the batch is exact within each group, and groups
        count as independent.
    """

    learned_codes = False
    good_scale = (LEAST_MAPPED_SPREAD, math.inf)
    off_scale_advice = NORMALIZE
    powers: Tensor
    dense_matrices = 7

    def __init__(
        self,
        dim: int,
        codebook_size: int,
        *,
        channel_dim: int,
        side: float | None,
        entropy_weight: float,
        commitment_weight: float,
        inverse_temperature: float,
        groups: int,
        seed: int | None,
    ):
        super().__init__(dim, codebook_size, channel_dim=channel_dim, seed=seed)
        bits = _bits_of(codebook_size, self.label)
        require_whole(groups=groups)
        require_at_least(1, groups=groups)
        if bits % groups:
            raise LGQError(f"`groups` must divide the {bits} bits of {codebook_size} codes, got {groups}.")
        require_at_least(0, entropy_weight=entropy_weight, commitment_weight=commitment_weight)
        require_above_zero(inverse_temperature=inverse_temperature)
        self.side = bits**-0.5 if side is None else side
        self.entropy_weight, self.commitment_weight = entropy_weight, commitment_weight
        self.inverse_temperature, self.groups = inverse_temperature, groups
        self.register_constants(powers=[2**bit for bit in range(bits)])
        self.project_in = Projection(dim, bits, seed=2 * self.seed)
        self.project_out = Projection(bits, dim, seed=2 * self.seed + 1)

    @property
    def codebook(self) -> Float[Tensor, "k d"]:
        """Corners of the cube; row i is i in binary, lowest bit first."""
        return self.corners(torch.arange(self.codebook_size, device=self.powers.device))

    def corners(self, indices: Int[Tensor, " n"]) -> Float[Tensor, "n d"]:
        dtype = torch.promote_types(self.project_out.weight.dtype, torch.float32)
        return _corners_of(indices, self.powers).to(dtype) * self.side

    def index(self, signs: Float[Tensor, "n d"]) -> Int[Tensor, " n"]:
        return ((signs > 0) * self.powers).sum(1)

    def select(self, z: Float[Tensor, "n c"]) -> Int[Tensor, " n"]:
        return self.index(self.project_in(z))

    def lookup(self, indices: Int[Tensor, " n"]) -> Float[Tensor, "n c"]:
        return self.project_out(self.corners(indices))

    def reset_parameters(self, seed: int) -> None:
        self.seed = seed
        self.project_in.reset_parameters(2 * seed)
        self.project_out.reset_parameters(2 * seed + 1)

    def entropies(self, scaled: Float[Tensor, "n d"]) -> dict[str, Tensor]:
        """Return the mean entropy of softmax(2 inverse_temperature <u, code>), and that of its mean.

        scaled: the vectors u times `side`.
        """
        bits = scaled.shape[1] // self.groups
        if 2**bits > _MOST_IN_BATCH_ENTROPY:
            raise LGQError(
                f"the batch entropy of {self.label} has one number per code, and 2^{bits} do not fit into "
                f"memory: set `groups`, so that each has at most {_MOST_IN_BATCH_ENTROPY.bit_length() - 1} "
                "bits, or `entropy_weight` to 0."
            )
        sharpness = self.inverse_temperature
        of_vectors = mean(_bit_entropies(scaled, sharpness).sum(1))
        parts = [entropy(_corner_usage(part, sharpness)) for part in scaled.tensor_split(self.groups, dim=1)]
        of_batch = parts[0] if self.groups == 1 else torch.stack(parts).sum()
        return {"vector_entropy": of_vectors, "batch_entropy": of_batch}

    def dense_entropies(self, u: Float[Tensor, "n d"]) -> Tensor:
        """Return the difference of both entropies by plain formulas, with n x k matrices."""
        bits = len(self.powers) // self.groups
        corners = self.corners(torch.arange(2**bits, device=u.device))[:, :bits].to(u.dtype)
        difference = u.new_zeros(())
        for part in u.split(bits, dim=1):
            logits = 2 * self.inverse_temperature * part @ corners.T
            p, log_p = logits.softmax(1), logits.log_softmax(1)
            usage = p.mean(0)
            batch_entropy = -(usage * usage.clamp_min(1e-30).log()).sum()
            difference = difference - (p * log_p).sum(1).mean() - batch_entropy
        return difference


def sign(z: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
    """Return 1 for channels above 0, and -1 for all others."""
    return torch.where(z > 0, 1.0, -1.0).to(z.dtype)


def _bits_of(codebook_size: int, kind: str) -> int:
    require_indexable(codebook_size)
    bits = codebook_size.bit_length() - 1
    if codebook_size < 2 or codebook_size != 2**bits:
        raise LGQError(
            f"{kind} codes are bit strings, so `codebook_size` must be a power of two from 2 on, "
            f"got {codebook_size}: try {2 ** max(1, bits)}."
        )
    return bits


def _bit_entropies(z: Float[Tensor, "n d"], inverse_temperature: float) -> Float[Tensor, "n d"]:
    """Entropy of each bit under P(+1) = sigmoid(4 z inverse_temperature).

    The softmax over all 2^d corners is the product of these distributions, so its entropy is their sum.
    """
    logits = (4 * inverse_temperature * z).abs()
    return F.softplus(-logits) + logits * torch.sigmoid(-logits)


def _corner_usage(z: Float[Tensor, "n d"], inverse_temperature: float) -> Float[Tensor, " k"]:
    """Exact mean over the batch of softmax(2 inverse_temperature <z, corner>), in one GEMM.

    The weight of a corner is the weight of its low bits times that of its high bits, so the mean of their
    outer products over n is a product of two matrices with sqrt(k) columns.
    """
    low, high = z.tensor_split([z.shape[1] // 2], dim=1)
    weights = [_corner_weights(half, inverse_temperature) for half in (low, high)]
    return (weights[1].T @ weights[0]).flatten() / max(z.shape[0], 1)


def _corner_weights(z: Float[Tensor, "n h"], inverse_temperature: float) -> Float[Tensor, "n m"]:
    powers = 2 ** torch.arange(z.shape[1], device=z.device)
    corners = _corners_of(torch.arange(2 ** z.shape[1], device=z.device), powers).to(z.dtype)
    scores = 2 * inverse_temperature * z @ corners.T
    scores = scores - scores.detach().amax(1, keepdim=True)
    return torch.softmax(scores.clamp_min(min_log_weight(z.dtype)), dim=1)


def _corners_of(indices: Int[Tensor, " m"], powers: Int[Tensor, " h"]) -> Int[Tensor, "m h"]:
    return indices[:, None] // powers % 2 * 2 - 1
