"""The stream of tokens depends on (seed, epoch, position), not on ranks, batches or restarts."""

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
import torch
from batches import assert_same
from token_sets import write_tokens

from lgq.data.loader import epoch_order
from lgq.data.token_loader import TokenLoader, TokenLoaderSettings

TEN = list(range(10))
SMALL = TokenLoaderSettings(batch_size=4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("tokens")


def distinct(folder, images, *, flips=True, **options):
    """Image i holds 6i .. 6i + 5, and mirrored the same backwards: any mistake shows in the numbers."""
    tokens = torch.arange(6 * images).view(images, 2, 3)
    mirrored = tokens.flip(1, 2) if flips else None
    return write_tokens(folder, tokens, codebook_size=6 * images, shard_size=4, flipped=mirrored, **options)


@pytest.fixture(scope="module")
def ten(folder):
    labels = [i % 3 - 1 for i in range(10)]
    return distinct(folder / "ten", 10, labels=labels, classes=("a", "b"))


def stream(dataset, settings=SMALL, *, batches, start=0):
    return list(islice(TokenLoader(dataset, settings).stream(start), batches))


def indices(batches):
    return [index for batch in batches for index in batch.indices.tolist()]


def test_a_run_resumed_anywhere_sees_what_an_unbroken_one_sees(ten):
    unbroken = stream(ten, batches=8)
    for done in range(8):
        start = unbroken[done - 1].position if done else 0
        assert_same(stream(ten, batches=8 - done, start=start), unbroken[done:])


def test_epochs_have_the_order_that_images_have_too(ten):
    batches = stream(ten, TokenLoaderSettings(batch_size=10, seed=3), batches=3)
    orders = [batch.indices.tolist() for batch in batches]
    assert orders == [epoch_order(10, 3, epoch).tolist() for epoch in range(3)]
    assert len(set(map(tuple, orders))) == 3


def test_half_of_the_images_are_mirrored_and_which_belongs_to_seed_epoch_and_index(folder):
    dataset = distinct(folder / "many", 200)

    def mirrored(settings):
        """Whether each image was, by (epoch, index)."""
        batches = stream(dataset, settings, batches=800 // settings.batch_size)
        visits = zip(torch.cat([batch.tokens for batch in batches]), indices(batches), strict=True)
        return {(i // 200, index): bool(row[0] != 6 * index) for i, (row, index) in enumerate(visits)}

    flips, of_another_seed = mirrored(SMALL), mirrored(replace(SMALL, seed=1))
    assert 300 < sum(flips.values()) < 500
    assert flips == mirrored(replace(SMALL, batch_size=25))
    by_epoch = [[flips[epoch, i] for i in range(200)] for epoch in range(4)]
    by_epoch.append([of_another_seed[0, i] for i in range(200)])
    agreement = np.corrcoef(np.array(by_epoch, dtype=float)) - np.eye(5)
    assert np.abs(agreement).max() < 0.3


@pytest.mark.parametrize(("has_flips", "wants_flips"), [(False, True), (True, False)])
def test_images_are_mirrored_only_where_the_data_has_these_and_the_run_wants_them(
    tmp_path, has_flips, wants_flips
):
    dataset = distinct(tmp_path, 10, flips=has_flips)
    for batch in stream(dataset, replace(SMALL, flips=wants_flips), batches=5):
        assert torch.equal(batch.tokens[:, 0], 6 * batch.indices)
        assert not batch.labels.any(), "a data set without classes is one class"


def test_stages_lie_side_by_side_at_each_place(tmp_path):
    tokens = torch.arange(24).view(2, 2, 3, 2)
    (batch,) = TokenLoader(write_tokens(tmp_path, tokens, codebook_size=24), SMALL).one_pass()
    assert batch.tokens.tolist() == [list(range(12)), list(range(12, 24))]
    assert batch.tokens.dtype == torch.int64


def test_a_batch_tells_labels_names_and_indices(ten):
    batch = stream(ten, batches=1)[0]
    assert batch.labels.dtype == batch.indices.dtype == torch.int64
    for index, label, name in zip(batch.indices.tolist(), batch.labels.tolist(), batch.names, strict=True):
        assert label == index % 3 - 1
        assert name == f"{index}.png"


def test_a_pass_sees_every_image_once_in_order_and_as_it_is(ten):
    for seed in (0, 1):
        batches = list(TokenLoader(ten, replace(SMALL, seed=seed)).one_pass())
        assert indices(batches) == TEN
        assert [batch.position for batch in batches] == [4, 8, 10]
        assert torch.equal(torch.cat([batch.tokens for batch in batches]), torch.arange(60).view(10, 6))
