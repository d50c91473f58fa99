import pytest
import torch

from lgq.metrics.features import FeatureSample

IMAGES, DIM = 200, 3
FEATURES = torch.arange(IMAGES * DIM, dtype=torch.float32).view(IMAGES, DIM)


def sample_of(numbers: torch.Tensor, *, limit: int = 20, batch: int = 7, seed: int = 0) -> FeatureSample:
    sample = FeatureSample.of(limit, dim=DIM, seed=seed)
    for chunk in numbers.split(batch):
        sample.update(FEATURES[chunk], chunk)
    return sample


def chosen(sample: FeatureSample) -> list[int]:
    return (sample.features[:, 0] / DIM).long().tolist()


def test_all_images_are_kept_in_order_while_they_fit():
    assert torch.equal(sample_of(torch.randperm(20)).features, FEATURES[:20])
    assert sample_of(torch.arange(0)).features.shape == (0, DIM)


@pytest.mark.parametrize("batch", [1, 7, 200])
def test_the_sample_does_not_depend_on_order_or_batches(batch):
    expected = sample_of(torch.arange(IMAGES), batch=11).features
    assert len(expected) == 20
    assert torch.equal(sample_of(torch.randperm(IMAGES), batch=batch).features, expected)
    assert torch.equal(sample_of(torch.arange(IMAGES)).over_ranks().features, expected)


def test_parts_merge_to_the_sample_of_the_whole():
    order = torch.randperm(IMAGES)
    merged = sample_of(order[:5]).merge(sample_of(order[5:120])).merge(sample_of(order[120:]))
    assert torch.equal(merged.features, sample_of(order).features)


def test_merging_leaves_the_parts_as_they_were():
    part = sample_of(torch.arange(100))
    before = [state.clone() for state in (part.order, part.numbers, part.slots)]
    part.merge(sample_of(torch.arange(100, 200)))
    assert all(map(torch.equal, (part.order, part.numbers, part.slots), before))


def test_another_seed_is_another_sample():
    everything = torch.arange(IMAGES)
    assert chosen(sample_of(everything, seed=1)) != chosen(sample_of(everything, seed=2))


def test_each_image_is_chosen_equally_often():
    counts = torch.zeros(IMAGES)
    for seed in range(400):
        counts[chosen(sample_of(torch.arange(IMAGES), batch=200, seed=seed))] += 1
    # 400 draws of 1 in 10: mean 40, standard deviation 6.
    assert counts.sum() == 400 * 20
    assert 40 - 6 * 4 < counts.min() <= counts.max() < 40 + 6 * 5
    assert float(counts.std()) == pytest.approx(6, abs=1)


@pytest.mark.usefixtures("without_shape_checks")
def test_bad_input_is_refused_by_name():
    with pytest.raises(ValueError, match=r"expected features of shape \(2, 3\), got \(2, 4\)"):
        FeatureSample.of(5, dim=3).update(torch.zeros(2, 4), torch.arange(2))
    with pytest.raises(ValueError, match="different seed"):
        FeatureSample.of(5, dim=3).merge(FeatureSample.of(5, dim=3, seed=1))
    with pytest.raises(ValueError, match="limit must be at least 1, got 0"):
        FeatureSample.of(0, dim=3)
