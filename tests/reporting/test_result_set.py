"""Samples over seeds have Student's t intervals."""

import numpy as np
import pytest
from scipy import stats

from lgq.reporting.result_set import Sample, compare_samples


@pytest.mark.parametrize("values", [(1.0, 2.0), (3.0, 3.5, 3.1), tuple(range(12)), tuple(range(40))])
def test_intervals_are_students(values):
    expected = stats.t.interval(0.95, len(values) - 1, np.mean(values), stats.sem(values))
    assert Sample(values).interval == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("better", ["higher", "lower"])
def test_a_sample_is_ahead_where_intervals_lie_apart(better):
    high, low = Sample((9.0, 9.1)), Sample((1.0, 1.1))
    sign = 1 if better == "higher" else -1
    assert (compare_samples(high, low, better), compare_samples(low, high, better)) == (sign, -sign)
    assert compare_samples(Sample((1.0,)), high, better) == compare_samples(high, high, better) == 0
