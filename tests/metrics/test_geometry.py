import itertools
import math

import numpy as np
import pytest
import torch

from lgq.metrics.geometry import CoOccurrence, PositionPairs, mutual_information


def brute_force_pairs(tokens: torch.Tensor) -> set[tuple[int, int]]:
    images = [sorted(set(image.flatten().tolist())) for image in tokens]
    return {pair for image in images for pair in itertools.combinations(image, 2)}


def brute_force_information(a: list[int], b: list[int]) -> float:
    n, total = len(a), 0.0
    for x, y in set(zip(a, b, strict=True)):
        joint = sum((i, j) == (x, y) for i, j in zip(a, b, strict=True)) / n
        total += joint * math.log(joint / (a.count(x) / n * b.count(y) / n))
    return total


def cooccurrence(tokens: torch.Tensor, size: int) -> CoOccurrence:
    result = CoOccurrence.empty(size)
    result.update(tokens)
    return result


@pytest.mark.parametrize("size", [2, 63, 64, 65, 130])
def test_pairs_are_those_of_the_plain_definition(size):
    tokens = torch.randint(0, size, (6, 3, 4))
    pairs, batches = brute_force_pairs(tokens), CoOccurrence.empty(size)
    for batch in tokens.to(torch.uint8).split(4):
        batches.update(batch)
    assert cooccurrence(tokens, size).pairs == batches.pairs == len(pairs)
    assert cooccurrence(tokens, size).density == pytest.approx(len(pairs) / math.comb(size, 2))


def test_pairs_at_the_paper_s_size_take_one_bit_each():
    last = cooccurrence(torch.tensor([[16_383, 16_320, 63]]), 16_384)
    assert (last.pairs, last.bits.nbytes) == (3, 16_384**2 // 8)
    assert CoOccurrence.empty(9).density == cooccurrence(torch.zeros(2, 3).long(), 1).density == 0
    with pytest.raises(ValueError, match=r"index 8 is outside 0\.\.7"):
        cooccurrence(torch.full((1, 2, 2), 8), 8)


@pytest.mark.parametrize("codes", [2, 5, 1000])
def test_information_is_the_plain_formula(codes):
    a, b = torch.randint(0, codes, (50,)), torch.randint(0, codes, (50,))
    b[:20] = a[:20]
    assert mutual_information(a, b) == pytest.approx(brute_force_information(a.tolist(), b.tolist()))
    assert mutual_information(a, b) == mutual_information(a.flip(0), b.flip(0))
    assert mutual_information(a, b) == pytest.approx(mutual_information(b, a))


def test_pairs_of_positions_are_different_and_always_the_same():
    pairs = PositionPairs.empty(256).pairs
    assert len(pairs.unique(dim=0)) == 32
    assert (pairs[:, 0] < pairs[:, 1]).all()
    assert pairs.min() >= 0
    assert pairs.max() < 256
    assert torch.equal(pairs, PositionPairs.empty(256).pairs)
    assert PositionPairs.empty(4).pairs.tolist() == [[0, 1], [0, 2], [1, 2], [0, 3], [1, 3], [2, 3]]


@pytest.mark.parametrize("dtype", [torch.int64, torch.int16, torch.uint8])
def test_information_of_images_is_the_mean_over_the_pairs_in_any_batches(dtype):
    tokens = torch.randint(0, 5, (40, 3, 3))
    whole, parts = PositionPairs.empty(9, pairs=7), PositionPairs.empty(9, pairs=7)
    whole.update(tokens)
    for batch in tokens[torch.randperm(40)].to(dtype).split(7):
        parts.update(batch)
    flat = tokens.flatten(1).T.tolist()
    values = [brute_force_information(flat[i], flat[j]) for i, j in whole.pairs.tolist()]
    expected = {"mutual_information": np.mean(values), "mutual_information_ceiling": math.log(40)}
    assert whole.summary() == pytest.approx(expected)
    assert parts.summary() == parts.over_ranks().summary() == whole.summary()
    assert set(PositionPairs.empty(4).summary().values()) == {0}
