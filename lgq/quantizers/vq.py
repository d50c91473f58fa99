"""Vector quantization (van den Oord et al. 2017) with running means or gradients, and its named forms.

RotVQ has the rotation trick (Fifty et al. 2024), DiVeQ the step of Vali et al. (2025), Wasserstein VQ the
matching of distributions of Fang et al. (2025).

n = vectors, k = codes, c = channels.
"""

import math
from collections.abc import Callable
from functools import partial, partialmethod
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from lgq.checks import is_recomputed, require_at_least, require_between, require_one_of
from lgq.distributed import broadcast_from_first, sum_over_ranks
from lgq.errors import LGQError
from lgq.ops.gradients import rotate_to, step_to, straight_through
from lgq.ops.numerics import gaussian_distance, mse
from lgq.ops.search import nearest_codes, sample_codes, squared_distances
from lgq.quantizers.codebook_init import DataInitQuantizer, Init
from lgq.quantizers.quantized import Quantized

Gradient = Literal["straight_through", "rotation", "step"]
Learning = Literal["ema", "gradient"]
VectorScore = Literal["l2", "cosine"]

_SMOOTHING = 1e-5


class VQ(DataInitQuantizer):
    """Each code follows the exponential moving average (EMA) of the vectors assigned to it, or a gradient.

    gradient: `straight_through`, the `rotation` trick, or the `step` of DiVeQ, which moves codes too.
    learning: codes are running means (`ema`), or parameters that learn by `gradient`.
    score: nearest code by distance (`l2`) or by angle (`cosine`: latents and codes have unit norm).
    codebook_dim: number of channels of the codes, behind linear maps; None for those of the latents.
    decay: decay of the moving averages.
    commitment_weight: weight of the mean squared difference that pulls vectors to their codes.
    codebook_weight: weight of the mean squared difference that pulls codes to their vectors, where codes
        learn by gradient.
    matching_weight: weight of the Wasserstein distance between the Gaussians of latents and codes, where
        codes learn by gradient: it moves all codes to where latents are, and leaves latents as they are.
    noise_variance: variance of the noise in the direction of `step`.
    sample_temperature: above 0, training draws codes with probability softmax(score / temperature).
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
    off_scale_advice = (
        'Start the codes at the latents (init="kmeans", restart_below=1), '
        "or put a BatchNorm before the quantizer"
    )

    def __init__(
        self,
        dim: int,
        codebook_size: int,
        *,
        channel_dim: int = -1,
        gradient: Gradient = "straight_through",
        learning: Learning = "ema",
        score: VectorScore = "l2",
        codebook_dim: int | None = None,
        decay: float = 0.99,
        commitment_weight: float = 0.25,
        codebook_weight: float = 1.0,
        matching_weight: float = 0.0,
        noise_variance: float = 5e-3,
        restart_below: float | None = None,
        sample_temperature: float = 0.0,
        init: Init = "normal",
        seed: int | None = None,
    ):
        super().__init__(dim, codebook_size, channel_dim=channel_dim, codebook_dim=codebook_dim, seed=seed)
        require_one_of(get_args(Gradient), gradient=gradient)
        require_one_of(get_args(Learning), learning=learning)
        require_one_of(get_args(VectorScore), score=score)
        require_between(0, 1, decay=decay)
        require_at_least(0, commitment_weight=commitment_weight, restart_below=restart_below or 0)
        require_at_least(0, codebook_weight=codebook_weight, matching_weight=matching_weight)
        require_at_least(0, noise_variance=noise_variance, sample_temperature=sample_temperature)
        if learning == "ema" and (matching_weight or gradient == "step"):
            asked = "`matching_weight`" if matching_weight else '`gradient` "step"'
            raise LGQError(f'{asked} needs codes that have gradients: set learning="gradient".')
        self.gradient, self.learning, self.score = gradient, learning, score
        self.decay = decay
        self.commitment_weight, self.codebook_weight = commitment_weight, codebook_weight
        self.matching_weight, self.noise_variance = matching_weight, noise_variance
        self.restart_below = restart_below
        self.sample_temperature = sample_temperature
        self.start_codes(init)
        self.good_scale = (0.3, 3.0) if score == "l2" else (0.0, math.inf)
        codes = torch.empty(codebook_size, self.code_dim)
        if learning == "gradient":
            self.codebook = nn.Parameter(codes)
        else:
            self.register_buffer("codebook", codes)
        self.register_buffer("sums", torch.empty_like(codes))
        self.register_buffer("counts", torch.empty(codebook_size))
        self.reset_parameters(self.seed)

    def quantize_vectors(self, z: Float[Tensor, "n c"]) -> Quantized:
        # Codes from the operator, not by indexing: torch.compile would index again in the backward pass,
        # when the codebook has already moved.
        if self.training and self.sample_temperature:
            return self._quantize(z, partial(self._draw, temperature=self.sample_temperature))
        return self._quantize(z, partial(nearest_codes, score=self.product))

    def dense_forward(self, z: Float[Tensor, "n c"]) -> Quantized:
        def search(z: Tensor, codebook: Tensor) -> tuple[Tensor, Tensor]:
            indices = squared_distances(z, codebook).argmin(1)
            return indices, codebook[indices].detach()

        return self._quantize(z, search)

    def _draw(self, z: Tensor, codebook: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        return sample_codes(z, codebook, temperature, score=self.product)

    def _quantize(
        self, z: Float[Tensor, "n c"], search: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
    ) -> Quantized:
        z = self.compared(z)
        self.init_from_data(z)
        codebook = self.compared(self.codebook)
        indices, codes = search(z, codebook)
        codes = codes.to(z.dtype)
        if self.training and not self.frozen:
            self._update_averages(z.detach(), indices)
        commitment = mse(z, codes)
        loss, terms = self.commitment_weight * commitment, {"commitment": commitment}
        if self.learning == "gradient":
            codes = codebook[indices].to(z.dtype)
            terms["codebook"] = mse(codes, z.detach())
            loss = loss + self.codebook_weight * terms["codebook"]
            if self.matching_weight:
                terms["matching"] = gaussian_distance(z.detach(), codebook.to(z.dtype))
                loss = loss + self.matching_weight * terms["matching"]
        if self.gradient == "step":
            output = step_to(z, codes, noise_variance=self.noise_variance if self.training else 0.0)
        else:
            output = (rotate_to if self.gradient == "rotation" else straight_through)(z, codes)
        return Quantized(output, indices, loss, terms)

    @torch.no_grad()
    def begin_batch(self) -> None:
        """Move the codes to the averages of the batches before this one.

        Until the next training batch, indices decode to the output that came with them. Codes that learn by
        gradient stay, except for those that were revived, whose count is negative.
        """
        if self.frozen or (self.learning == "gradient" and self.restart_below is None):
            return
        if self.learning == "gradient":
            revived = self.counts < 0
            self.counts.abs_()
            means = self.sums / self.counts.clamp_min(_SMOOTHING)[:, None]
            self.codebook.copy_(torch.where(revived[:, None], means.to(self.codebook.dtype), self.codebook))
            return
        total = self.counts.sum()
        smoothed = (self.counts + _SMOOTHING) / (total + self.codebook_size * _SMOOTHING) * total
        torch.div(self.sums, smoothed[:, None], out=self.codebook)
        if self.score == "cosine":
            self.codebook.copy_(self.compared(self.codebook))

    def _update_averages(self, z: Float[Tensor, "n c"], indices: Int[Tensor, " n"]) -> None:
        if self.learning == "gradient" and self.restart_below is None:
            return
        if is_recomputed():
            if self.restart_below is not None:
                torch.randperm(len(z), device=z.device)  # as in the first pass: later draws must be the same
            return
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
        count = self._first_count()
        self.sums.copy_(torch.where(revived[:, None], latents * count, self.sums))
        self.counts.masked_fill_(revived, -count if self.learning == "gradient" else count)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *arguments: Any) -> None:
        super()._load_from_state_dict(state_dict, prefix, *arguments)
        given = [f"{prefix}{name}" in state_dict for name in ("codebook", "sums", "counts")]
        if given[0] and not all(given):  # running means of other codes would undo them
            self.begin_with(self.codebook)

    def write_codes(self, codes: Float[Tensor, "k c"]) -> None:
        codes = self.compared(codes)
        self.codebook.copy_(codes)
        # Not below the threshold, or the next batch would move all codes.
        count = self._first_count()
        self.sums.copy_(codes * count)
        self.counts.fill_(count)

    def _first_count(self) -> float:
        return max(1.0, self.restart_below or 0.0)


class RotVQ(VQ):
    """VQ with the rotation trick, in the setting of the LGQ paper's comparison."""

    label = "RotVQ"
    __init__ = partialmethod(VQ.__init__, gradient="rotation", decay=0.8, commitment_weight=1.0)


class DiVeQ(VQ):
    """VQ whose vectors and codes learn from the gradient of the output alone, by the `step` between them.

    With `restart_below`, codes that are seldom chosen move to latents, as published.
    """

    label = "DiVeQ"
    __init__ = partialmethod(
        VQ.__init__, gradient="step", learning="gradient", commitment_weight=0.0, codebook_weight=0.0
    )


class WassersteinVQ(VQ):
    """VQ whose codes are drawn to the distribution of the latents, in the weights of its released code."""

    label = "Wasserstein VQ"
    __init__ = partialmethod(VQ.__init__, learning="gradient", commitment_weight=0.1, matching_weight=0.5)
