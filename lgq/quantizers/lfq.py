"""Lookup-free quantization (Yu et al. 2023, MAGVIT-v2): the sign of each channel, with entropy losses.

n = vectors, c = channels.
"""

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from lgq.ops.gradients import straight_through
from lgq.ops.numerics import mse
from lgq.quantizers.bits import BitQuantizer, sign
from lgq.quantizers.quantized import Quantized


class LFQ(BitQuantizer):
    """The corners +-1 of a hypercube behind a linear map.

    entropy_weight: weight of the mean entropy per vector minus the entropy of the batch.
    commitment_weight: weight of the mean squared difference that pulls bits to their signs.
    inverse_temperature: factor of the soft assignment softmax(inverse_temperature * 2 <z, code>).
    groups: number of equal groups of bits, as in `BSQ`; training with entropies needs them for more than 28
        bits.
    """

    label = "LFQ"

    def __init__(
        self,
        dim: int,
        codebook_size: int,
        *,
        channel_dim: int = -1,
        entropy_weight: float = 0.1,
        commitment_weight: float = 0.25,
        inverse_temperature: float = 100.0,
        groups: int = 1,
        seed: int | None = None,
    ):
        super().__init__(
            dim,
            codebook_size,
            channel_dim=channel_dim,
            side=1.0,
            entropy_weight=entropy_weight,
            commitment_weight=commitment_weight,
            inverse_temperature=inverse_temperature,
            groups=groups,
            seed=seed,
        )

    def quantize_vectors(self, z: Float[Tensor, "n c"]) -> Quantized:
        bits = self.project_in(z)
        signs = sign(bits)
        commitment = mse(bits, signs)
        loss, terms = self.commitment_weight * commitment, {"commitment": commitment}
        if self.entropy_weight and self.training:
            terms |= self.entropies(bits)
            loss = loss + self.entropy_weight * (terms["vector_entropy"] - terms["batch_entropy"])
        return Quantized(self.project_out(straight_through(bits, signs)), self.index(signs), loss, terms)

    def dense_forward(self, z: Float[Tensor, "n c"]) -> Quantized:
        bits = self.project_in(z)
        signs = sign(bits)
        loss = self.entropy_weight * self.dense_entropies(bits)
        loss = loss + self.commitment_weight * F.mse_loss(bits, signs)
        return Quantized(self.project_out(bits + (signs - bits).detach()), self.index(signs), loss)
