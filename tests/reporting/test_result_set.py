"""Samples over seeds have Student's t intervals."""

import numpy as np
import pytest
from scipy import stats

from lgq.reporting.result_set import Sample, clear_best, compare_samples, t_quantile


@pytest.mark.parametrize("values", [(1.0, 2.0), (3.0, 3.5, 3.1), tuple(range(12)), tuple(range(40))])
def test_intervals_are_students(values):
    expected = stats.t.interval(0.95, len(values) - 1, np.mean(values), stats.sem(values))
    assert Sample(values).interval == pytest.approx(expected, rel=1e-3)


def test_quantiles_are_students():
    degrees = range(1, 200)
    expected = [stats.t.ppf(0.975, n) for n in degrees]
    assert [t_quantile(n) for n in degrees] == pytest.approx(expected, abs=2e-4)


def test_lower_is_better_where_a_column_says_so():
    samples = {"a": Sample((1.0, 1.1)), "b": Sample((9.0, 9.1))}
    assert (clear_best(samples, "lower"), clear_best(samples, "higher")) == ("a", "b")
    assert compare_samples(Sample((1.0,)), Sample((9.0, 9.1)), "lower") == 0
