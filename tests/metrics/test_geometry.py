import itertools
import math

import numpy as np
import pytest
import torch

from lgq.metrics.code_usage import CodeUsage
from lgq.metrics.geometry import CodeGeometry, CoOccurrence, PositionPairs, mutual_information


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


def geometry(tokens: torch.Tensor, size: int = 70, batch: int = 3) -> CodeGeometry:
    result = CodeGeometry.empty(size, grid=(tokens.shape[1], tokens.shape[2]), pairs=8)
    for part in tokens.split(batch):
        result.update(part)
    return result


@pytest.mark.parametrize("size", [2, 63, 64, 65, 130])
def test_pairs_are_those_of_the_plain_definition(size):
    tokens = torch.randint(0, size, (6, 3, 4))
    pairs = brute_force_pairs(tokens)
    assert cooccurrence(tokens, size).pairs == len(pairs)
    assert cooccurrence(tokens, size).density == pytest.approx(len(pairs) / math.comb(size, 2))


@pytest.mark.parametrize(
    ("tokens", "pairs"),
    [([[0, 0, 0]] * 2, 0), ([[0, 3, 0], [3, 3, 0]], 1), ([[0, 1, 2, 3]], 6), ([[0], [1], [2]], 0)],
)
def test_a_pair_is_two_different_codes_of_one_image(tokens, pairs):
    assert cooccurrence(torch.tensor(tokens), 4).pairs == pairs


def test_pairs_at_the_paper_s_size_take_one_bit_each():
    assert CoOccurrence.empty(16_384).bits.nbytes == 16_384**2 // 8
    last = cooccurrence(torch.tensor([[16_383, 16_320, 63]]), 16_384)
    assert last.pairs == 3


def test_no_images_and_a_single_code_have_no_pairs():
    assert CoOccurrence.empty(9).density == 0
    assert cooccurrence(torch.zeros(2, 3, dtype=torch.int64), 1).density == 0


@pytest.mark.parametrize("codes", [2, 5, 1000])
def test_information_is_the_plain_formula(codes):
    a, b = torch.randint(0, codes, (50,)), torch.randint(0, codes, (50,))
    b[:20] = a[:20]
    assert mutual_information(a, b) == pytest.approx(brute_force_information(a.tolist(), b.tolist()))
    assert mutual_information(a, b) == mutual_information(a.flip(0), b.flip(0))
    assert mutual_information(a, b) == pytest.approx(mutual_information(b, a))


def test_information_lies_between_0_and_the_ceiling():
    different = torch.arange(64)
    assert mutual_information(different, torch.zeros_like(different)) == pytest.approx(0, abs=1e-12)
    assert mutual_information(different % 8, different // 8) == pytest.approx(0, abs=1e-12)
    assert mutual_information(different, different.flip(0)) == pytest.approx(math.log(64))


def test_pairs_of_positions_are_different_and_repeat_with_the_seed():
    pairs = PositionPairs.empty((16, 16)).pairs
    assert pairs.shape == (32, 2)
    assert (pairs[:, 0] >= 0).all()
    assert (pairs[:, 0] < pairs[:, 1]).all()
    assert (pairs[:, 1] < 256).all()
    assert len(pairs.unique(dim=0)) == 32
    assert torch.equal(pairs, PositionPairs.empty((16, 16)).pairs)
    assert not torch.equal(pairs, PositionPairs.empty((16, 16), seed=1).pairs)


def test_a_small_grid_gives_all_its_pairs():
    assert PositionPairs.empty((2, 2)).pairs.tolist() == [[0, 1], [0, 2], [1, 2], [0, 3], [1, 3], [2, 3]]


def test_information_of_images_is_the_mean_over_the_pairs():
    tokens = torch.randint(0, 5, (40, 3, 3))
    positions = PositionPairs.empty((3, 3), pairs=7)
    positions.update(tokens)
    flat = tokens.flatten(1).T.tolist()
    values = [brute_force_information(flat[i], flat[j]) for i, j in positions.pairs.tolist()]
    assert positions.information == pytest.approx(np.mean(values))
    assert positions.ceiling == pytest.approx(math.log(40))


def test_the_summary_holds_usage_pairs_and_information():
    tokens = torch.randint(0, 70, (11, 3, 4))
    whole = geometry(tokens, batch=11)
    usage = CodeUsage.empty(70)
    usage.update(tokens)
    assert whole.summary() == usage.summary() | {
        "cooccurrence_density": len(brute_force_pairs(tokens)) / math.comb(70, 2),
        "mutual_information": whole.positions.information,
        "mutual_information_ceiling": math.log(11),
    }


@pytest.mark.parametrize("dtype", [torch.int16, torch.uint8])
def test_batches_and_order_change_nothing(dtype):
    tokens = torch.randint(0, 70, (11, 3, 4))
    expected = geometry(tokens, batch=11).summary()
    shuffled = tokens[torch.randperm(11)].to(dtype)
    assert geometry(shuffled).summary() == expected
    assert geometry(shuffled).over_ranks().summary() == expected


def test_nothing_counted_gives_zeros_not_nan():
    summary = CodeGeometry.empty(8, grid=(2, 2)).summary()
    names = ("cooccurrence_density", "mutual_information", "mutual_information_ceiling")
    assert [summary[name] for name in names] == [0, 0, 0]


def test_a_refused_batch_counts_nowhere():
    counted = CodeGeometry.empty(8, grid=(2, 2))
    with pytest.raises(ValueError, match=r"expected images of \(2, 2\) tokens, got shape \(1, 2, 3\)"):
        counted.update(torch.zeros(1, 2, 3, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"index 8 is outside 0\.\.7"):
        counted.update(torch.full((1, 2, 2), 8))
    assert counted.usage.tokens == counted.cooccurrence.pairs == counted.positions.images == 0


def test_bad_input_is_refused_by_name():
    with pytest.raises(ValueError, match="positions must be at least 2, got 1"):
        PositionPairs.empty((1, 1))
    with pytest.raises(ValueError, match="codebook_size must be at least 1, got 0"):
        CoOccurrence.empty(0)
