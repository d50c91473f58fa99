"""Learnable geometric quantization (Altun et al. 2026): annealed soft assignment with a diversity loss.

n = vectors, k = codes, c = channels.
"""

import math
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from lgq.checks import require_above_zero, require_at_least, require_one_of
from lgq.distributed import sum_over_ranks
from lgq.errors import LGQError, warn
from lgq.ops.assignment import CodebookGradient, soft_assignment
from lgq.ops.numerics import mean, mse
from lgq.ops.search import nearest_codes, sample_codes, squared_distances
from lgq.quantizers.base import CodeScore
from lgq.quantizers.codebook_init import DataInitQuantizer, Init, normal_codes
from lgq.quantizers.quantized import Quantized

TauShape = Literal["linear", "cosine", "constant"]
DiversityScale = Literal["codes", "tokens"]
LatentScale = Literal["unit", "data"]

_MEASURE_DECAY = 0.99
"""Decay of the running mean and spread of `scale="data"`; before 1 / (1 - decay) batches, all count alike."""
_MEASURES = ("latent_mean", "latent_spread", "measured_batches")
"""Buffers of `scale="data"`; a negative number of batches keeps the others as they are."""
_UNANNEALED_FORWARDS = 1_000
"""Training batches after which a temperature that was never annealed is taken for a mistake."""
_UNANNEALED_EVALUATION = 100
"""The same, where an evaluation follows."""


