"""Binary spherical quantization (Zhao et al. 2024): signs on the unit sphere, with factored entropy losses.

n = vectors, c = channels.
"""

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from lgq.ops.gradients import straight_through
from lgq.ops.numerics import mean
from lgq.quantizers.bits import BitQuantizer, sign
from lgq.quantizers.quantized import Quantized


class BSQ(BitQuantizer):
    """The corners of a cube on the unit sphere, behind a linear map to d bits: codes sign(u) / sqrt(d).

    entropy_weight: weight of the mean entropy per vector minus that of the batch, divided by the inverse
        temperature.
    commitment_weight: weight of the mean squared distance between unit vectors and their codes.
    inverse_temperature: factor of the soft assignment softmax(inverse_temperature * 2 <u, code>).
    groups: number of equal groups of bits. The entropy of the batch is exact within each group, and groups
        count as independent; 1 is exact. More save time and memory, for more than about 20 bits; training
        with entropies needs them for more than 28.

    Defaults are those of the released ImageNet models, except for `groups`: theirs have one bit each.
    """

    label = "BSQ"

    def __init__(
        self,
        dim: int,
        codebook_size: int,
        *,
        channel_dim: int = -1,
        entropy_weight: float = 0.1,
        commitment_weight: float = 0.0,
        inverse_temperature: float = 1.0,
        groups: int = 1,
        seed: int | None = None,
    ):
        super().__init__(
            dim,
            codebook_size,
            channel_dim=channel_dim,
            side=None,
            entropy_weight=entropy_weight,
            commitment_weight=commitment_weight,
            inverse_temperature=inverse_temperature,
            groups=groups,
            seed=seed,
        )

    def quantize_vectors(self, z: Float[Tensor, "n c"]) -> Quantized:
        u = F.normalize(self.project_in(z), dim=1)
        signs = sign(u)
        codes = signs * self.side
        commitment = mean((u - codes).square().sum(1))
        loss, terms = self.commitment_weight * commitment, {"commitment": commitment}
        if self.entropy_weight and self.training:
            terms |= self.entropies(u * self.side)
            difference = terms["vector_entropy"] - terms["batch_entropy"]
            loss = loss + self.entropy_weight * difference / self.inverse_temperature
        return Quantized(self.project_out(straight_through(u, codes)), self.index(signs), loss, terms)

    def dense_forward(self, z: Float[Tensor, "n c"]) -> Quantized:
        u = F.normalize(self.project_in(z), dim=1)
        codes = sign(u) * self.side
        loss = self.commitment_weight * (u - codes).square().sum(1).mean()
        loss = loss + self.entropy_weight * self.dense_entropies(u) / self.inverse_temperature
        return Quantized(self.project_out(u + (codes - u).detach()), self.index(codes), loss)
