"""Likelihoods of masked tokens and entropies of all tokens equal the plain formulas, token by token."""

import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from token_sets import write_tokens
from torch import Tensor

from lgq.data.token_format import TokenError
from lgq.data.token_loader import TokenBatch, TokenLoader, TokenLoaderSettings
from lgq.data.tokens import TokenDataset
from lgq.metrics import likelihood
from lgq.metrics.likelihood import add_tokens, measure_likelihood, token_entropies
from lgq.models.masking import fixed_masks
from lgq.models.transformer import MaskedTransformer, TransformerSettings

CPU = torch.device("cpu")
IMAGES, CODES, CLASSES = 7, 11, ("cat", "dog", "owl")


def transformer() -> MaskedTransformer:
    torch.manual_seed(0)
    network = MaskedTransformer(
        6, 4, 2, TransformerSettings(layers=1, width=8, heads=2, hidden=8, dropout=0.5)
    )
    for parameter in network.parameters():  # far from the start, where every code is as likely
        torch.nn.init.normal_(parameter, std=0.7)
    return network


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> TokenDataset:
    drawn = torch.randint(6, (IMAGES, 2, 2), generator=torch.Generator().manual_seed(1))
    folder = tmp_path_factory.mktemp("tokens")
    return write_tokens(folder, drawn, labels=[0, 1, -1, 1, 0, 1, -1], classes=("a", "b"))


def batches(tokens: TokenDataset, batch_size: int = 1) -> list[TokenBatch]:
    return list(TokenLoader(tokens, TokenLoaderSettings(batch_size=batch_size)).one_pass())


@torch.no_grad()
def plainly(tokens: TokenDataset) -> dict[str, float]:
    """One image at a time, one token at a time."""
    network, nlls, right = transformer().eval(), [], 0
    for number, (grid, label, _) in enumerate(tokens):
        whole = grid.flatten()
        mask = fixed_masks(torch.tensor([number]), 4)[0]
        seen = torch.where(mask, 6, whole)
        everything = torch.ones(1, 4, dtype=torch.bool)
        logits = network(seen[None], torch.tensor([2 if label is None else label]), everything)
        for place in mask.nonzero().flatten().tolist():
            chances = logits[place].double().exp() / logits[place].double().exp().sum()
            nlls.append(-math.log(chances[whole[place]]))
            right += int(chances.argmax() == whole[place])
    count = len(nlls)
    return {"nll": sum(nlls) / count, "accuracy": right / count, "masked_tokens": count}


@pytest.mark.parametrize("batch_size", [1, 2, 7])
def test_a_likelihood_is_the_mean_of_the_plain_formula_over_all_masked_tokens(tokens, batch_size):
    values = measure_likelihood(transformer(), batches(tokens, batch_size), CPU)
    assert values == pytest.approx(plainly(tokens), rel=1e-5)


def test_a_likelihood_uses_no_dropout_and_no_random_numbers(tokens):
    network = transformer().train()
    before = torch.get_rng_state()
    first, second = (measure_likelihood(network, batches(tokens), CPU) for _ in range(2))
    assert first == second
    assert torch.equal(torch.get_rng_state(), before)
    assert network.training, "train mode comes back"
    with pytest.raises(ValueError, match="at least one image"):
        measure_likelihood(network, [], CPU)


@pytest.fixture(autouse=True)
def few_images_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(likelihood, "_IMAGES_AT_A_TIME", 3)


def write(folder: Path, labels: list[int], seed: int = 0, *, stages: int = 1, **changes: Any) -> TokenDataset:
    """Write tokens whose distribution depends on the label; -1 for none."""
    generator, shape = torch.Generator().manual_seed(seed), (2, 3) if stages == 1 else (2, 3, stages)
    tokens = torch.stack([torch.randint(5 + 3 * label, shape, generator=generator) for label in labels])
    if changes.pop("flips", False):
        changes["flipped"] = (tokens + 1) % CODES
    options = {"codebook_size": CODES, "fingerprint": "f" * 64, "classes": CLASSES, "shard_size": 4}
    return write_tokens(folder, tokens, labels=labels, **(options | changes))


def pairs(data: TokenDataset) -> list[tuple[int | None, int]]:
    """(label, token) of every token."""
    return [(item.label, token) for item in data for token in item.tokens.flatten().tolist()]


def plain_entropy(values: list) -> float:
    return -sum(n / len(values) * math.log(n / len(values)) for n in Counter(values).values())