class LGQ(DataInitQuantizer):
    """A learnable codebook in which every code learns from every vector, in proportion to p.

    score: logit of the softmax: `l2`, the negative squared distance, `dot`, the inner product, or `cosine`,
        for which latents and codes have unit norm.
    codebook_dim: number of channels of the codes, behind linear maps; None for those of the latents.
    scale: `unit` compares latents as they are, as in the paper. `data` subtracts their running mean per
        channel, divides by their running spread, one number, and gives the codes both back, so that shifting
        and scaling the latents changes nothing but the output, in the same way.
    tau_start, tau_end, tau_shape: temperature over training, set by `anneal`; `constant` stays at tau_start.
    peak_weight: weight of mean_n (1 - sum_k p_nk^2), which makes each vector commit to one code.
    diversity_weight: weight of S sum_k (mean_n p_nk)^2, which spreads the batch over the codes.
    diversity_scale: S is the number of `codes`, or of `tokens` if there are fewer. `tokens` keeps the minimum
        for one-hot assignments at 1 for every codebook size.
    latent_weight: weight of the mean squared difference between input and output (0 in the paper).
    hard_gradient: send the output's gradient to the chosen code directly too, not only through p.
    sample_temperature: above 0, training draws codes with probability softmax(score / temperature).
    init: `normal` codes of unit norm on average, latents of the first training batch (`data`), or `kmeans`
        centres of it.
    sync_usage: compute the diversity over the tokens of all processes, instead of per process.
    """

    label = "LGQ"
    tau: Tensor
    latent_mean: Tensor
    latent_spread: Tensor
    measured_batches: Tensor
    float32_buffers: tuple[str, ...] = ("tau",)
    dense_matrices = 6
    good_scale: tuple[float, float] | None = (0.3, 3.0)
    has_temperature = True
    # The paper's run has a hundred times the steps: here, assignments must be sharp long before the end.
    scale_defaults = {  # noqa: RUF012
        "photo": {"tau_start": 0.4, "peak_weight": 0.05, "diversity_weight": 0.05}
    }
    off_scale_advice = (
        'Put a BatchNorm before the quantizer, or set scale="data", init="kmeans" (in a run, '
        "`quantizer_options` scale=data init=kmeans)"
    )
    _annealed = False
    _measures_next = False

    def __init__(
        self,
        dim: int,
        codebook_size: int,
        *,
        channel_dim: int = -1,
        score: CodeScore = "l2",
        codebook_dim: int | None = None,
        scale: LatentScale = "unit",
        tau_start: float = 1.0,
        tau_end: float = 0.1,
        tau_shape: TauShape = "linear",
        peak_weight: float = 0.005,
        diversity_weight: float = 0.005,
        diversity_scale: DiversityScale = "codes",
        latent_weight: float = 0.0,
        hard_gradient: bool = False,
        sample_temperature: float = 0.0,
        init: Init = "normal",
        sync_usage: bool = False,
        seed: int | None = None,
    ):
        super().__init__(dim, codebook_size, channel_dim=channel_dim, codebook_dim=codebook_dim, seed=seed)
        require_one_of(get_args(CodeScore), score=score)
        require_one_of(get_args(LatentScale), scale=scale)
        require_one_of(get_args(TauShape), tau_shape=tau_shape)
        require_one_of(get_args(DiversityScale), diversity_scale=diversity_scale)
        require_above_zero(tau_start=tau_start, tau_end=tau_end)
        require_at_least(0, peak_weight=peak_weight, diversity_weight=diversity_weight)
        require_at_least(0, latent_weight=latent_weight, sample_temperature=sample_temperature)
        self.score = score
        self.tau_start, self.tau_end, self.tau_shape = tau_start, tau_end, tau_shape
        self.peak_weight, self.latent_weight = peak_weight, latent_weight
        self.diversity_weight, self.diversity_scale = diversity_weight, diversity_scale
        self.sync_usage = sync_usage
        self.hard_gradient = hard_gradient
        self.sample_temperature = sample_temperature
        self.start_codes(init)
        self.codebook = nn.Parameter(normal_codes(codebook_size, self.code_dim, seed=self.seed))
        self.register_buffer("tau", torch.tensor(float(tau_start)))
        self.scale = scale
        if scale == "data":
            self.good_scale, self.float32_buffers = None, ("tau", *_MEASURES)
            self.register_buffer("latent_mean", torch.zeros(self.code_dim))
            self.register_buffer("latent_spread", torch.tensor(1.0))
            self.register_buffer("measured_batches", torch.tensor(0.0))
        elif score == "cosine":
            self.good_scale = (0.0, math.inf)

    def anneal(self, progress: float) -> None:
        super().anneal(progress)
        self._annealed = True
        fractions = {"linear": progress, "cosine": (1 - math.cos(math.pi * progress)) / 2, "constant": 0.0}
        self.tau.fill_(self.tau_start + (self.tau_end - self.tau_start) * fractions[self.tau_shape])

    def watch(self, z: Float[Tensor, "n c"]) -> None:
        super().watch(z)
        if self._training_forwards == _UNANNEALED_FORWARDS:
            self._warn_if_not_annealed()

    def watch_evaluation(self) -> None:
        super().watch_evaluation()
        if self._training_forwards >= _UNANNEALED_EVALUATION:
            self._warn_if_not_annealed()

    def _warn_if_not_annealed(self) -> None:
        if self._annealed or self.tau_shape == "constant" or self.tau_start == self.tau_end:
            return
        self._annealed = True  # or else set by hand, or named: nothing more to say
        if math.isclose(float(self.tau), self.tau_start, rel_tol=1e-6):
            warn(
                f"after {self._training_forwards:,} training batches, the temperature of LGQ is still "
                f"tau_start = {self.tau_start:g}, as `anneal` was never called; assignments "
                "then stay soft to the end of training: call q.anneal(step / (steps - 1)) at "
                'each step, or set tau_shape="constant" if the temperature shall stay.',
            )

    def extra_repr(self) -> str:
        tau = "" if self.tau.is_meta else f", tau={float(self.tau):g}"
        return super().extra_repr() + tau

    def quantize_vectors(self, z: Float[Tensor, "n c"]) -> Quantized:
        if self.training and self._measures_next:
            self._measure(z.detach())
        z = self._in_units(z)
        self.init_from_data(z)
        self._measures_next = False
        codes = self.compared(self.codebook)
        route: CodebookGradient = "both" if self.hard_gradient else "soft"
        # A copy: the temperature may be annealed before the backward pass.
        tau = self.tau.clone()
        soft = soft_assignment(z, codes, tau, score=self.product, codebook_gradient=route)
        output, indices = soft.codes, soft.indices
        if self.training and self.sample_temperature:
            indices, drawn = sample_codes(z, codes, self.sample_temperature, score=self.product)
            output = drawn.to(z.dtype) + (output - output.detach())
        peak = mean(F.relu(1 - soft.purity))
        diversity = self._diversity(soft.usage, z.shape[0])
        loss = self.peak_weight * peak + self.diversity_weight * diversity
        terms = {"peak": peak, "diversity": diversity, "entropy": mean(soft.entropy)}
        if self.latent_weight:
            terms["latent"] = mse(output, z)
            loss = loss + self.latent_weight * terms["latent"]
        return Quantized(self._from_units(output), indices, loss, terms)

    def dense_forward(self, z: Float[Tensor, "n c"]) -> Quantized:
        z, codes = self._in_units(z), self.compared(self.codebook)
        scores = -squared_distances(z, codes) if self.score == "l2" else z @ codes.T
        p = (scores / self.tau).softmax(1)
        soft, indices = p @ codes, p.argmax(1)
        chosen = codes[indices]
        output = (chosen if self.hard_gradient else chosen.detach()) + soft - soft.detach()
        loss = self.peak_weight * F.relu(1 - p.square().sum(1)).mean()
        loss = loss + self.diversity_weight * self._diversity(p.mean(0), len(z))
        loss = loss + self.latent_weight * F.mse_loss(output, z)
        return Quantized(self._from_units(output), indices, loss)

    @torch.no_grad()
    def select(self, z: Float[Tensor, "n c"]) -> Int[Tensor, " n"]:
        return nearest_codes(self._in_units(z), self.compared(self.codebook), score=self.product).indices

    def lookup(self, indices: Int[Tensor, " n"]) -> Float[Tensor, "n c"]:
        """Return the code of each index: a row of `codebook`, in units of the latents with `scale="data"`."""
        return self._from_units(super().lookup(indices))

    def begin_batch(self) -> None:
        super().begin_batch()
        # Once per batch: a composition that uses the codes again decodes all indices by the same measures.
        self._measures_next = self.scale == "data" and not self.frozen

    def _in_units(self, z: Float[Tensor, "n c"]) -> Float[Tensor, "n c"]:
        if self.scale == "data":
            mean, spread = self._measures(z.dtype)
            z = (z - mean) / spread
        return self.compared(z)

    def _from_units(self, codes: Float[Tensor, "n c"]) -> Float[Tensor, "n c"]:
        if self.scale == "unit":
            return codes
        mean, spread = self._measures(codes.dtype)
        return codes * spread + mean

    def _measures(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        # Copies: another batch may be measured before the backward pass.
        return self.latent_mean.to(dtype, copy=True), self.latent_spread.to(dtype, copy=True)

    @torch.no_grad()
    def _measure(self, z: Float[Tensor, "n c"]) -> None:
        """Add a training batch of all processes to the running mean per channel and spread about it."""
        z = z.to(self.latent_mean.dtype)
        vectors = sum_over_ranks(z.new_full((), z.shape[0]))
        mean = sum_over_ranks(z.sum(0)) / vectors.clamp_min(1)
        # About the mean in a second pass: the difference of squares would cancel where the mean is large.
        variance = sum_over_ranks((z - mean).square().sum()) / (vectors * z.shape[1]).clamp_min(1)
        counts = (vectors > 0) & (self.measured_batches >= 0)
        batches = self.measured_batches + counts.to(z.dtype)
        share = counts.to(z.dtype) * (1 / batches.clamp_min(1)).clamp_min(1 - _MEASURE_DECAY)
        shift = mean - self.latent_mean
        between = share * (1 - share) * shift.square().mean()
        variance = torch.lerp(self.latent_spread.square(), variance, share) + between
        self.latent_mean.add_(share * shift)
        # Latents that are all equal have a spread of rounding errors.
        rounding = self.latent_mean.square().mean().sqrt() * torch.finfo(z.dtype).eps
        spread = variance.sqrt().maximum(rounding).clamp_min(torch.finfo(z.dtype).tiny)
        self.latent_spread.copy_(torch.where(counts, spread, self.latent_spread))
        self.measured_batches.copy_(batches)

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

    def reset_parameters(self, seed: int) -> None:
        super().reset_parameters(seed)
        if self.scale == "data":
            self.latent_mean.zero_()
            self.latent_spread.fill_(1.0)
            self.measured_batches.zero_()

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *arguments: Any) -> None:
        rms = state_dict.pop(f"{prefix}latent_rms", None) if self.scale == "data" else None
        if rms is not None:  # from before the mean was measured: its codes fit these measures, which stay
            old = (torch.zeros_like(self.latent_mean), rms, torch.full_like(self.measured_batches, -1))
            state_dict.update({f"{prefix}{name}": value for name, value in zip(_MEASURES, old, strict=True)})
        super()._load_from_state_dict(state_dict, prefix, *arguments)

    def given_codes(self, codes: Float[Tensor, "k c"]) -> Float[Tensor, "k c"]:
        if self.scale == "unit":
            return codes
        if self.measured_batches == 0:
            raise LGQError(
                'LGQ with scale="data" has measured no latents yet, so it cannot bring codes to their units: '
                'call set_codebook after one training batch, or take scale="unit".'
            )
        mean, spread = self._measures(codes.dtype)
        return (codes - mean) / spread

    def write_codes(self, codes: Float[Tensor, "k c"]) -> None:
        self.codebook.copy_(codes)
