"""Vector quantization (van den Oord et al. 2017) with an EMA codebook, and with the rotation trick as RotVQ.

n = vectors, k = codes, c = channels.
"""

from collections.abc import Callable
from functools import partialmethod
from typing import Literal, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lgq.checks import require_at_least, require_between, require_one_of
from lgq.distributed import broadcast_from_first, sum_over_ranks
from lgq.ops.gradients import rotate_to, straight_through
from lgq.ops.numerics import mse
from lgq.ops.search import nearest_codes, squared_distances
from lgq.quantizers.codebook_init import DataInitQuantizer, kmeans_codes, latent_codes
from lgq.quantizers.quantized import Quantized

Gradient = Literal["straight_through", "rotation"]
Init = Literal["normal", "data", "kmeans"]

_SMOOTHING = 1e-5


class VQ(DataInitQuantizer):
    """Each code follows the exponential moving average (EMA) of the vectors assigned to it.

    gradient: `straight_through`, or the `rotation` trick (Fifty et al. 2024).
    decay: decay of the moving averages.
    commitment_weight: weight of the mean squared difference that pulls vectors to their codes.
    restart_below: running count below which a dead code is moved to a latent of the batch; None never does.
        A batch of n vectors revives at most n codes, the least used first.
    init: `normal` codes of unit norm on average, latents of the first training batch (`data`), or `kmeans`
        centres of it.

    In a model of your own, begin with `init="kmeans", restart_below=1`: most codes of the other starts are
    never used (docs/quantizers.md has the numbers).
    """

    label = "VQ"
    codebook: Tensor
    counts: Tensor
    sums: Tensor
    float32_buffers = ("counts", "sums")
    dense_matrices = 3
    off_scale_advice = ', or start the codes at the latents: init="kmeans", restart_below=1'

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
        seed: int | None = None,
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
        self.init = init
        if init == "normal":
            self.good_scale = (0.3, 3.0)
        for name in ("codebook", "sums"):
            self.register_buffer(name, torch.empty(codebook_size, dim))
        self.register_buffer("counts", torch.empty(codebook_size))
        self.reset_parameters(self.seed)

    def quantize_vectors(self, z: Float[Tensor, "n c"]) -> Quantized:
        # Codes from the operator, not by indexing: torch.compile would index again in the backward pass,
        # when the codebook has already moved.
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
            self._update_codebook()
        indices, codes = search(z, self.codebook)
        codes = codes.to(z.dtype)
        if self.training:
            self._update_averages(z.detach(), indices)
        commitment = mse(z, codes)
        estimator = rotate_to if self.gradient == "rotation" else straight_through
        loss = self.commitment_weight * commitment
        return Quantized(estimator(z, codes), indices, loss, {"commitment": commitment})

    def _update_codebook(self) -> None:
        """Move the codes to the averages of the batches before this one.

        Until the next training batch, indices decode to the output that came with them.
        """
        total = self.counts.sum()
        smoothed = (self.counts + _SMOOTHING) / (total + self.codebook_size * _SMOOTHING) * total
        torch.div(self.sums, smoothed[:, None], out=self.codebook)

    def _update_averages(self, z: Float[Tensor, "n c"], indices: Int[Tensor, " n"]) -> None:
        z = z.to(self.sums.dtype)
        counts = torch.zeros_like(self.counts).index_add_(0, indices, torch.ones_like(z[:, 0]))
        sums = torch.zeros_like(self.sums).index_add_(0, indices, z)
        counts, sums = sum_over_ranks(counts), sum_over_ranks(sums)
        weight = (counts.sum() > 0).to(counts.dtype) * (1 - self.decay)  # an empty batch changes nothing
        self.counts.lerp_(counts, weight)
        self.sums.lerp_(sums, weight)
        if self.restart_below is not None:
            self._revive_dead_codes(z, self.restart_below)

    def _revive_dead_codes(self, z: Float[Tensor, "n c"], threshold: float) -> None:
        """Move dead codes to distinct random latents of rank 0, with a count above the threshold."""
        dead, latents = self.counts < threshold, torch.zeros_like(self.sums)
        # By rising count: codes that found no latent in this batch come first in the next one.
        turn = self.counts.argsort(stable=True).argsort()
        n = z.shape[0]
        revived = dead & (turn < n)
        if n:
            latents = z[torch.randperm(n, device=z.device)[turn.clamp_max(n - 1)]]
        latents, revived = broadcast_from_first(latents), broadcast_from_first(revived)
        count = max(1.0, threshold)
        self.sums.copy_(torch.where(revived[:, None], latents * count, self.sums))
        self.counts.masked_fill_(revived, count)

    def data_init_codes(self, z: Float[Tensor, "n c"]) -> Float[Tensor, "k c"]:
        start = kmeans_codes if self.init == "kmeans" else latent_codes
        return start(z, self.codebook_size, seed=self.seed)

    def write_codes(self, codes: Float[Tensor, "k c"]) -> None:
        self.codebook.copy_(codes)
        self.sums.copy_(codes)
        self.counts.fill_(1.0)


class RotVQ(VQ):
    """VQ with the rotation trick, in the setting of the LGQ paper's comparison."""

    label = "RotVQ"
    __init__ = partialmethod(VQ.__init__, gradient="rotation", decay=0.8, commitment_weight=1.0)
