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

_GOLDEN = (math.sqrt(5) - 1) / 2


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
    """Masks of a validation, which belong to an image's number and the seed alone.

    The u of consecutive images follow the golden ratio, which spreads them evenly over 0..1.
    """
    u = ((numbers.cpu().double() + 0.5) * _GOLDEN).frac()
    scores = torch.stack([_scores(number, length, seed) for number in numbers.tolist()])
    return random_masks(u, scores).to(numbers.device)


def masked_loss(
    logits: Float[Tensor, "m k"], targets: Int64[Tensor, " m"], *, smoothing: float = 0.0
) -> Float[Tensor, ""]:
    """Mean cross-entropy of the hidden tokens, in nats; the others have no part in it.

    smoothing: share of the target that is spread over all codes.
    """
    return F.cross_entropy(logits.float(), targets, label_smoothing=smoothing)


def _scores(number: int, length: int, seed: int) -> Float[Tensor, " n"]:
    # Not torch's generator, which on a CPU knows no more than 32 bits of its seed.
    return torch.from_numpy(np.random.default_rng((seed, number)).random(length))
