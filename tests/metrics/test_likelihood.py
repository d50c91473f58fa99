"""The likelihood of masked tokens equals the plain formula, token by token."""

import math

import pytest
import torch
from token_sets import write_tokens

from lgq.data.token_loader import TokenLoader, TokenLoaderSettings
from lgq.data.tokens import TokenDataset
from lgq.metrics.likelihood import classes_of, measure_likelihood
from lgq.models.masking import fixed_masks
from lgq.models.transformer import MaskedTransformer, TransformerSettings

CPU = torch.device("cpu")
IMAGES, CODES = 7, 6


def transformer() -> MaskedTransformer:
    torch.manual_seed(0)
    network = MaskedTransformer(
        CODES, 4, 2, TransformerSettings(layers=1, width=8, heads=2, hidden=8, dropout=0.5)
    )
    for parameter in network.parameters():  # far from the start, where every code is as likely
        torch.nn.init.normal_(parameter, std=0.7)
    return network


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> TokenDataset:
    random = torch.Generator().manual_seed(1)
    drawn = torch.randint(CODES, (IMAGES, 2, 2), generator=random)
    folder = tmp_path_factory.mktemp("tokens")
    return write_tokens(folder, drawn, labels=[0, 1, -1, 1, 0, 1, -1], classes=("a", "b"))


def measured(tokens: TokenDataset, limit: int | None = None, **loading: int) -> dict[str, float]:
    loader = TokenLoader(tokens, TokenLoaderSettings(**({"batch_size": 3} | loading)))
    return measure_likelihood(transformer(), loader.one_pass(limit), CPU)


@torch.no_grad()
def plainly(tokens: TokenDataset) -> dict[str, float]:
    """One image at a time, one token at a time."""
    network, nlls, right = transformer().eval(), [], 0
    for number, (grid, label, _) in enumerate(tokens):
        whole = grid.flatten()
        mask = fixed_masks(torch.tensor([number]), 4)[0]
        seen = torch.where(mask, CODES, whole)
        everything = torch.ones(1, 4, dtype=torch.bool)
        logits = network(seen[None], torch.tensor([2 if label is None else label]), everything)
        for place in mask.nonzero().flatten().tolist():
            chances = logits[place].double().exp() / logits[place].double().exp().sum()
            nlls.append(-math.log(chances[whole[place]]))
            right += int(chances.argmax() == whole[place])
    count = len(nlls)
    return {"nll": sum(nlls) / count, "accuracy": right / count, "masked_tokens": count}


def test_it_is_the_mean_of_the_plain_formula_over_all_masked_tokens(tokens):
    assert measured(tokens) == pytest.approx(plainly(tokens), rel=1e-5)


@pytest.mark.parametrize("batch_size", [1, 2, 7])
def test_batches_do_not_change_it(tokens, batch_size):
    assert measured(tokens, batch_size=batch_size) == pytest.approx(measured(tokens), rel=1e-6)


def test_a_mask_depends_on_the_image_and_not_on_its_batch(tokens):
    values = [measure_likelihood(transformer(), [batch], CPU) for batch in one_by_one(tokens)]
    counts = [int(fixed_masks(torch.tensor([i]), 4).sum()) for i in range(IMAGES)]
    assert [value["masked_tokens"] for value in values] == counts
    assert len(set(counts)) > 1


def one_by_one(tokens: TokenDataset) -> list:
    return list(TokenLoader(tokens, TokenLoaderSettings(batch_size=1)).one_pass())


def test_a_uniform_network_has_nll_log_k(tokens):
    network = MaskedTransformer(CODES, 4, 2, TransformerSettings(layers=1, width=8, heads=2, hidden=8))
    torch.nn.init.zeros_(network.tokens.weight)
    values = measure_likelihood(network, one_by_one(tokens), CPU)
    assert values["nll"] == pytest.approx(math.log(CODES))


def test_it_uses_no_dropout_and_no_random_numbers(tokens):
    network = transformer().train()
    before = torch.get_rng_state()
    first, second = (measure_likelihood(network, one_by_one(tokens), CPU) for _ in range(2))
    assert first == second
    assert torch.equal(torch.get_rng_state(), before)
    assert network.training, "train mode comes back"


def test_images_without_a_label_have_the_null_class():
    assert classes_of(torch.tensor([-1, 0, 3]), 4).tolist() == [4, 0, 3]


def test_no_image_is_an_error():
    with pytest.raises(ValueError, match="at least one image"):
        measure_likelihood(transformer(), [], CPU)
