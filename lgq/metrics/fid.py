"""Fréchet Inception Distance (Heusel et al. 2017): distance of the Gaussians fitted to two sets of features.

n = images, d = features.

    statistics = FeatureStatistics.empty(2048)
    statistics.update(inception(images))                            # per batch
    gaussian = statistics.over_ranks().gaussian()
    gaussian.save("reference.npz")                                  # mu, sigma, count
    fid = gaussian.distance(Gaussian.load("other.npz"))
"""

import hashlib
import math
import warnings
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from lgq.checks import require_at_least
from lgq.distributed import rank, sum_over_ranks
from lgq.errors import LGQError, LGQWarning
from lgq.files import make_directory, replace_file

Vector = Float[Tensor, " d"] | Float[np.ndarray, " d"]
Matrix = Float[Tensor, "d d"] | Float[np.ndarray, "d d"]

_SYMMETRY_TOLERANCE = 1e-6
_MAX_BYTES = 2**29
_FEWEST_FOR_KID = 100
"""Images below which the error of KID is as large as KID itself, and precision and recall are noise too."""


class StatisticsError(LGQError):
    """Statistics that give no distance; the message names the rule and the way out."""


def frechet_distance(mean: Vector, covariance: Matrix, mean_ref: Vector, covariance_ref: Matrix) -> float:
    """Return |m - m_ref|² + tr S + tr S_ref - 2 tr (S S_ref)^½, in float64 on the CPU; never below 0."""
    m, s = _check(mean, covariance)
    m_ref, s_ref = _check(mean_ref, covariance_ref)
    if len(m) != len(m_ref):
        raise StatisticsError(
            f"both sets need features of the same network, got {len(m)} and {len(m_ref)} features: "
            "make the reference with the network of the other set."
        )
    spread = s.trace() + s_ref.trace() - 2 * _trace_of_sqrt(s, s_ref)
    return max(0.0, float((m - m_ref).square().sum() + spread))


def few_images(metric: str, images: int, features: int) -> str | None:
    """Say why the FID of so few images is no measure; None if there are as many images as features."""
    if images >= features:
        return None
    return (
        f"{metric} of {images:,} images is biased upwards: fewer images than the {features:,} features of "
        "Inception leave the covariance singular"
    )


def weighted_frechet_distance(
    xx: Float64[Tensor, "n n"],
    yy: Float64[Tensor, "n n"],
    xy: Float64[Tensor, "n n"],
    weights: Float64[Tensor, " n"],
) -> float:
    """Return the distance of two sets of n images that count `weights` times, from products of features.

    With centred features X and Y, tr (Cx Cy)^½ is the sum of the singular values of X Yᵀ / (n - 1), which is
    far smaller than a covariance where there are fewer images than features.
    """
    drawn, total = weights > 0, weights.sum()
    w, (xx, yy, xy) = weights[drawn], (products[drawn][:, drawn] for products in (xx, yy, xy))
    share = w / total
    inner_xx, inner_yy, inner_xy = share @ xx @ share, share @ yy @ share, share @ xy @ share
    traces = (w @ (xx.diagonal() + yy.diagonal()) - total * (inner_xx + inner_yy)) / (total - 1)
    centred = xy - (xy @ share)[:, None] - (share @ xy)[None] + inner_xy
    singular = torch.linalg.svdvals(w.sqrt()[:, None] * centred * w.sqrt()) / (total - 1)
    return max(0.0, float(inner_xx + inner_yy - 2 * inner_xy + traces - 2 * singular.sum()))


def warn_of_few_images(metric: str, images: int, features: int) -> None:
    """Warn on the first process if an FID has fewer images than features, or KID and others very few."""
    problem = few_images(metric, images, features)
    if problem is not None and rank() == 0:
        if images < _FEWEST_FOR_KID:
            problem += f"; KID, precision and recall of fewer than {_FEWEST_FOR_KID} images are mostly noise"
            by_kid = ""
        else:
            by_kid = "compare models by KID, or "
        warnings.warn(f"{problem}; {by_kid}take {features:,} images or more.", LGQWarning, stacklevel=3)


def _trace_of_sqrt(a: Float64[Tensor, "d d"], b: Float64[Tensor, "d d"]) -> Float64[Tensor, ""]:
    """Return tr (ab)^½. With a = f fᵀ, ab and fᵀ b f have the same eigenvalues, apart from zeros."""
    (factor, rank), (factor_b, rank_b) = _cholesky(a), _cholesky(b)
    # The root turns zeros that were rounded to 1e-16 into 1e-8. The matrix of lower rank has the
    # thinner factor, with which fᵀ b f has no such zeros, and is also smaller.
    if rank_b < rank:
        factor, rank, a, b = factor_b, rank_b, b, a
    if rank < len(a):
        factor = _thin_factor(a)
    return torch.linalg.eigvalsh(factor.T @ b @ factor).clamp_min(0).sqrt().sum()


def _cholesky(s: Float64[Tensor, "d d"]) -> tuple[Float64[Tensor, "d d"], int]:
    """Return the factor and the rows that succeeded: below d, s is singular and the factor useless."""
    factor, failed_at = torch.linalg.cholesky_ex(s)
    return factor, int(failed_at) - 1 if failed_at else len(s)


def _thin_factor(s: Float64[Tensor, "d d"]) -> Float64[Tensor, "d rank"]:
    """Return f with f fᵀ = s, one column per eigenvalue above rounding."""
    values, vectors = torch.linalg.eigh(s)
    positive = values > values.max().clamp_min(0) * len(values) * torch.finfo(values.dtype).eps
    return vectors[:, positive] * values[positive].sqrt()


