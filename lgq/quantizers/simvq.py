"""SimVQ (Zhu et al. 2024): frozen random rows, turned into codes by one learned map.

n = vectors, k = codes, c = channels.
"""

from typing import Literal, get_args

from jaxtyping import Float, Int
from torch import Tensor, nn

from lgq.checks import require_at_least, require_one_of
from lgq.ops.gradients import straight_through
from lgq.ops.numerics import mse
from lgq.ops.search import squared_distances
from lgq.quantizers.base import Projection, Quantizer
from lgq.quantizers.codebook_init import normal_codes
from lgq.quantizers.quantized import Quantized

Transform = Literal["mlp", "linear"]


class SimVQ(Quantizer):
    """Codes are transform(rows), so an update for one code moves all of them.

    transform: `mlp` (Linear, ReLU, Linear of width 2 dim; the LGQ paper's setting), or the published
        `linear` map without bias.
    weight: weight of the whole loss; 10 in the LGQ paper, 1 as published.
    commitment_weight: weight, within the loss, of the term that moves vectors to codes.
    """

    label = "SimVQ"
    rows: Tensor
    dense_matrices = 3

    def __init__(
        self,
        dim: int,
        codebook_size: int,
        *,
        channel_dim: int = -1,
        transform: Transform = "mlp",
        weight: float = 10.0,
        commitment_weight: float = 0.25,
        seed: int | None = None,
    ):
        super().__init__(dim, codebook_size, channel_dim=channel_dim, seed=seed)
        require_one_of(get_args(Transform), transform=transform)
        require_at_least(0, weight=weight, commitment_weight=commitment_weight)
        self.weight, self.commitment_weight = weight, commitment_weight
        self.register_buffer("rows", normal_codes(codebook_size, dim, seed=self.seed))
        self.transform = (
            Projection(dim, dim, bias=False, seed=self.seed + 1)
            if transform == "linear"
            else nn.Sequential(
                Projection(dim, 2 * dim, seed=self.seed + 1),
                nn.ReLU(),
                Projection(2 * dim, dim, seed=self.seed + 2),
            )
        )

    @property
    def codebook(self) -> Float[Tensor, "k c"]:
        codes: Tensor = self.transform(self.rows)
        return codes

    def quantize_vectors(self, z: Float[Tensor, "n c"]) -> Quantized:
        return self._quantize(z, self.select(z))

    def dense_forward(self, z: Float[Tensor, "n c"]) -> Quantized:
        return self._quantize(z, squared_distances(z.detach(), self.codebook.detach()).argmin(1))

    def _quantize(self, z: Float[Tensor, "n c"], indices: Int[Tensor, " n"]) -> Quantized:
        codes = self.lookup(indices)
        codebook, commitment = mse(codes, z.detach()), mse(z, codes.detach())
        loss = self.weight * (codebook + self.commitment_weight * commitment)
        # Both terms have the same value, so one is logged: the first moves the codes, the second the vectors.
        return Quantized(straight_through(z, codes.to(z.dtype)), indices, loss, {"distance": codebook})

    def lookup(self, indices: Int[Tensor, " n"]) -> Float[Tensor, "n c"]:
        """Map only the chosen rows: n with gradients, not k."""
        codes: Tensor = self.transform(self.rows[indices])
        return codes

    def reset_parameters(self, seed: int) -> None:
        self.seed = seed
        self.rows.copy_(normal_codes(self.codebook_size, self.dim, seed=seed))
        layers = [layer for layer in self.transform.modules() if isinstance(layer, Projection)]
        for i, layer in enumerate(layers, start=1):
            layer.reset_parameters(seed + i)
