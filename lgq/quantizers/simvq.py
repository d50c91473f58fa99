"""Frozen rows, turned into codes by one learned map: SimVQ (Zhu et al. 2024), VQGAN-LC (Zhu et al. 2024).

SimVQ's rows are random; VQGAN-LC's are given features, such as CLIP's of image patches.

n = vectors, k = codes, c = channels, f = channels of features.
"""

import math
from typing import Literal, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from lgq.checks import has_values, require_at_least, require_one_of
from lgq.errors import LGQError
from lgq.ops.gradients import straight_through
from lgq.ops.numerics import mse
from lgq.ops.search import sample_codes, squared_distances
from lgq.quantizers.base import LEAST_MAPPED_SPREAD, NORMALIZE, Quantizer
from lgq.quantizers.codebook_init import DataInitQuantizer, Init, normal_codes
from lgq.quantizers.projection import Projection
from lgq.quantizers.quantized import Quantized

Transform = Literal["mlp", "linear"]
VectorScore = Literal["l2", "cosine"]


class FrozenRows(Quantizer):
    """Codes are transform(rows) for frozen rows and a learned transform."""

    rows: Tensor
    transform: nn.Module
    dense_matrices = 3

    def _set_options(
        self, weight: float, commitment_weight: float, score: VectorScore, sample_temperature: float
    ) -> None:
        require_one_of(get_args(VectorScore), score=score)
        require_at_least(0, weight=weight, commitment_weight=commitment_weight)
        require_at_least(0, sample_temperature=sample_temperature)
        self.weight, self.commitment_weight = weight, commitment_weight
        self.score, self.sample_temperature = score, sample_temperature

    @property
    def codebook(self) -> Float[Tensor, "k c"]:
        codes: Tensor = self.transform(self.rows)
        return codes

    def quantize_vectors(self, z: Float[Tensor, "n c"]) -> Quantized:
        if self.training and self.sample_temperature:
            codes = self.compared(self.codebook)
            drawn = sample_codes(self.compared(z), codes, self.sample_temperature, score=self.product)
            return self._quantize(z, drawn.indices)
        return self._quantize(z, self.select(z))

    def dense_forward(self, z: Float[Tensor, "n c"]) -> Quantized:
        compared = self.compared(z.detach()), self.compared(self.codebook.detach())
        return self._quantize(z, squared_distances(*compared).argmin(1))

    def _quantize(self, z: Float[Tensor, "n c"], indices: Int[Tensor, " n"]) -> Quantized:
        z, codes = self.compared(z), self.lookup(indices)
        codebook, commitment = mse(codes, z.detach()), mse(z, codes.detach())
        loss = self.weight * (codebook + self.commitment_weight * commitment)
        # Both terms have the same value, so one is logged: the first moves the codes, the second the vectors.
        return Quantized(straight_through(z, codes.to(z.dtype)), indices, loss, {"distance": codebook})

    def lookup(self, indices: Int[Tensor, " n"]) -> Float[Tensor, "n c"]:
        """Map only the chosen rows: n with gradients, not k."""
        codes: Tensor = self.transform(self.rows[indices])
        return self.compared(codes)

    def _reset_maps(self, seed: int) -> None:
        self._reset_projections(seed)
        for i, layer in enumerate(self._layers(), start=1):
            layer.reset_parameters(seed + i)

    def _layers(self) -> list[Projection]:
        return [layer for layer in self.transform.modules() if isinstance(layer, Projection)]


