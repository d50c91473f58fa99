"""Likelihood of tokens under a generator (MaskGIT, Chang et al. 2022), beside their entropies without one.

b = images, c = classes, k = codes.

    values = evaluate_likelihood(generator, TokenDataset("tokens/val"), TokenDataset("tokens/train"))
    values["nll"], values["entropy"], values["cross_entropy"]           # nats per token

Each image has one mask, which depends on its number only. So different generators, and one generator at
different times, are asked for the same tokens.
"""

from collections.abc import Iterable
from typing import Any

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from lgq.checks import require_indices
from lgq.data.token_loader import TokenBatch, TokenLoader, TokenLoaderSettings
from lgq.data.tokens import TokenDataset, require_same_meaning
from lgq.distributed import rank, sum_over_ranks, world_size
from lgq.errors import LGQError
from lgq.maskgit import MaskGIT
from lgq.models import in_eval_mode
from lgq.models.masking import fixed_masks
from lgq.models.transformer import MaskedTransformer
from lgq.progress import Progress, unwatched

_IMAGES_AT_A_TIME = 256


def evaluate_likelihood(
    generator: MaskGIT,
    tokens: TokenDataset,
    train_tokens: TokenDataset | None = None,
    *,
    batch_size: int = 32,
    images: int | None = None,
    on_progress: Progress = unwatched,
) -> dict[str, Any]:
    """Return the `likelihood` part of a results record: of masked tokens, and entropies of all tokens.

    train_tokens: tokens whose frequencies predict the others (cross-entropies).
    images: number of images whose tokens are masked, evenly spread; None for all. Entropies are of all.
    on_progress: counts the images whose tokens are counted for the entropies.
    """
    settings = TokenLoaderSettings(batch_size=batch_size, rank=rank(), world_size=world_size())
    batches = TokenLoader(tokens, settings).one_pass(images)
    device = next(generator.transformer.parameters()).device
    values: dict[str, Any] = measure_likelihood(generator.transformer, batches, device)
    values["images"] = min(images or len(tokens), len(tokens))
    sets = (tokens,) if train_tokens is None else (train_tokens, tokens)
    return {"data": repr(tokens)} | values | token_entropies(*sets, on_progress=on_progress)


def measure_likelihood(
    transformer: MaskedTransformer, batches: Iterable[TokenBatch], device: torch.device
) -> dict[str, float]:
    """Return means over the masked tokens of all images of all processes.

    nll: mean of -log p(token | class, unmasked tokens) in nats.
    accuracy: share of the tokens whose most likely code is the right one.
    masked_tokens: their number.
    """
    sums = torch.zeros(3, dtype=torch.float64)
    with in_eval_mode(transformer):
        for batch in batches:
            sums += _likelihood_sums(transformer, batch, device)
    nll, correct, count = sum_over_ranks(sums).tolist()
    if count == 0:
        raise LGQError("a likelihood needs at least one image, got none: check the data.")
    return {"nll": nll / count, "accuracy": correct / count, "masked_tokens": count}


def classes_of(labels: Int64[Tensor, " b"], null_class: int) -> Int64[Tensor, " b"]:
    """Return the classes for a transformer: the labels, and `null_class` for images without one."""
    return torch.where(labels < 0, null_class, labels)


@torch.no_grad()
def _likelihood_sums(
    transformer: MaskedTransformer, batch: TokenBatch, device: torch.device
) -> Float64[Tensor, "3"]:
    """Sum -log p, correct predictions and masked tokens over a batch."""
    tokens = batch.tokens.to(device)
    classes = classes_of(batch.labels, transformer.null_class).to(device)
    mask = fixed_masks(batch.indices, tokens.shape[1]).to(device)
    logits = transformer(tokens.masked_fill(mask, transformer.mask_token), classes, mask).float()
    targets = tokens[mask]
    # In float64: a sum over millions of tokens must not depend on the batch size.
    nll = -logits.log_softmax(1).gather(1, targets[:, None]).cpu().double().sum()
    correct = (logits.argmax(1) == targets).sum().cpu().double()
    return torch.stack([nll, correct, torch.tensor(len(targets), dtype=torch.float64)])


def token_entropies(
    training: TokenDataset, validation: TokenDataset | None = None, *, on_progress: Progress = unwatched
) -> dict[str, float | None]:
    """Count the tokens of each data set, without mirrored images, and return entropies in nats per token.

    entropy, class_entropy: plug-in entropy of the training tokens, and given the class of their image.
    cross_entropy, class_cross_entropy: those of the validation tokens under the training counts, each plus
        one; None without validation.
    tokens, validation_tokens: number of tokens behind them.

    The positions and the stages of a residual tokenizer are counted together.
    """
    sets = [training] if validation is None else [training, validation]
    require_same_meaning(*sets)
    classes, total, done = max(len(data.classes) for data in sets), sum(map(len, sets)), 0
    # The last row is for images without a label; 131 MB per data set for 1,000 classes and 16,384 codes.
    counts = torch.zeros(len(sets), classes + 1, training.encoding.codebook_size, dtype=torch.int64)
    for data, data_counts in zip(sets, counts, strict=True):
        for start in range(0, len(data), _IMAGES_AT_A_TIME):
            items = [data[i] for i in range(start, min(start + _IMAGES_AT_A_TIME, len(data)))]
            add_tokens(data_counts, torch.stack([item.tokens for item in items]), [x.label for x in items])
            done += len(items)
            on_progress(done, total)
    seen, unseen = counts[0], counts[-1]
    all_seen, all_unseen = seen.sum(0, keepdim=True), unseen.sum(0, keepdim=True)
    return {
        "entropy": _entropy(all_seen),
        "class_entropy": _entropy(seen),
        "cross_entropy": None if validation is None else _cross_entropy(all_unseen, all_seen),
        "class_cross_entropy": None if validation is None else _cross_entropy(unseen, seen),
        "tokens": int(seen.sum()),
        "validation_tokens": None if validation is None else int(unseen.sum()),
    }


def add_tokens(
    counts: Int64[Tensor, "c k"], tokens: Int64[Tensor, "b *token_shape"], labels: list[int | None]
) -> None:
    """Add the tokens of some images to the counts of their classes; the last row is for no label."""
    last, codes = len(counts) - 1, counts.shape[1]
    tokens = require_indices(tokens, codes)
    wrong = [label for label in labels if label is not None and not 0 <= label < last]
    if wrong:
        raise LGQError(f"label {wrong[0]} is outside 0..{last - 1}: name as many classes as occur.")
    rows = torch.tensor([last if label is None else label for label in labels])
    places = (rows[:, None] * codes + tokens.flatten(1)).flatten()
    counts.view(-1).index_add_(0, places, torch.ones_like(places))


def _entropy(counts: Int64[Tensor, "c k"]) -> float:
    """Return the entropy of the codes given the class: -sum n log(n / N), N per class, divided by all N."""
    rows = counts.cpu().double()
    nats = [float(torch.special.entr(n).sum() + torch.special.xlogy(n.sum(), n.sum())) for n in rows]
    return sum(nats) / max(int(counts.sum()), 1)


def _cross_entropy(counts: Int64[Tensor, "c k"], training: Int64[Tensor, "c k"]) -> float:
    """Return the mean of -log q with q = (training count + 1) / (their sum + k), class by class.

    In a class without training tokens, all codes are equally likely.
    """
    nats = 0.0
    for n, seen in zip(counts, training, strict=True):
        q: Float64[Tensor, " k"] = (seen.cpu().double() + 1) / (seen.sum() + len(seen))
        nats -= float((n * q.log()).sum())
    return nats / max(int(counts.sum()), 1)
