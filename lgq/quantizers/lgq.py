"""Learnable geometric quantization (Altun et al. 2026): annealed soft assignment with a diversity loss.

n = vectors, k = codes, c = channels.
"""

import math
import warnings
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from lgq.checks import require_above_zero, require_at_least, require_one_of
from lgq.distributed import sum_over_ranks
from lgq.errors import LGQWarning
from lgq.ops.assignment import CodebookGradient, soft_assignment
from lgq.ops.numerics import mean, mse
from lgq.ops.search import Score, squared_distances
from lgq.quantizers.codebook_init import DataInitQuantizer, latent_codes, normal_codes
from lgq.quantizers.quantized import Quantized

TauShape = Literal["linear", "cosine", "constant"]
DiversityScale = Literal["codes", "tokens"]
Init = Literal["normal", "data"]

_UNANNEALED_FORWARDS = 1_000
"""Training batches after which a temperature that was never annealed is taken for a mistake."""


class LGQ(DataInitQuantizer):
    """A learnable codebook in which every code learns from every vector, in proportion to p.

    score: logit of the softmax: `l2`, the negative squared distance, or `dot`, the inner product.
    tau_start, tau_end, tau_shape: temperature over training, set by `anneal`; `constant` stays at tau_start.
    peak_weight: weight of mean_n (1 - sum_k p_nk^2), which makes each vector commit to one code.
    diversity_weight: weight of S sum_k (mean_n p_nk)^2, which spreads the batch over the codes.
    diversity_scale: S is the number of `codes`, or of `tokens` if there are fewer. `tokens` keeps the minimum
        for one-hot assignments at 1 for every codebook size.
    latent_weight: weight of the mean squared difference between input and output (0 in the paper).
    hard_gradient: send the output's gradient to the chosen code directly too, not only through p.
    init: `normal` codes of unit norm on average, or latents of the first training batch (`data`).
    sync_usage: compute the diversity over the tokens of all processes, instead of per process.
    """

    label = "LGQ"
    tau: Tensor
    float32_buffers = ("tau",)
    dense_matrices = 6
    good_scale = (0.3, 3.0)
    off_scale_advice = ' (init="data" helps where they are too large, not where they are too small)'
    _annealed = False

    def __init__(
        self,
        dim: int,
        codebook_size: int,
        *,
        channel_dim: int = -1,
        score: Score = "l2",
        tau_start: float = 1.0,
        tau_end: float = 0.1,
        tau_shape: TauShape = "linear",
        peak_weight: float = 0.005,
        diversity_weight: float = 0.005,
        diversity_scale: DiversityScale = "codes",
        latent_weight: float = 0.0,
        hard_gradient: bool = False,
        init: Init = "normal",
        sync_usage: bool = False,
        seed: int | None = None,
    ):
        super().__init__(dim, codebook_size, channel_dim=channel_dim, seed=seed)
        require_one_of(get_args(Score), score=score)
        require_one_of(get_args(TauShape), tau_shape=tau_shape)
        require_one_of(get_args(DiversityScale), diversity_scale=diversity_scale)
        require_one_of(get_args(Init), init=init)
        require_above_zero(tau_start=tau_start, tau_end=tau_end)
        require_at_least(0, peak_weight=peak_weight, diversity_weight=diversity_weight)
        require_at_least(0, latent_weight=latent_weight)
        self.score = score
        self.tau_start, self.tau_end, self.tau_shape = tau_start, tau_end, tau_shape
        self.peak_weight, self.latent_weight = peak_weight, latent_weight
        self.diversity_weight, self.diversity_scale = diversity_weight, diversity_scale
        self.sync_usage = sync_usage
        self.hard_gradient = hard_gradient
        self.init, self.needs_data_init = init, init == "data"
        self.codebook = nn.Parameter(normal_codes(codebook_size, dim, seed=self.seed))
        self.register_buffer("tau", torch.tensor(float(tau_start)))

    def anneal(self, progress: float) -> None:
        super().anneal(progress)
        self._annealed = True
        fractions = {"linear": progress, "cosine": (1 - math.cos(math.pi * progress)) / 2, "constant": 0.0}
        self.tau.fill_(self.tau_start + (self.tau_end - self.tau_start) * fractions[self.tau_shape])

    def watch(self, z: Float[Tensor, "n c"]) -> None:
        super().watch(z)
        if self._training_forwards != _UNANNEALED_FORWARDS or self._annealed or self.tau_shape == "constant":
            return
        if self.tau_start != self.tau_end and math.isclose(float(self.tau), self.tau_start, rel_tol=1e-6):
            warnings.warn(
                f"after {_UNANNEALED_FORWARDS:,} training batches, the temperature of LGQ is still "
                f"tau_start = {self.tau_start:g}, as `anneal` was never called; assignments "
                "then stay soft to the end of training: call q.anneal(step / (steps - 1)) at "
                "each step, or set "
                f'tau_shape="constant" if the temperature shall stay.',
                LGQWarning,
                stacklevel=2,
            )

    def quantize_vectors(self, z: Float[Tensor, "n c"]) -> Quantized:
        self.init_from_data(z)
        route: CodebookGradient = "both" if self.hard_gradient else "soft"
        # A copy: the temperature may be annealed before the backward pass.
        tau = self.tau.clone()
        soft = soft_assignment(z, self.codebook, tau, score=self.score, codebook_gradient=route)
        peak = mean(F.relu(1 - soft.purity))
        diversity = self._diversity(soft.usage, z.shape[0])
        loss = self.peak_weight * peak + self.diversity_weight * diversity
        terms = {"peak": peak, "diversity": diversity, "entropy": mean(soft.entropy)}
        if self.latent_weight:
            terms["latent"] = mse(soft.codes, z)
            loss = loss + self.latent_weight * terms["latent"]
        return Quantized(soft.codes, soft.indices, loss, terms)

    def dense_forward(self, z: Float[Tensor, "n c"]) -> Quantized:
        scores = -squared_distances(z, self.codebook) if self.score == "l2" else z @ self.codebook.T
        p = (scores / self.tau).softmax(1)
        soft, indices = p @ self.codebook, p.argmax(1)
        chosen = self.codebook[indices]
        output = (chosen if self.hard_gradient else chosen.detach()) + soft - soft.detach()
        loss = self.peak_weight * F.relu(1 - p.square().sum(1)).mean()
        loss = loss + self.diversity_weight * self._diversity(p.mean(0), len(z))
        return Quantized(output, indices, loss + self.latent_weight * F.mse_loss(output, z))

    def _diversity(self, usage: Float[Tensor, " k"], tokens: int) -> Float[Tensor, ""]:
        """S sum_k usage_k^2: smallest where the batch uses all codes alike."""
        if self.sync_usage and self.training:
            all_tokens = sum_over_ranks(usage.new_full((), tokens))
            usage = sum_over_ranks(usage * tokens) / all_tokens.clamp_min(1)
        else:
            all_tokens = usage.new_full((), tokens)
        concentration = usage.square().sum()
        if self.diversity_scale == "codes":
            return self.codebook_size * concentration
        return all_tokens.clamp_max(self.codebook_size) * concentration

    def data_init_codes(self, z: Float[Tensor, "n c"]) -> Float[Tensor, "k c"]:
        return latent_codes(z, self.codebook_size, seed=self.seed)

    def write_codes(self, codes: Float[Tensor, "k c"]) -> None:
        self.codebook.copy_(codes)