class SimVQ(FrozenRows, DataInitQuantizer):
    """Codes are transform(rows), so an update for one code moves all of them.

    transform: `mlp` (Linear, ReLU, Linear of width 2 dim; the LGQ paper's setting), or the published
        `linear` map without bias.
    weight: weight of the whole loss; 10 in the LGQ paper, 1 as published.
    commitment_weight: weight, within the loss, of the term that moves vectors to codes.
    score: nearest code by distance (`l2`) or by angle (`cosine`: latents and codes have unit norm).
    codebook_dim: number of channels of the codes, behind linear maps; None for those of the latents.
    sample_temperature: above 0, training draws codes with probability softmax(score / temperature).
    init: `normal` rows behind a random transform, as published; or rows that are latents of the first
        training batch (`data`), or `kmeans` centres of it, behind a transform that begins as the identity.
    """

    label = "SimVQ"
    off_scale_advice = f'{NORMALIZE}, or start the codes at the latents (init="kmeans")'

    def __init__(
        self,
        dim: int,
        codebook_size: int,
        *,
        channel_dim: int = -1,
        transform: Transform = "mlp",
        weight: float = 10.0,
        commitment_weight: float = 0.25,
        score: VectorScore = "l2",
        codebook_dim: int | None = None,
        sample_temperature: float = 0.0,
        init: Init = "normal",
        seed: int | None = None,
    ):
        super().__init__(dim, codebook_size, channel_dim=channel_dim, codebook_dim=codebook_dim, seed=seed)
        require_one_of(get_args(Transform), transform=transform)
        self._set_options(weight, commitment_weight, score, sample_temperature)
        self.start_codes(init)
        self.good_scale = (LEAST_MAPPED_SPREAD if score == "l2" else 0.0, math.inf)
        c = self.code_dim
        self.register_buffer("rows", normal_codes(codebook_size, c, seed=self.seed))
        self.transform = (
            Projection(c, c, bias=False, seed=self.seed + 1)
            if transform == "linear"
            else nn.Sequential(
                Projection(c, 2 * c, seed=self.seed + 1),
                nn.ReLU(),
                Projection(2 * c, c, seed=self.seed + 2),
            )
        )

    def quantize_vectors(self, z: Float[Tensor, "n c"]) -> Quantized:
        self.init_from_data(self.compared(z))
        return super().quantize_vectors(z)

    def write_codes(self, codes: Float[Tensor, "k c"]) -> None:
        """Make the codes the rows, and the transform the identity; for the ReLU, x = relu(x) - relu(-x)."""
        self.rows.copy_(codes)
        identity = torch.eye(self.code_dim)
        layers = self._layers()
        both_signs = torch.cat([identity, -identity])
        for layer, weight in zip(
            layers, [identity] if len(layers) == 1 else [both_signs, both_signs.T], strict=True
        ):
            layer.weight.copy_(weight)
            if layer.bias is not None:
                layer.bias.zero_()

    @torch.no_grad()
    def reset_parameters(self, seed: int) -> None:
        self.seed = seed
        self.rows.copy_(normal_codes(self.codebook_size, self.code_dim, seed=seed))
        self._reset_maps(seed)
        self.start_codes(self.init)


class ProjectedVQ(FrozenRows):
    """A frozen table of given features and a learned projector: the codes of VQGAN-LC.

    features: one row per code, such as features of image patches from another network; they stay as they are.
    dim: number of channels of the latents.
    weight: weight of the whole loss.
    commitment_weight, score, sample_temperature: as in `SimVQ`.
    """

    label = "ProjectedVQ"

    def __init__(
        self,
        features: Float[Tensor, "k f"],
        dim: int,
        *,
        channel_dim: int = -1,
        weight: float = 1.0,
        commitment_weight: float = 0.25,
        score: VectorScore = "l2",
        sample_temperature: float = 0.0,
        seed: int | None = None,
    ):
        if not isinstance(features, Tensor) or features.ndim != 2 or not features.is_floating_point():
            shape = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
            raise LGQError(f"features must be a float matrix with one row per code, got {shape}.")
        if has_values(features) and not features.isfinite().all():
            raise LGQError("features contain NaN or infinity: leave out those rows.")
        Quantizer.__init__(self, dim, len(features), channel_dim=channel_dim, seed=seed)
        self._set_options(weight, commitment_weight, score, sample_temperature)
        self.register_buffer("rows", features.detach().clone())
        self.transform = Projection(features.shape[1], dim, seed=self.seed + 1)

    @property
    def features(self) -> Float[Tensor, "k f"]:
        """Rows of the table, which the projector turns into codes."""
        return self.rows

    def reset_parameters(self, seed: int) -> None:
        """Redraw the projector from `seed`; the features stay."""
        self.seed = seed
        self._reset_maps(seed)
