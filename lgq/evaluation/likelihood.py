"""How well does a generator know tokens that are hidden from it? By the masks of MaskGIT (Chang et al. 2022).

b = images, n = tokens of an image, m = hidden tokens.

Each image has one mask, which belongs to its number alone, so that values of different generators, and
of one generator at different times, are of the same questions.
"""

from collections.abc import Iterable

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from lgq.data.token_loader import TokenBatch
from lgq.distributed import sum_over_ranks
from lgq.models.maskgit import MaskedTransformer
from lgq.models.masking import fixed_masks
from lgq.models.modes import in_eval_mode


def measure_likelihood(
    transformer: MaskedTransformer, batches: Iterable[TokenBatch], device: torch.device
) -> dict[str, float]:
    """Over the hidden tokens of all images of all ranks.

    nll: mean of -log p(token | class, the tokens in sight), in nats.
    accuracy: share whose likeliest code is the right one.
    masked_tokens: their number.
    """
    sums = torch.zeros(3, dtype=torch.float64)
    with in_eval_mode(transformer):
        for batch in batches:
            sums += _sums(transformer, batch, device)
    nll, correct, count = sum_over_ranks(sums).tolist()
    if count == 0:
        raise ValueError("a likelihood needs at least one image, got none: look at the data.")
    return {"nll": nll / count, "accuracy": correct / count, "masked_tokens": count}


def classes_of(labels: Int64[Tensor, " b"], null_class: int) -> Int64[Tensor, " b"]:
    """What a transformer is told of images: their labels, and `null_class` of those without."""
    return torch.where(labels < 0, null_class, labels)


@torch.no_grad()
def _sums(transformer: MaskedTransformer, batch: TokenBatch, device: torch.device) -> Float64[Tensor, "3"]:
    """Of one batch: -log p in all, likeliest codes that are right, and hidden tokens."""
    tokens = batch.tokens.to(device)
    classes = classes_of(batch.labels, transformer.null_class).to(device)
    hidden = fixed_masks(batch.indices, tokens.shape[1]).to(device)
    logits = transformer(tokens.masked_fill(hidden, transformer.mask_token), classes, hidden).float()
    targets = tokens[hidden]
    # In float64: a sum over millions of tokens must not depend on how they came in batches.
    surprise = -logits.log_softmax(1).gather(1, targets[:, None]).double().sum()
    correct = (logits.argmax(1) == targets).double().sum()
    return torch.stack([surprise, correct, targets.new_tensor(len(targets)).double()]).cpu()
