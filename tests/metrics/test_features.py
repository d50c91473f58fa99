"""Features of a set: statistics of all images, a sample that no order changes, files that keep every bit."""

import dataclasses

import pytest
import torch
from cheap_inception import gaussian

from lgq.metrics.features import FeatureSample, FeatureSet
from lgq.metrics.fid import StatisticsError, weighted_frechet_distance
from lgq.metrics.kid import kernel_distance, weighted_kernel_distance
from lgq.metrics.precision_recall import precision_recall

DIM, IMAGES = 6, 200
NUMBERED = torch.arange(IMAGES * DIM, dtype=torch.float32).view(IMAGES, DIM)


def sample_of(numbers: torch.Tensor, *, batch: int = 7, first: int = 0) -> torch.Tensor:
    """Features of a sample of 20 images, which are numbered from `first` on."""
    sample = FeatureSample.empty(20, dim=DIM)
    for chunk in numbers.split(batch):
        sample.update(NUMBERED[chunk], chunk + first)
    return sample.features


@pytest.mark.parametrize("batch", [1, 7, 200])
def test_a_sample_does_not_depend_on_order_or_batches_and_has_all_images_while_they_fit(batch):
    expected = sample_of(torch.arange(IMAGES), batch=11)
    assert len(expected) == 20
    assert torch.equal(sample_of(torch.randperm(IMAGES), batch=batch), expected)
    assert torch.equal(sample_of(torch.randperm(20), batch=batch), NUMBERED[:20])
    assert sample_of(torch.arange(0), batch=batch).shape == (0, DIM)


def test_each_image_is_sampled_equally_often():
    counts = torch.zeros(IMAGES)
    for first in range(0, 400 * IMAGES, IMAGES):
        rows = sample_of(torch.arange(IMAGES), batch=200, first=first)
        counts[(rows[:, 0] / DIM).long()] += 1
    # 400 samples of 1 in 10: mean 40, standard deviation 6.
    assert counts.sum() == 400 * 20
    assert 40 - 6 * 4 < counts.min() <= counts.max() < 40 + 6 * 5
    assert float(counts.std()) == pytest.approx(6, abs=1)


def random_features(count: int, seed: int, shift: float = 0.0) -> torch.Tensor:
    return torch.randn(count, DIM, generator=torch.Generator().manual_seed(seed)) + shift


def set_of(rows: torch.Tensor, *, sample: int = 100, batch: int = 7) -> FeatureSet:
    features = FeatureSet.empty(DIM, sample=sample)
    for numbers in torch.arange(len(rows)).split(batch):
        features.update(rows[numbers], numbers)
    return features


def test_distances_are_those_of_all_features_and_fid_does_not_depend_on_the_sample():
    x, y = random_features(40, 1), random_features(50, 2, shift=0.5)
    expected = {"fid": gaussian(x).distance(gaussian(y)), "kid": kernel_distance(x, y)}
    expected |= precision_recall(x, y)
    few, many = (set_of(x, sample=n).compare(set_of(y, sample=n)) for n in (9, 100))
    assert many == pytest.approx(expected, rel=1e-9)
    assert few["fid"] == many["fid"]
    assert few["kid"] != many["kid"]


def test_a_saved_set_keeps_every_bit(tmp_path):
    saved = set_of(random_features(20, 1))
    saved.save(tmp_path / "new" / "set.features")
    loaded = FeatureSet.load(tmp_path / "new" / "set.features")
    for part in ("statistics", "sample"):
        for field in dataclasses.fields(getattr(saved, part)):
            before, after = (getattr(getattr(x, part), field.name) for x in (saved, loaded))
            torch.testing.assert_close(after, before, rtol=0, atol=0)


@pytest.mark.parametrize("harm", ["cut", "bit", "empty"])
def test_a_damaged_file_is_refused(tmp_path, harm):
    file = tmp_path / "set.features"
    set_of(random_features(20, 1)).save(file)
    whole = file.read_bytes()
    harmed = {"cut": whole[:-1], "bit": whole[:99] + bytes([whole[99] ^ 4]) + whole[100:], "empty": b""}
    file.write_bytes(harmed[harm])
    with pytest.raises(StatisticsError, match="is damaged: delete it"):
        FeatureSet.load(file)
    with pytest.raises(StatisticsError, match=r"absent\.features cannot be read: No such file"):
        FeatureSet.load(tmp_path / "absent.features")


def pairs_of(count: int, resampled: torch.Tensor | None = None) -> list[FeatureSet]:
    """Return two sets of features of the same images, with repetitions if these are given."""
    random = torch.Generator().manual_seed(0)
    x = torch.randn(count, 5, generator=random)
    sets = []
    for features in (x, x + 0.5 * torch.randn(count, 5, generator=random)):
        chosen = features if resampled is None else features[resampled]
        sets.append(FeatureSet.empty(5, sample=len(chosen)))
        sets[-1].update(chosen, torch.arange(len(chosen)))
    return sets


def test_distances_of_weighted_images_are_those_of_repeated_images():
    drawn = torch.tensor([0, 0, 1, 3, 4, 4, 4, 6])
    weights = torch.bincount(drawn, minlength=7).double()
    x, y = (features.sample.features.double() for features in pairs_of(7))
    products = (x @ x.T, y @ y.T, x @ y.T)
    repeated, reference = pairs_of(7, drawn)
    assert weighted_frechet_distance(*products, weights) == pytest.approx(repeated.compare(reference)["fid"])
    once = torch.ones(7).double()
    plain = kernel_distance(x.float(), y.float())
    assert weighted_kernel_distance(*products, once, dim=5) == pytest.approx(plain, abs=1e-6)


def test_deviations_over_resamples_shrink_with_the_number_of_images():
    few, many = (pairs_of(count) for count in (50, 800))
    small, large = (x.bootstrap_deviations(y, 60) for x, y in (many, few))
    assert small.keys() == large.keys() == {"fid", "kid"}
    for name, value in small.items():
        assert 0 < 2 * value < large[name]
    assert few[0].bootstrap_deviations(few[1], 60) == large
    assert few[0].bootstrap_deviations(few[1], 0) == {}
    with pytest.raises(ValueError, match="the same images twice, got 50 and 800"):
        few[0].bootstrap_deviations(many[1], 60)
