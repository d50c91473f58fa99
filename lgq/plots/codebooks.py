"""Plots of a codebook, as PNG: codes among latents in the plane, and their norms.

The plane is UMAP's (McInnes et al. 2018) where umap-learn is installed, and PCA's otherwise.

n = latents, k = codes, c = channels.
"""

import importlib
import warnings
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float, Float64, Int, Int64
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.colors import LinearSegmentedColormap, LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import StrMethodFormatter
from torch import Tensor
from torch.nn.functional import normalize

from lgq.checks import require_at_least, require_one_of
from lgq.errors import LGQError
from lgq.plots.canvas import BLUE, ORANGE, PAPER, figure_png, panel_figure

Method = Literal["auto", "umap", "pca"]
LATENT = "#c4c4c4"
MOST_PROJECTED_CODES = 2048
"""Number of codes that are drawn among the latents; of larger codebooks, a random sample is drawn."""

_RARE_TO_FREQUENT = LinearSegmentedColormap.from_list("usage", ["#a5d5f2", BLUE, "#003454"])


@dataclass(frozen=True)
class Projection:
    """Latents and codes in the plane."""

    latents: Float64[Tensor, "n 2"]
    codes: Float64[Tensor, "k 2"]
    method: Literal["umap", "pca"]
    """Method that was used."""


def project(
    latents: Float[Tensor, "n c"], codes: Float[Tensor, "k c"], *, method: Method = "auto"
) -> Projection:
    """Project latents and codes to one plane; the same arrays give the same plane.

    method: "auto" uses UMAP where umap-learn is installed, and PCA otherwise.
    """
    require_one_of(get_args(Method), method=method)
    require_at_least(2, latents=len(latents), channels=latents.shape[1])
    if latents.shape[1] != codes.shape[1]:
        sizes = f"{latents.shape[1]} and {codes.shape[1]}"
        raise LGQError(f"latents and codes need the same channels to share a plane, got {sizes}.")
    x, y = latents.detach().cpu().double(), codes.detach().cpu().double()
    umap = None if method == "pca" else _import_umap()
    if umap is None and method == "umap":
        raise LGQError("UMAP needs the package umap-learn: install lgq[umap], or choose 'pca'.")
    if umap is None:
        return _pca(x, y)
    # Together, so that neither is squeezed into the picture of the other. One thread, as with more the result
    # would depend on their timing.
    points = torch.cat([x, y]).numpy()
    fit = umap.UMAP(n_neighbors=min(15, len(points) - 1), random_state=0, n_jobs=1)
    both = torch.from_numpy(fit.fit_transform(points)).cpu().double()
    return Projection(both[: len(x)], both[len(x) :], "umap")


def _import_umap() -> Any:
    """The package umap-learn; None where it is not installed."""
    try:
        # umap warns about a missing TensorFlow, which is not needed here.
        with warnings.catch_warnings(action="ignore", category=ImportWarning):
            return importlib.import_module("umap")
    except ImportError:
        return None


def _pca(x: Float64[Tensor, "n c"], y: Float64[Tensor, "k c"]) -> Projection:
    """Project on the two directions in which the latents vary most."""
    centre = x.mean(0)
    _, vectors = torch.linalg.eigh((x - centre).T @ (x - centre))
    plane = vectors[:, -2:].flip(1)
    # The sign of an eigenvector is arbitrary: without a rule, pictures would be mirrored between machines.
    plane = plane * plane.gather(0, plane.abs().argmax(0, keepdim=True)).sign()
    return Projection((x - centre) @ plane, (y - centre) @ plane, "pca")


def overlay(
    latents: Float[Tensor, "n c"],
    codebook: Float[Tensor, "k c"],
    counts: Int[Tensor, " k"],
    *,
    caption: str,
    method: Method = "auto",
) -> bytes:
    """Draw codes among latents: darker the more often they are used, crosses where they are dead.

    The left panel shows them as they are, the right one only their directions: without a loss on latents,
    nothing ties the norms of codes to those of latents, and where these differ the left panel shows little
    else.
    """
    drawn = _random_codes(len(codebook))
    latents, codes, counts = latents.detach().cpu(), codebook.detach().cpu()[drawn], counts.cpu()[drawn]
    figure, panels = panel_figure(2, (5.7, 5.6))
    plane = project(latents, codes, method=method)
    medians = [torch.linalg.vector_norm(x.cpu().double(), dim=1).median().item() for x in (latents, codes)]
    norms = "median norms {:.3g} of latents, {:.3g} of codes".format(*medians)
    _draw_plane(panels[0], plane, counts, title=f"as they are: {norms}")
    directions = project(normalize(latents), normalize(codes), method=method)
    shades = _draw_plane(panels[1], directions, counts, title="directions: each divided by its norm")
    bar = figure.colorbar(shades, ax=panels, shrink=0.6, label="tokens per code")
    bar.ax.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    number = f"{len(codes):,} of {len(codebook):,}" if len(codes) < len(codebook) else f"{len(codes):,}"
    figure.suptitle(f"{caption}: {number} codes among latents, by {plane.method.upper()}", x=0.004, ha="left")
    _write_legend(figure, panels[0])
    return figure_png(figure)


