"""What MaskGIT (Chang et al. 2022) hides in training: a cosine share of the tokens, and the loss of these.

b = images, n = tokens of an image, k = codes, m = masked tokens.

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
    """cos(pi u / 2): most images lose most of their tokens, as at the start of sampling.

    (Its complement, a frequent slip, hides few tokens from most images.)
    """
    return torch.cos(math.pi / 2 * u)


def random_masks(u: Float[Tensor, " b"], scores: Float[Tensor, "b n"]) -> Bool[Tensor, "b n"]:
    """True where a token is hidden: its share of each image, at least one, those of the lowest scores."""
    n = scores.shape[1]
    counts = (mask_ratio(u) * n).round().clamp(min=1)
    ranks = scores.argsort(dim=1).argsort(dim=1)
    return ranks < counts[:, None]


def fixed_masks(numbers: Int64[Tensor, " b"], length: int, *, seed: int = 0) -> Bool[Tensor, "b n"]:
    """Masks of a validation, which belong to an image's number and the seed alone."""
    # Not torch's generator, which on a CPU knows no more than 32 bits of its seed.
    generators = [np.random.default_rng((seed, number)) for number in numbers.tolist()]
    drawn = torch.from_numpy(np.stack([generator.random(1 + length) for generator in generators]))
    return random_masks(drawn[:, 0], drawn[:, 1:]).to(numbers.device)


def masked_loss(
    logits: Float[Tensor, "m k"], targets: Int64[Tensor, " m"], *, smoothing: float = 0.0
) -> Float[Tensor, ""]:
    """Mean cross-entropy of the hidden tokens, in nats; the others have no part in it.

    smoothing: share of the target that is spread over all codes.
    """
    return F.cross_entropy(logits.float(), targets, label_smoothing=smoothing)
