"""How well does a generator know tokens that are hidden from it? By the masks of MaskGIT (Chang et al. 2022).

b = images, n = tokens of an image, m = hidden tokens.

Each image has one mask, which belongs to its number alone, so that values of different generators, and
of one generator at different times, are of the same questions.

What tokens cost without any context: the entropies that a generator has to beat.

b = images, c = classes, k = codes.

    entropies = token_entropies(TokenDataset("tokens/train"), TokenDataset("tokens/val"))
    entropies.entropy, entropies.class_entropy                      # of the training tokens, in nats a token
    entropies.cross_entropy, entropies.class_cross_entropy          # of the validation tokens
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from lgq.checks import require_at_least, require_indices
from lgq.data.token_loader import TokenBatch
from lgq.data.tokens import TokenDataset, require_same_meaning
from lgq.distributed import sum_over_ranks
from lgq.errors import LGQError
from lgq.models import in_eval_mode
from lgq.models.masking import fixed_masks
from lgq.models.transformer import MaskedTransformer
from lgq.progress import Progress, unwatched


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
        raise LGQError("a likelihood needs at least one image, got none: look at the data.")
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


_IMAGES_AT_A_TIME = 256


@dataclass(frozen=True, kw_only=True)
class TokenEntropies:
    """In nats a token, over all places of the images; stages of a residual tokenizer share their codes."""

    entropy: float
    """Of the tokens: plug-in, from the counts of the data set itself, as `class_entropy`."""
    class_entropy: float
    """Of the tokens given the class of their image."""
    cross_entropy: float | None = None
    """Of the validation tokens under the training set's counts, each plus one; None without validation."""
    class_cross_entropy: float | None = None
    """The same under the counts of the image's class."""
    tokens: int
    """That the entropies are of."""
    validation_tokens: int | None = None

    def record(self) -> dict[str, float | None]:
        """Its part of a results record (`lgq.results`)."""
        return asdict(self)


@dataclass
class TokenCounts:
    """How often each code occurs in images of each class; 131 MB of 1,000 classes and 16,384 codes.

    Images without a label are a class of their own. As every class without images, it counts for nothing.
    """

    counts: Int64[Tensor, "c k"]
    """The last row is that of images without a label."""

    @classmethod
    def of(cls, classes: int, codebook_size: int) -> "TokenCounts":
        require_at_least(0, classes=classes)
        require_at_least(1, codebook_size=codebook_size)
        return cls(torch.zeros(classes + 1, codebook_size, dtype=torch.int64))

    def update(self, tokens: Int64[Tensor, "b *token_shape"], labels: list[int | None]) -> None:
        """Tokens of some images, and the label of each."""
        classes, codes = len(self.counts) - 1, self.counts.shape[1]
        tokens = require_indices(tokens, codes)
        wrong = [label for label in labels if label is not None and not 0 <= label < classes]
        if wrong:
            raise LGQError(f"label {wrong[0]} is outside 0..{classes - 1}: name as many classes as occur.")
        rows = torch.tensor([classes if label is None else label for label in labels])
        places = (rows[:, None] * codes + tokens.flatten(1)).flatten()
        self.counts.view(-1).index_add_(0, places, torch.ones_like(places))

    @property
    def tokens(self) -> int:
        return int(self.counts.sum())

    @property
    def entropy(self) -> float:
        """Of the tokens of all classes."""
        return _nats(self.counts.sum(0)) / max(self.tokens, 1)

    @property
    def class_entropy(self) -> float:
        """Of the tokens given the class."""
        return sum(map(_nats, self.counts)) / max(self.tokens, 1)

    def cross_entropy(self, seen: "TokenCounts") -> float:
        """Of these tokens, told by the frequencies of others; each count plus one, so that none is 0."""
        return _nats_under(self.counts.sum(0), seen.counts.sum(0)) / max(self.tokens, 1)

    def class_cross_entropy(self, seen: "TokenCounts") -> float:
        """The same class by class; of a class that was never seen, all codes are alike."""
        costs = (_nats_under(mine, others) for mine, others in zip(self.counts, seen.counts, strict=True))
        return sum(costs) / max(self.tokens, 1)


def token_entropies(
    training: TokenDataset, validation: TokenDataset | None = None, *, on_progress: Progress = unwatched
) -> TokenEntropies:
    """One pass over the tokens of each; mirrored images do not count."""
    sets = [training] if validation is None else [training, validation]
    require_same_meaning(*sets)
    classes, total, done = max(len(data.classes) for data in sets), sum(map(len, sets)), 0
    counts = [TokenCounts.of(classes, training.encoding.codebook_size) for _ in sets]
    for data, count in zip(sets, counts, strict=True):
        for start in range(0, len(data), _IMAGES_AT_A_TIME):
            items = [data[i] for i in range(start, min(start + _IMAGES_AT_A_TIME, len(data)))]
            count.update(torch.stack([item.tokens for item in items]), [item.label for item in items])
            done += len(items)
            on_progress(done, total)
    return _compared(*counts)


def _compared(seen: TokenCounts, others: TokenCounts | None = None) -> TokenEntropies:
    own = TokenEntropies(entropy=seen.entropy, class_entropy=seen.class_entropy, tokens=seen.tokens)
    if others is None:
        return own
    return replace(
        own,
        cross_entropy=others.cross_entropy(seen),
        class_cross_entropy=others.class_cross_entropy(seen),
        validation_tokens=others.tokens,
    )


def _nats(counts: Int64[Tensor, " k"]) -> float:
    """-sum n log(n / N): the entropy of the counts times their sum."""
    n = counts.double()
    return float(torch.special.entr(n).sum() + torch.special.xlogy(n.sum(), n.sum()))


def _nats_under(counts: Int64[Tensor, " k"], seen: Int64[Tensor, " k"]) -> float:
    """-sum n log q with q = (seen + 1) / (their sum + k)."""
    q: Float64[Tensor, " k"] = (seen.double() + 1) / (seen.sum() + len(seen))
    return float(-(counts * q.log()).sum())
