"""Binary spherical quantization (Zhao et al. 2024): signs on the unit sphere, with factored entropy losses.

n = vectors, k = 2^d codes, c = channels, d = bits.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from lgq.checks import require_above_zero, require_at_least, require_whole
from lgq.errors import LGQError
from lgq.ops.gradients import straight_through
from lgq.ops.numerics import entropy, mean
from lgq.quantizers.base import Projection, Quantizer
from lgq.quantizers.lfq import bit_entropies, bits_of, corner_usage, corners_of, sign
from lgq.quantizers.quantized import Quantized


class BSQ(Quantizer):
    """The corners of a cube on the unit sphere, behind a linear map to d bits: codes sign(u) / sqrt(d).

    entropy_weight: weight of the mean entropy per vector minus that of the batch, divided by the inverse
        temperature.
    commitment_weight: weight of the mean squared distance between unit vectors and their codes.
    inverse_temperature: factor of the soft assignment softmax(inverse_temperature * 2 <u, code>).
    groups: number of equal groups of bits. The entropy of the batch is exact within each group, and groups
        count as independent; 1 is exact. More save time and memory, for more than about 20 bits.
    """

    label = "BSQ"
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
        groups: int = 1,
        seed: int | None = None,
    ):
        super().__init__(dim, codebook_size, channel_dim=channel_dim, seed=seed)
        bits = bits_of(codebook_size, "BSQ")
        require_whole(groups=groups)
        require_at_least(1, groups=groups)
        if bits % groups:
            raise LGQError(f"`groups` must divide the {bits} bits of {codebook_size} codes, got {groups}.")
        require_at_least(0, entropy_weight=entropy_weight, commitment_weight=commitment_weight)
        require_above_zero(inverse_temperature=inverse_temperature)
        self.entropy_weight, self.commitment_weight = entropy_weight, commitment_weight
        self.inverse_temperature, self.groups = inverse_temperature, groups
        self._side = bits**-0.5  # absolute value of each channel of a code, so that codes have unit norm
        self.register_buffer("powers", 2 ** torch.arange(bits), persistent=False)
        self.project_in = Projection(dim, bits, seed=2 * self.seed)
        self.project_out = Projection(bits, dim, seed=2 * self.seed + 1)

    @property
    def codebook(self) -> Float[Tensor, "k d"]:
        """Corners of unit norm; row i is i in binary, lowest bit first."""
        return self._corners(torch.arange(self.codebook_size, device=self.powers.device))

    def quantize_vectors(self, z: Float[Tensor, "n c"]) -> Quantized:
        u = F.normalize(self.project_in(z), dim=1)
        signs = sign(u)
        codes = signs * self._side
        commitment = mean((u - codes).square().sum(1))
        loss, terms = self.commitment_weight * commitment, {"commitment": commitment}
        if self.entropy_weight:
            scaled, sharpness = u * self._side, self.inverse_temperature
            terms["vector_entropy"] = mean(bit_entropies(scaled, sharpness).sum(1))
            parts = scaled.tensor_split(self.groups, dim=1)
            usages = [entropy(corner_usage(part, sharpness)) for part in parts]
            terms["batch_entropy"] = torch.stack(usages).sum()
            difference = terms["vector_entropy"] - terms["batch_entropy"]
            loss = loss + self.entropy_weight * difference / sharpness
        return Quantized(self.project_out(straight_through(u, codes)), self._index(signs), loss, terms)

    def dense_forward(self, z: Float[Tensor, "n c"]) -> Quantized:
        u = F.normalize(self.project_in(z), dim=1)
        codes = torch.where(u > 0, self._side, -self._side).to(u.dtype)
        loss = self.commitment_weight * (u - codes).square().sum(1).mean()
        groups = len(self.powers) // self.groups
        corners = corners_of(torch.arange(2**groups, device=z.device), self.powers[:groups]).to(u.dtype)
        for part in u.split(groups, dim=1):
            logits = 2 * self.inverse_temperature * self._side * part @ corners.T
            p, log_p = logits.softmax(1), logits.log_softmax(1)
            usage = p.mean(0)
            batch_entropy = -(usage * usage.clamp_min(1e-30).log()).sum()
            difference = -(p * log_p).sum(1).mean() - batch_entropy
            loss = loss + self.entropy_weight * difference / self.inverse_temperature
        return Quantized(self.project_out(u + (codes - u).detach()), self._index(codes), loss)

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
        return corners_of(indices, self.powers).to(dtype) * self._side
