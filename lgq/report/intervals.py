"""One number over several seeds: its mean, its spread, and whether two of them can be told apart.

Two samples are separated when their t-based 95% intervals do not touch. One seed has no interval, so
nothing is ever separated from it.

    psnr = Sample((21.3, 21.5, 21.4))
    psnr.mean, psnr.std, psnr.interval
    separated(psnr, other)
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Literal, TypeVar

Better = Literal["higher", "lower"]
Key = TypeVar("Key")

_NORMAL = 1.959963984540054
_FEW = (12.7062047, 4.3026527, 3.1824463, 2.7764451, 2.5705818, 2.4469118, 2.3646243, 2.3060041, 2.2621572)
"""Quantiles at 97.5% of Student's t with 1, 2, ... degrees of freedom, where no series is short."""


@dataclass(frozen=True)
class Sample:
    """Values of one metric, each of another training seed."""

    values: tuple[float, ...]
    runs: tuple[str, ...] = ()
    """Ids of the runs that they are of, in the same order."""

    @property
    def count(self) -> int:
        return len(self.values)

    @property
    def mean(self) -> float:
        return fmean(self.values)

    @property
    def std(self) -> float | None:
        """Divided by n - 1; none of a single value."""
        return stdev(self.values) if self.count > 1 else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """In which the mean lies with 95%, if values are normal; none of a single value."""
        if self.std is None:
            return None
        half = t_quantile(self.count - 1) * self.std / math.sqrt(self.count)
        return self.mean - half, self.mean + half


def t_quantile(degrees: int) -> float:
    """Of Student's t at 97.5%; beyond a few degrees by the series of Fisher and Cornish, to 1e-4."""
    if degrees <= len(_FEW):
        return _FEW[degrees - 1]
    z, n = _NORMAL, degrees
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / n + second / n**2 + third / n**3


def separated(one: Sample, other: Sample) -> bool:
    """Whether the intervals of both lie apart."""
    if one.interval is None or other.interval is None:
        return False
    return one.interval[1] < other.interval[0] or other.interval[1] < one.interval[0]


def ahead(one: Sample, other: Sample, better: Better) -> bool:
    """Whether the first is better, and their intervals lie apart."""
    is_better = one.mean > other.mean if better == "higher" else one.mean < other.mean
    return is_better and separated(one, other)


def clear_best(samples: Mapping[Key, Sample], better: Better) -> Key | None:
    """Which is ahead of every other one; none where intervals touch, or where there is nothing to beat."""
    if len(samples) < 2:
        return None
    order: Sequence[Key] = sorted(samples, key=lambda key: samples[key].mean, reverse=better == "higher")
    best, *others = order
    return best if all(ahead(samples[best], samples[other], better) for other in others) else None
