"""The likelihood of hidden tokens: against the plain formula, token by token."""

import math
import socket
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
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
    network, surprises, right = transformer().eval(), [], 0
    for number, (grid, label, _) in enumerate(tokens):
        whole = grid.flatten()
        hidden = fixed_masks(torch.tensor([number]), 4)[0]
        seen = torch.where(hidden, CODES, whole)
        everywhere = torch.ones(1, 4, dtype=torch.bool)
        logits = network(seen[None], torch.tensor([2 if label is None else label]), everywhere)
        for place in hidden.nonzero().flatten().tolist():
            chances = logits[place].double().exp() / logits[place].double().exp().sum()
            surprises.append(-math.log(chances[whole[place]]))
            right += int(chances.argmax() == whole[place])
    count = len(surprises)
    return {"nll": sum(surprises) / count, "accuracy": right / count, "masked_tokens": count}


def test_it_is_the_mean_over_all_hidden_tokens_of_the_plain_formula(tokens):
    assert measured(tokens) == pytest.approx(plainly(tokens), rel=1e-5)


@pytest.mark.parametrize("batch_size", [1, 2, 7])
def test_batches_do_not_change_it(tokens, batch_size):
    assert measured(tokens, batch_size=batch_size) == pytest.approx(measured(tokens), rel=1e-6)


def test_masks_belong_to_the_image_and_not_to_its_place_in_the_pass(tokens):
    each = [measure_likelihood(transformer(), [batch], CPU) for batch in one_by_one(tokens)]
    counts = [int(fixed_masks(torch.tensor([i]), 4).sum()) for i in range(IMAGES)]
    assert [values["masked_tokens"] for values in each] == counts
    assert len(set(counts)) > 1


def one_by_one(tokens: TokenDataset) -> list:
    return list(TokenLoader(tokens, TokenLoaderSettings(batch_size=1)).one_pass())


def test_a_network_that_knows_nothing_has_log_k(tokens):
    network = MaskedTransformer(CODES, 4, 2, TransformerSettings(layers=1, width=8, heads=2, hidden=8))
    torch.nn.init.zeros_(network.tokens.weight)
    values = measure_likelihood(network, one_by_one(tokens), CPU)
    assert values["nll"] == pytest.approx(math.log(CODES))


def test_it_is_without_dropout_and_draws_no_random_numbers(tokens):
    network = transformer().train()
    before = torch.get_rng_state()
    first, second = (measure_likelihood(network, one_by_one(tokens), CPU) for _ in range(2))
    assert first == second
    assert torch.equal(torch.get_rng_state(), before)
    assert network.training, "it goes on as it was"


def test_images_without_a_label_are_of_no_class():
    assert classes_of(torch.tensor([-1, 0, 3]), 4).tolist() == [4, 0, 3]


def test_no_image_at_all_is_refused():
    with pytest.raises(ValueError, match="at least one image"):
        measure_likelihood(transformer(), [], CPU)


def in_process(rank: int, port: int, path: Path, folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    try:
        values = [
            measured(TokenDataset(path), limit, batch_size=2, rank=rank, world_size=2) for limit in (None, 1)
        ]
        torch.save(values, folder / f"{rank}.pt")
    finally:
        dist.destroy_process_group()


def test_two_processes_find_what_one_finds(tokens, tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    mp.spawn(in_process, args=(port, tokens.path, tmp_path), nprocs=2)
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2))
    assert first == second
    assert first[0] == pytest.approx(measured(tokens), rel=1e-6)
    assert first[1] == pytest.approx(measured(tokens, 1), rel=1e-6), "one rank has no image of it"
