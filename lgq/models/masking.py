"""Masks of MaskGIT training (Chang et al. 2022), a cosine share of the tokens, and the loss on masked tokens.

b = images, n = tokens per image, k = codes, m = masked tokens.

    masks = random_masks(torch.rand(b), torch.rand(b, n))
    loss = masked_loss(transformer(tokens.masked_fill(masks, mask_token), classes, masks), tokens[masks])
"""

import math

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int64
from torch import Tensor


def mask_ratio(u: Float[Tensor, " b"]) -> Float[Tensor, " b"]:
    """Return cos(pi u / 2): most images lose most of their tokens, as at the start of sampling.

    Its complement, a frequent mistake, masks few tokens of most images.
    """
    return torch.cos(math.pi / 2 * u)


def random_masks(u: Float[Tensor, " b"], scores: Float[Tensor, "b n"]) -> Bool[Tensor, "b n"]:
    """Mask the tokens with the lowest scores: `mask_ratio(u)` of each image, at least one token."""
    n = scores.shape[1]
    counts = (mask_ratio(u) * n).round().clamp(min=1)
    ranks = scores.argsort(dim=1).argsort(dim=1)
    return ranks < counts[:, None]


def fixed_masks(numbers: Int64[Tensor, " b"], length: int, *, seed: int = 0) -> Bool[Tensor, "b n"]:
    """Return masks for validation, which depend on the image's number and the seed alone."""
    # Not torch's generator, which uses only 32 bits of its seed on a CPU.
    generators = [np.random.default_rng((seed, number)) for number in numbers.tolist()]
    drawn = torch.from_numpy(np.stack([generator.random(1 + length) for generator in generators]))
    return random_masks(drawn[:, 0], drawn[:, 1:]).to(numbers.device)


def masked_loss(
    logits: Float[Tensor, "m k"], targets: Int64[Tensor, " m"], *, smoothing: float = 0.0
) -> Float[Tensor, ""]:
    """Mean cross-entropy of the masked tokens, in nats.

    smoothing: share of the target probability that is spread over all codes.
    """
    return F.cross_entropy(logits.float(), targets, label_smoothing=smoothing)