def _check(mean: Vector, covariance: Matrix) -> tuple[Float64[Tensor, " d"], Float64[Tensor, "d d"]]:
    m, s = (torch.as_tensor(x).detach().cpu().double() for x in (mean, covariance))
    if m.ndim != 1 or len(m) == 0 or s.shape != (len(m), len(m)):
        raise StatisticsError(
            "statistics need a mean of shape (d,) and a covariance of shape (d, d), d at least 1, "
            f"got {tuple(m.shape)} and {tuple(s.shape)}."
        )
    if not (m.isfinite().all() and s.isfinite().all()):
        raise StatisticsError("mean and covariance hold NaN or infinity: check the features behind them.")
    if (s - s.T).abs().max() > _SYMMETRY_TOLERANCE * s.abs().max():
        raise StatisticsError("the covariance is not symmetric: give the covariance matrix of the features.")
    return m, s


@dataclass(frozen=True)
class Gaussian:
    """Gaussian fitted to the features of a set of images."""

    mean: Float64[Tensor, " d"]
    covariance: Float64[Tensor, "d d"]
    """Covariance with divisor n - 1."""
    count: int | None = None
    """Number of images; None where a file does not say."""

    def distance(self, reference: "Gaussian") -> float:
        return frechet_distance(self.mean, self.covariance, reference.mean, reference.covariance)

    @property
    def sha256(self) -> str:
        """Hash of the numbers, which identifies a reference set in a record."""
        digest = hashlib.sha256()
        for part in (self.mean, self.covariance):
            digest.update(part.cpu().numpy().astype("<f8").tobytes())
        return digest.hexdigest()

    def save(self, path: str | Path) -> None:
        """Write an .npz file with the usual names `mu` and `sigma`, and `count` if it is not None."""
        arrays = {"mu": self.mean.cpu().numpy(), "sigma": self.covariance.cpu().numpy()}
        if self.count is not None:
            arrays["count"] = np.array(self.count, dtype=np.int64)
        data = BytesIO()
        np.savez(data, **arrays)  # type: ignore[arg-type]
        make_directory(Path(path).parent)
        replace_file(Path(path), data.getvalue())

    @classmethod
    def load(cls, path: str | Path) -> "Gaussian":
        """Read an .npz file with `mu` and `sigma`, from this or another program."""
        try:
            # NumPy warns about unusual headers; their content is checked below.
            with (
                warnings.catch_warnings(action="ignore"),
                open(path, "rb") as file,
                np.load(file, allow_pickle=False) as arrays,
            ):
                # Before anything is unpacked: a file of zeros packs to a thousandth of its size.
                size = sum(member.file_size for member in arrays.zip.infolist())
                if size > _MAX_BYTES:
                    raise StatisticsError(f"it unpacks to {size:,} bytes, above the limit of {_MAX_BYTES:,}")
                mean, covariance = _check(arrays["mu"], arrays["sigma"])
                return cls(mean, covariance, int(arrays["count"]) if "count" in arrays else None)
        except FileNotFoundError:
            raise StatisticsError(f"{path} does not exist: make it with `Gaussian.save`.") from None
        except Exception as error:  # damaged files make NumPy raise nearly anything
            raise StatisticsError(
                f"{path} is not an .npz file with `mu` and `sigma`: {error!s:.300}"
            ) from error


@dataclass
class FeatureStatistics:
    """Streaming mean and covariance in float64: `update` per batch, `over_ranks`, then `gaussian`.

    Batches are centred before they are multiplied (Chan, Golub, LeVeque 1983), so that features far from
    zero lose no digits. The order of batches and processes changes float rounding only.
    """

    count: int
    mean: Float64[Tensor, " d"]
    scatter: Float64[Tensor, "d d"]
    """Sum of (x - mean)(x - mean)ᵀ."""

    @classmethod
    def empty(cls, dim: int) -> "FeatureStatistics":
        require_at_least(1, dim=dim)
        zeros = torch.zeros(dim, dtype=torch.float64)
        return cls(0, zeros, zeros.new_zeros(dim, dim))

    def update(self, features: Float[Tensor, "n d"]) -> None:
        if features.ndim != 2 or features.shape[1] != len(self.mean):
            raise ValueError(
                f"expected features of shape (n, {len(self.mean)}), got {tuple(features.shape)}."
            )
        if not features.isfinite().all():
            raise StatisticsError("features hold NaN or infinity: check the images they were computed from.")
        if len(features) == 0:
            return
        rows = features.detach().cpu().double()
        total = self.count + len(rows)
        centre = rows.mean(0)
        shift = centre - self.mean
        between = shift * math.sqrt(self.count * len(rows) / total)
        deviations = torch.cat([rows - centre, between[None]])
        self.scatter.addmm_(deviations.T, deviations)
        self.mean = self.mean + shift * (len(rows) / total)
        self.count = total

    def over_ranks(self) -> "FeatureStatistics":
        """Return the statistics of all processes."""
        count = int(sum_over_ranks(torch.tensor(self.count)))
        mean = sum_over_ranks(self.mean * self.count) / max(count, 1)
        shift = self.mean - mean
        scatter_around_mean = self.scatter + self.count * shift.outer(shift)
        return FeatureStatistics(count, mean, sum_over_ranks(scatter_around_mean))

    def gaussian(self) -> Gaussian:
        if self.count < 2:
            raise StatisticsError(f"a covariance needs at least 2 images, got {self.count}.")
        return Gaussian(self.mean, self.scatter / (self.count - 1), self.count)
