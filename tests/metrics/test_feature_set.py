import dataclasses

import pytest
import torch

from lgq.metrics.features import FeatureSet
from lgq.metrics.fid import Gaussian, StatisticsError
from lgq.metrics.kid import kernel_distance
from lgq.metrics.precision_recall import precision_recall

DIM = 6


def features(count: int, seed: int, shift: float = 0.0) -> torch.Tensor:
    return torch.randn(count, DIM, generator=torch.Generator().manual_seed(seed)) + shift


def collected(rows: torch.Tensor, *, sample: int = 100, batch: int = 7) -> FeatureSet:
    gathered = FeatureSet.of(DIM, sample=sample)
    for numbers in torch.arange(len(rows)).split(batch):
        gathered.update(rows[numbers], numbers)
    return gathered


def gaussian(rows: torch.Tensor) -> Gaussian:
    return Gaussian(rows.double().mean(0), torch.cov(rows.double().T), len(rows))


def test_distances_are_those_of_all_features():
    x, y = features(40, 1), features(50, 2, shift=0.5)
    expected = {"fid": gaussian(x).distance(gaussian(y)), "kid": kernel_distance(x, y)}
    expected |= precision_recall(x, y)._asdict()
    assert collected(x).compare(collected(y)) == pytest.approx(expected, rel=1e-9)


def test_a_small_sample_leaves_fid_as_it_is():
    x, y = features(40, 1), features(50, 2, shift=0.5)
    few, all_of_them = (collected(x, sample=n).compare(collected(y, sample=n)) for n in (9, 100))
    assert few["fid"] == all_of_them["fid"]
    assert few["kid"] != all_of_them["kid"]


def test_a_set_is_no_way_from_itself():
    distances = collected(features(20, 1)).compare(collected(features(20, 1), batch=3))
    assert 0 <= distances["fid"] < 1e-9
    assert distances["precision"] == distances["recall"] == 1


@pytest.mark.parametrize(
    ("count", "names"),
    [(1, []), (2, ["fid", "kid"]), (3, ["fid", "kid"]), (4, ["fid", "kid", "precision", "recall"])],
)
def test_what_lacks_images_is_left_out(count, names):
    few, many = collected(features(count, 1)), collected(features(9, 2))
    assert list(few.compare(many)) == list(many.compare(few)) == names


def test_one_process_alone_is_all_of_them():
    alone = collected(features(20, 1))
    assert alone.over_ranks().compare(alone)["fid"] < 1e-9
    assert alone.over_ranks().statistics.count == 20


def test_a_saved_set_comes_back_in_every_bit(tmp_path):
    saved = collected(features(20, 1))
    saved.save(tmp_path / "new" / "set.features")
    loaded = FeatureSet.load(tmp_path / "new" / "set.features")
    for part in ("statistics", "sample"):
        for field in dataclasses.fields(getattr(saved, part)):
            before, after = (getattr(getattr(each, part), field.name) for each in (saved, loaded))
            torch.testing.assert_close(after, before, rtol=0, atol=0)


@pytest.mark.parametrize("harm", ["cut", "bit", "empty"])
def test_damage_is_refused(tmp_path, harm):
    file = tmp_path / "set.features"
    collected(features(20, 1)).save(file)
    whole = file.read_bytes()
    harmed = {"cut": whole[:-1], "bit": whole[:99] + bytes([whole[99] ^ 4]) + whole[100:], "empty": b""}
    file.write_bytes(harmed[harm])
    with pytest.raises(StatisticsError, match="other bytes than were written: delete it"):
        FeatureSet.load(file)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(StatisticsError, match=r"absent\.features cannot be read: No such file"):
        FeatureSet.load(tmp_path / "absent.features")
