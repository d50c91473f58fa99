"""Vector quantization (van den Oord et al. 2017) with an EMA codebook and the rotation trick as an option.

n = vectors, k = codes, c = channels.
"""

from collections.abc import Callable
from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lgq.checks import require_at_least, require_between, require_one_of
from lgq.distributed import broadcast_from_first, sum_over_ranks
from lgq.ops.gradients import rotate_to, straight_through
from lgq.ops.numerics import mse
from lgq.ops.search import nearest_codes, squared_distances
from lgq.quantizers.base import Quantized
from lgq.quantizers.codebook_init import DataInitQuantizer, kmeans_codes, normal_codes

Gradient = Literal["straight_through", "rotation"]
Init = Literal["normal", "kmeans"]

_SMOOTHING = 1e-5


class VQ(DataInitQuantizer):
    """Each code follows the running mean of the vectors that chose it.

    gradient: `straight_through`, or the `rotation` trick (Fifty et al. 2024).
    decay: of the running means.
    commitment_weight: of the mean squared difference that pulls vectors to their codes.
    restart_below: replace a code by a latent of the batch when its running count falls below
        this; None never does.
    init: `normal` codes of unit norm on average, or `kmeans` centres of the first training batch.
    """

    label = "VQ"
    codebook: Tensor
    counts: Tensor
    sums: Tensor
    float32_buffers = ("counts", "sums")
    dense_matrices = 3

    def __init__(
        self,
        dim: int,
        codebook_size: int,
        *,
        channel_dim: int = -1,
        gradient: Gradient = "straight_through",
        decay: float = 0.99,
        commitment_weight: float = 0.25,
        restart_below: float | None = None,
        init: Init = "normal",
        seed: int = 0,
    ):
        super().__init__(dim, codebook_size, channel_dim=channel_dim, seed=seed)
        require_one_of(get_args(Gradient), gradient=gradient)
        require_one_of(get_args(Init), init=init)
        require_between(0, 1, decay=decay)
        require_at_least(0, commitment_weight=commitment_weight, restart_below=restart_below or 0)
        self.gradient = gradient
        self.decay = decay
        self.commitment_weight = commitment_weight
        self.restart_below = restart_below
        self.needs_data_init = init == "kmeans"
        for name in ("codebook", "sums"):
            self.register_buffer(name, torch.empty(codebook_size, dim))
        self.register_buffer("counts", torch.empty(codebook_size))
        self.set_codebook(normal_codes(codebook_size, dim, seed=seed))

    def quantize_vectors(self, z: Float[Tensor, "n c"]) -> Quantized:
        # Codes from the operator, not by indexing: torch.compile would index again in the backward
        # pass, in a codebook that has moved by then.
        return self._quantize(z, nearest_codes)

    def dense_forward(self, z: Float[Tensor, "n c"]) -> Quantized:
        def search(z: Tensor, codebook: Tensor) -> tuple[Tensor, Tensor]:
            indices = squared_distances(z, codebook).argmin(1)
            return indices, codebook[indices]

        return self._quantize(z, search)

    def _quantize(
        self, z: Float[Tensor, "n c"], search: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
    ) -> Quantized:
        self.init_from_data(z)
        if self.training:
            self._take_effect()
        indices, codes = search(z, self.codebook)
        codes = codes.to(z.dtype)
        if self.training:
            self._follow(z.detach(), indices)
        commitment = mse(z, codes)
        through = rotate_to if self.gradient == "rotation" else straight_through
        loss = self.commitment_weight * commitment
        return Quantized(through(z, codes), indices, loss, {"commitment": commitment})

    def select(self, z: Float[Tensor, "n c"]) -> Int[Tensor, " n"]:
        return nearest_codes(z, self.codebook).indices

    def lookup(self, indices: Int[Tensor, " n"]) -> Float[Tensor, "n c"]:
        return self.codebook[indices]

    def _take_effect(self) -> None:
        """Move the codes to the means of the batches before this one: until the next training
        batch comes, indices decode to the output that they came with."""
        total = self.counts.sum()
        smoothed = (self.counts + _SMOOTHING) / (total + self.codebook_size * _SMOOTHING) * total
        torch.div(self.sums, smoothed[:, None], out=self.codebook)

    def _follow(self, z: Float[Tensor, "n c"], indices: Int[Tensor, " n"]) -> None:
        z = z.to(self.sums.dtype)
        counts = torch.zeros_like(self.counts).index_add_(0, indices, torch.ones_like(z[:, 0]))
        sums = torch.zeros_like(self.sums).index_add_(0, indices, z)
        counts, sums = sum_over_ranks(counts), sum_over_ranks(sums)
        weight = (counts.sum() > 0).to(counts.dtype) * (1 - self.decay)  # an empty batch says nothing
        self.counts.lerp_(counts, weight)
        self.sums.lerp_(sums, weight)
        if self.restart_below is not None:
            self._revive(z, self.counts < self.restart_below, max(1.0, self.restart_below))

    def _revive(self, z: Float[Tensor, "n c"], dead: Bool[Tensor, " k"], count: float) -> None:
        """Give each dead code a latent, the first process's on all, and a count to live on."""
        if len(z) == 0:
            latents, dead = torch.zeros_like(self.sums), torch.zeros_like(dead)
        else:
            order = torch.randperm(len(z), device=z.device).repeat(-(-self.codebook_size // len(z)))
            latents = z[order[: self.codebook_size]]
        latents = broadcast_from_first(latents)
        self.sums.copy_(torch.where(dead[:, None], latents * count, self.sums))
        self.counts.masked_fill_(dead, count)

    def data_init_codes(self, z: Float[Tensor, "n c"]) -> Float[Tensor, "k c"]:
        return kmeans_codes(z, self.codebook_size, seed=self.seed)

    def set_codebook(self, codes: Float[Tensor, "k c"]) -> None:
        self.codebook.copy_(codes)
        self.sums.copy_(codes)
        self.counts.fill_(1.0)


class RotVQ(VQ):
    """VQ with the rotation trick, in the setting of the LGQ paper's comparison."""

    label = "RotVQ"

    def __init__(
        self,
        dim: int,
        codebook_size: int,
        *,
        channel_dim: int = -1,
        gradient: Gradient = "rotation",
        decay: float = 0.8,
        commitment_weight: float = 1.0,
        restart_below: float | None = None,
        init: Init = "normal",
        seed: int = 0,
    ):
        super().__init__(
            dim,
            codebook_size,
            channel_dim=channel_dim,
            gradient=gradient,
            decay=decay,
            commitment_weight=commitment_weight,
            restart_below=restart_below,
            init=init,
            seed=seed,
        )
