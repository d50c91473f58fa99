from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from fuzz.seeds import Trap
from hypothesis import given
from hypothesis import strategies as st

from lgq.errors import LGQWarning
from lgq.metrics.fid import (
    FeatureStatistics,
    Gaussian,
    StatisticsError,
    frechet_distance,
    warn_of_few_images,
)

SIZES = st.lists(st.integers(0, 9), min_size=1, max_size=6).filter(lambda sizes: sum(sizes) >= 2)


def features(count: int, dim: int, seed: int) -> torch.Tensor:
    """Correlated, of decaying size and clipped at zero, as those of Inception are."""
    generator = torch.Generator().manual_seed(seed)
    mixing = torch.randn(dim, dim, generator=generator, dtype=torch.float64)
    scales = torch.arange(1, dim + 1, dtype=torch.float64) ** -0.7
    z = torch.randn(count, dim, generator=generator, dtype=torch.float64)
    return ((z * scales) @ mixing + 0.3).relu()


def gaussian(rows: torch.Tensor) -> Gaussian:
    return Gaussian(rows.mean(0), torch.cov(rows.T).view(rows.shape[1], -1), len(rows))


def distance_by_features(a: torch.Tensor, b: torch.Tensor) -> float:
    """tr (S_a S_b)^½ is the sum of singular values of the product of the centred features."""
    x, y = ((rows - rows.mean(0)).numpy() / np.sqrt(len(rows) - 1) for rows in (a, b))
    root = np.linalg.svd(x @ y.T, compute_uv=False).sum()
    means = float((a.mean(0) - b.mean(0)).square().sum())
    return means + np.square(x).sum() + np.square(y).sum() - 2 * root


@given(st.lists(st.tuples(*[st.floats(0, 1e3)] * 2, *[st.floats(-30, 30)] * 2), min_size=1, max_size=8))
def test_diagonal_gaussians_have_the_closed_form(channels):
    a, b, mean, mean_ref = torch.tensor(channels, dtype=torch.float64).T
    expected = float((mean - mean_ref).square().sum() + (a.sqrt() - b.sqrt()).square().sum())
    assert frechet_distance(mean, a.diag(), mean_ref, b.diag()) == pytest.approx(expected, rel=1e-6, abs=1e-4)


@pytest.mark.parametrize(("n", "m"), [(20, 30), (30, 20), (20, 300), (300, 20), (2, 40), (300, 400)])
def test_any_rank_agrees_with_the_singular_values_of_the_features(n, m):
    x, y = features(n, 64, 1), features(m, 64, 2)
    expected = pytest.approx(distance_by_features(x, y), rel=1e-9)
    assert gaussian(x).distance(gaussian(y)) == expected
    assert gaussian(y).distance(gaussian(x)) == expected


@pytest.mark.parametrize("damage", ["dead", "copied", "tiny"])
def test_constant_copied_and_tiny_features_do_no_harm(damage):
    x, y = features(300, 64, 1), features(200, 64, 2)
    for rows in (x, y):
        rows[:, 3] = {"dead": 0 * rows[:, 3], "copied": rows[:, 9], "tiny": 1e-9 * rows[:, 3]}[damage]
    assert gaussian(x).distance(gaussian(y)) == pytest.approx(distance_by_features(x, y), rel=1e-9)


def test_statistics_stored_in_float32_are_not_definite_and_still_work():
    x, y = features(30, 64, 1), features(40, 64, 2)
    a, b = gaussian(x), gaussian(y)
    rounded = [part.float().numpy() for part in (a.mean, a.covariance, b.mean, b.covariance)]
    assert np.linalg.eigvalsh(rounded[1].astype(np.float64)).min() < 0
    assert frechet_distance(*rounded) == pytest.approx(distance_by_features(x, y), rel=1e-3)


@pytest.mark.parametrize("count", [400, 20])
def test_a_set_is_at_distance_0_from_itself_and_never_below(count):
    same = gaussian(features(count, 64, 1))
    assert 0 <= same.distance(same) < 1e-6 * float(same.covariance.trace())
    constant = Gaussian(same.mean, torch.zeros_like(same.covariance))
    assert constant.distance(constant) == 0
    assert constant.distance(same) == pytest.approx(float(same.covariance.trace()))


