"""Index backpropagation quantization (Shi et al. 2024): softmax over inner products, with entropy losses.

n = vectors, k = codes, c = channels.
"""

import math
from typing import Literal, get_args

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from lgq.checks import require_above_zero, require_at_least, require_one_of
from lgq.ops.assignment import soft_assignment
from lgq.ops.numerics import entropy, mean, mse
from lgq.ops.search import sample_codes
from lgq.quantizers.codebook_init import DataInitQuantizer, Init, normal_codes
from lgq.quantizers.quantized import Quantized

ProductScore = Literal["dot", "cosine"]

_LOG_OFFSET = 1e-5  # in the batch entropy, as published


class IBQ(DataInitQuantizer):
    """A learnable codebook in which all codes learn through their logits, and the chosen one directly too.

    commitment_weight: weight of the term that moves the chosen code to the vector; the two terms that move
        the vector have weight 1.
    entropy_weight: weight of the mean entropy per vector minus the entropy of the batch.
    entropy_temperature: temperature of the assignment in these entropies.
    score: logit of the softmax: the inner product (`dot`), or `cosine`, for which latents and codes have unit
        norm.
    codebook_dim: number of channels of the codes, behind linear maps; None for those of the latents.
    sample_temperature: above 0, training draws codes with probability softmax(score / temperature).
    init: `normal` codes, latents of the first training batch (`data`), or `kmeans` centres of it.
    init_std: standard deviation of the initial normal codes.
    """

    label = "IBQ"
    dense_matrices = 11
    # The products of larger latents with codes of deviation 1 saturate the softmax.
    good_scale: tuple[float, float] | None = (0.0, 3.0)
    scale_is_norm = True
    has_temperature = True
    off_scale_advice = "Put a LayerNorm before the quantizer, or lower init_std"

    def __init__(
        self,
        dim: int,
        codebook_size: int,
        *,
        channel_dim: int = -1,
        commitment_weight: float = 0.25,
        entropy_weight: float = 0.05,
        entropy_temperature: float = 0.01,
        score: ProductScore = "dot",
        codebook_dim: int | None = None,
        sample_temperature: float = 0.0,
        init: Init = "normal",
        init_std: float = 1.0,
        seed: int | None = None,
    ):
        super().__init__(dim, codebook_size, channel_dim=channel_dim, codebook_dim=codebook_dim, seed=seed)
        require_one_of(get_args(ProductScore), score=score)
        require_at_least(0, commitment_weight=commitment_weight, entropy_weight=entropy_weight)
        require_at_least(0, sample_temperature=sample_temperature)
        require_above_zero(entropy_temperature=entropy_temperature, init_std=init_std)
        self.commitment_weight, self.entropy_weight = commitment_weight, entropy_weight
        self.entropy_temperature = entropy_temperature
        self.init_std = init_std
        self.score, self.sample_temperature = score, sample_temperature
        self.start_codes(init)
        if score == "cosine":
            self.good_scale, self.scale_is_norm = (0.0, math.inf), False
            self.off_scale_advice = "Put a BatchNorm before the quantizer"
        elif init != "normal":
            self.off_scale_advice = 'Put a LayerNorm before the quantizer, or compare angles: score="cosine"'
        codes = normal_codes(codebook_size, self.code_dim, seed=self.seed, std=init_std)
        self.codebook = nn.Parameter(codes)

    def quantize_vectors(self, z: Float[Tensor, "n c"]) -> Quantized:
        z = self.compared(z)
        self.init_from_data(z)
        codes = self.compared(self.codebook)
        soft = soft_assignment(z, codes, 1.0, score="dot", codebook_gradient="hard")
        output, indices = soft.codes, soft.indices
        if self.training and self.sample_temperature:
            indices, drawn = sample_codes(z, codes, self.sample_temperature, score="dot")
            output = drawn.to(z.dtype) + (output - output.detach())
        chosen = codes[indices]
        latent = mse(output, z) + mse(chosen.detach(), z)
        codebook = mse(chosen, z.detach())
        loss = latent + self.commitment_weight * codebook
        terms = {"latent": latent, "codebook": codebook}
        if self.entropy_weight:
            sharp = soft_assignment(z, codes, self.entropy_temperature, score="dot")
            terms["vector_entropy"] = mean(sharp.entropy)
            terms["batch_entropy"] = entropy(sharp.usage, offset=_LOG_OFFSET)
            loss = loss + self.entropy_weight * (terms["vector_entropy"] - terms["batch_entropy"])
        return Quantized(output, indices, loss, terms)

    def dense_forward(self, z: Float[Tensor, "n c"]) -> Quantized:
        z, codes = self.compared(z), self.compared(self.codebook)
        logits = z @ codes.T
        p, indices = logits.softmax(1), logits.argmax(1)
        onehot = F.one_hot(indices, self.codebook_size).to(p.dtype)
        output, chosen = (onehot + p - p.detach()) @ codes, onehot @ codes
        loss = F.mse_loss(output, z) + F.mse_loss(chosen.detach(), z)
        loss = loss + self.commitment_weight * F.mse_loss(chosen, z.detach())
        sharp = (logits / self.entropy_temperature).softmax(1)
        log_sharp = (logits / self.entropy_temperature).log_softmax(1)
        usage = sharp.mean(0)
        batch_entropy = -(usage * (usage + _LOG_OFFSET).log()).sum()
        vector_entropy = -(sharp * log_sharp).sum(1).mean()
        return Quantized(output, indices, loss + self.entropy_weight * (vector_entropy - batch_entropy))

    def write_codes(self, codes: Float[Tensor, "k c"]) -> None:
        self.codebook.copy_(codes)