def norm_scatter(
    codebook: Float[Tensor, "k c"],
    counts: Int[Tensor, " k"],
    *,
    caption: str,
    correlation: float | None = None,
    colour: str = BLUE,
) -> bytes:
    """Draw the norm of each code against its count: do long codes win, and are the dead ones short?

    correlation: correlation of norm and use, to be written in the title.
    colour: that of the quantizer (`lgq.plots.palette`).
    """
    codebook, counts = codebook.detach().cpu(), counts.cpu()
    norms, dead = torch.linalg.vector_norm(codebook.cpu().double(), dim=1), counts == 0
    figure, (panel,) = panel_figure(1, (7.6, 4.4))
    size, live = _marker_size(len(counts)), f"{int((~dead).sum()):,} live codes"
    panel.scatter(norms[~dead], counts[~dead], s=size, color=colour, alpha=0.6, linewidths=0, label=live)
    _draw_dead(panel, norms[dead], counts[dead], size)
    # Logarithmic above 1, with room for dead codes at 0.
    panel.set_yscale("symlog", linthresh=1)
    panel.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    panel.set_ylim(bottom=-0.3)
    panel.set_xlabel("norm of the code")
    panel.set_ylabel("tokens per code")
    remark = "" if correlation is None else f" (correlation {correlation:+.2f})"
    panel.set_title(f"{caption}: norm and use of codes{remark}", loc="left")
    _write_legend(figure, panel)
    return figure_png(figure)


def _random_codes(codes: int) -> Int64[Tensor, " drawn"]:
    """A random sample, so that the share of dead codes in the picture is that of the codebook."""
    if codes <= MOST_PROJECTED_CODES:
        return torch.arange(codes)
    return torch.randperm(codes, generator=torch.Generator().manual_seed(0))[:MOST_PROJECTED_CODES]


def _draw_plane(panel: Axes, plane: Projection, counts: Int[Tensor, " k"], *, title: str) -> PathCollection:
    """Draw one plane; return the live codes, coloured by their counts."""
    panel.set_axis_off()
    panel.set_aspect("equal", adjustable="datalim")
    panel.set_title(title, loc="left", fontsize="medium")
    x, y = plane.latents.unbind(1)
    panel.scatter(x, y, s=6, color=LATENT, linewidths=0, label=f"{len(plane.latents):,} latents")
    size, dead = _marker_size(len(counts)), counts == 0
    live = counts.argsort()[dead.sum() :]
    x, y = plane.codes[live].unbind(1)
    shades = panel.scatter(
        x,
        y,
        s=size,
        c=counts[live],
        cmap=_RARE_TO_FREQUENT,
        norm=LogNorm(vmin=1, vmax=max(2, int(counts.max()))),
        edgecolors=PAPER,
        linewidths=0.3,
        label=f"{len(live):,} live codes",
    )
    x, y = plane.codes[dead].unbind(1)
    _draw_dead(panel, x, y, size)
    return shades


def _draw_dead(panel: Axes, x: Tensor, y: Tensor, size: float) -> None:
    if len(x):
        label, width = f"{len(x):,} dead codes", size**0.5 / 5
        panel.scatter(x, y, s=1.6 * size, color=ORANGE, marker="x", linewidths=width, label=label)


def _marker_size(codes: int) -> float:
    """Size in square points: large for few codes, small enough for thousands side by side."""
    return min(36.0, max(5.0, 20_000 / codes))


def _write_legend(figure: Figure, panel: Axes) -> None:
    """Write the legend below the plot, where it hides no point."""
    handles, labels = panel.get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside lower left", ncols=len(labels), frameon=False, markerscale=1.5
    )