@given(SIZES)
def test_batches_equal_one_pass(sizes):
    rows = features(sum(sizes), 4, 7) + 100
    whole, parts = FeatureStatistics.empty(4), FeatureStatistics.empty(4)
    whole.update(rows)
    for batch in rows.split(sizes):
        parts.update(batch)
    for statistics in (whole, parts, parts.over_ranks()):
        fitted = statistics.gaussian()
        assert fitted.count == len(rows)
        np.testing.assert_allclose(fitted.mean, rows.mean(0), rtol=1e-13)
        np.testing.assert_allclose(fitted.covariance, np.cov(rows.T.numpy()), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("rows", [features(60, 4, 3) + 2.0**16, features(60, 4, 3).bfloat16()])
def test_statistics_are_float64_and_a_large_common_value_costs_no_digits(rows):
    statistics = FeatureStatistics.empty(4)
    for batch in rows.split(7):
        statistics.update(batch)
    expected = np.cov(rows.double().T.numpy())
    np.testing.assert_allclose(statistics.gaussian().covariance, expected, rtol=1e-8)


def test_files_keep_every_bit_and_those_of_other_programs_need_no_count(tmp_path: Path):
    saved = gaussian(features(30, 5, 1))
    saved.save(tmp_path / "new" / "reference.npz")
    loaded = Gaussian.load(tmp_path / "new" / "reference.npz")
    assert torch.equal(loaded.mean, saved.mean)
    assert torch.equal(loaded.covariance, saved.covariance)
    assert (loaded.count, loaded.sha256) == (30, saved.sha256)
    assert saved.sha256 != gaussian(features(30, 5, 2)).sha256
    with np.load(tmp_path / "new" / "reference.npz") as arrays:
        assert set(arrays) == {"mu", "sigma", "count"}
    other = tmp_path / "other.npz"
    np.savez(other, mu=saved.mean.float().numpy(), sigma=saved.covariance.numpy(), extra=np.ones(3))
    assert Gaussian.load(other).count is None
    assert Gaussian.load(other).distance(saved) < 1e-6


def archive(**arrays: np.ndarray) -> bytes:
    file = BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


MU, SIGMA = np.zeros(3), np.eye(3)
WHOLE = archive(mu=MU, sigma=SIGMA)
AT = WHOLE.index(SIGMA.tobytes())
BAD_FILES = {
    "other names": archive(mean=MU, sigma=SIGMA),
    "other shape": archive(mu=MU, sigma=np.eye(4)),
    "text": archive(mu=np.array(["a", "b", "c"]), sigma=SIGMA),
    "truncated": WHOLE[:-40],
    "flipped bit": WHOLE[:AT] + bytes([WHOLE[AT] ^ 1]) + WHOLE[AT + 1 :],
    "empty": b"",
}


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("kind", [*BAD_FILES, "pickle", "single array"])
def test_other_files_are_refused_by_name(tmp_path: Path, kind: str):
    path, mark = tmp_path / "bad.npz", tmp_path / "mark"
    if kind == "single array":
        with path.open("wb") as file:
            np.save(file, SIGMA)
    else:
        pickled = archive(mu=np.array([Trap(mark)]), sigma=SIGMA)
        path.write_bytes(BAD_FILES.get(kind, pickled))
    with pytest.raises(StatisticsError, match=r"bad\.npz is not an \.npz file with `mu` and `sigma`"):
        Gaussian.load(path)
    assert not mark.exists()
    with pytest.raises(StatisticsError, match=r"none\.npz does not exist"):
        Gaussian.load(tmp_path / "none.npz")


@pytest.mark.usefixtures("without_shape_checks")
def test_bad_statistics_are_refused_by_name():
    mean, covariance = torch.zeros(3), torch.eye(3)
    with pytest.raises(StatisticsError, match=r"got \(3,\) and \(2, 2\)"):
        frechet_distance(mean, torch.eye(2), mean, covariance)
    with pytest.raises(StatisticsError, match="got 3 and 2 features"):
        frechet_distance(mean, covariance, torch.zeros(2), torch.eye(2))
    with pytest.raises(StatisticsError, match="NaN or infinity"):
        frechet_distance(mean, covariance * torch.nan, mean, covariance)
    with pytest.raises(StatisticsError, match="not symmetric"):
        frechet_distance(mean, covariance + torch.ones(3, 3).triu(1), mean, covariance)
    statistics = FeatureStatistics.empty(3)
    with pytest.raises(ValueError, match=r"expected features of shape \(n, 3\), got \(2, 4\)"):
        statistics.update(torch.zeros(2, 4))
    with pytest.raises(StatisticsError, match="features hold NaN"):
        statistics.update(torch.full((2, 3), torch.nan))
    statistics.update(torch.zeros(1, 3))
    with pytest.raises(StatisticsError, match="at least 2 images, got 1"):
        statistics.gaussian()


def test_the_formula_has_its_documented_name():
    from lgq.evaluation.fid import frechet_distance as documented

    assert documented is frechet_distance


@pytest.mark.parametrize(("images", "by_kid"), [(99, False), (100, True), (2_047, True)])
def test_kid_is_a_way_out_only_for_enough_images(images, by_kid):
    with pytest.warns(LGQWarning, match="take 2,048 images or more") as caught:
        warn_of_few_images("rFID", images, 2_048)
    message = str(caught[0].message)
    assert ("compare models by KID" in message) == by_kid
    assert ("KID, precision and recall of fewer than 100 images are mostly noise" in message) != by_kid