def plain_class_entropy(seen: list[tuple[int | None, int]]) -> float:
    """H(token | class) = H(class, token) - H(class)."""
    return plain_entropy(seen) - plain_entropy([label for label, _ in seen])


def plain_cross_entropies(
    seen: list[tuple[int | None, int]], new: list[tuple[int | None, int]]
) -> list[float]:
    tokens, labels, both = Counter(t for _, t in seen), Counter(c for c, _ in seen), Counter(seen)
    alone = [-math.log((tokens[t] + 1) / (len(seen) + CODES)) for _, t in new]
    by_class = [-math.log((both[c, t] + 1) / (labels[c] + CODES)) for c, t in new]
    return [sum(alone) / len(new), sum(by_class) / len(new)]


LABELS = {
    "labelled": ([0, 1, 2, 0, 1, 2, 2], [2, 1, 0, 0, 1]),
    "some without a label": ([0, -1, 2, 0, -1], [-1, 1, 0]),
    "without a label in validation alone": ([0, 1, 2, 0], [-1, 1, 0]),
    "a class that was never seen": ([0, 0, 1, 0, 1], [2, 1, 0]),
    "without labels": ([-1] * 5, [-1] * 3),
    "the last class is missing in validation": ([0, 1, 2, 2], [0, 1]),
}


@pytest.mark.parametrize("kind", LABELS)
@pytest.mark.parametrize("stages", [1, 2])
def test_entropies_are_those_of_the_plain_formulas(tmp_path, kind, stages):
    of_training, of_validation = LABELS[kind]
    training = write(tmp_path / "training", of_training, 1, stages=stages)
    named = CLASSES[:2] if "last class" in kind else CLASSES
    validation = write(tmp_path / "validation", of_validation, 2, stages=stages, classes=named)
    entropies, seen, new = token_entropies(training, validation), pairs(training), pairs(validation)
    assert entropies["entropy"] == pytest.approx(plain_entropy([token for _, token in seen]), rel=1e-12)
    assert entropies["class_entropy"] == pytest.approx(plain_class_entropy(seen), rel=1e-12)
    crossed = [entropies["cross_entropy"], entropies["class_cross_entropy"]]
    assert crossed == pytest.approx(plain_cross_entropies(seen, new), rel=1e-12)
    assert (entropies["tokens"], entropies["validation_tokens"]) == (len(seen), len(new))
    assert len(new) == 6 * stages * len(of_validation)


def test_mirrored_images_do_not_count_and_without_validation_there_are_no_cross_entropies(tmp_path):
    plain, flipped = (write(tmp_path / str(flips), [0, 1, 2], flips=flips) for flips in (False, True))
    entropies = token_entropies(plain)
    assert token_entropies(flipped) == entropies
    missing = [name for name, value in entropies.items() if value is None]
    assert missing == ["cross_entropy", "class_cross_entropy", "validation_tokens"]


@pytest.mark.parametrize(
    ("tokens", "label", "message"),
    [
        (torch.tensor([[CODES]]), 0, f"index {CODES} is outside 0..{CODES - 1}"),
        (torch.tensor([[0]]), 3, r"label 3 is outside 0\.\.2"),
        (torch.tensor([[0]]), -1, r"label -1 is outside 0\.\.2"),
    ],
)
def test_tokens_and_labels_that_do_not_exist_are_refused(tokens: Tensor, label: int, message: str):
    counts = torch.zeros(4, CODES, dtype=torch.int64)
    with pytest.raises(ValueError, match=message):
        add_tokens(counts, tokens, [label])
    assert not counts.any()


def test_sets_of_different_meaning_are_refused(tmp_path):
    training = write(tmp_path / "training", [0, 1])
    for name, changes, message in (
        ("renamed", {"classes": ("dog", "cat", "owl")}, "its class 0 is 'dog', not 'cat'"),
        ("foreign", {"fingerprint": "e" * 64}, "foreign holds tokens of tokenizer eeeeeeeeeeee"),
        ("unlabelled", {"classes": ()}, "no classes, and .*training has 3"),
    ):
        other = write(tmp_path / name, [-1, -1] if name == "unlabelled" else [0, 1], **changes)
        with pytest.raises(TokenError, match=message):
            token_entropies(training, other)


def test_progress_counts_the_images_of_both_sets(tmp_path):
    training, validation = write(tmp_path / "t", [0] * 5), write(tmp_path / "v", [0] * 4)
    seen: list[tuple[int, int]] = []
    token_entropies(training, validation, on_progress=lambda *counts: seen.append(counts))
    assert seen == [(3, 9), (5, 9), (8, 9), (9, 9)]
