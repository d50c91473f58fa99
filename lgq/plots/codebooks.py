"""Codes among latents in the plane: UMAP (McInnes et al. 2018) where it is installed, else PCA.

n = latents, k = codes, d = channels.

Pictures of a studied codebook, as PNG: codes among latents, their use, their norms, what they stand for.

n = latents, k = codes, c = channels.

    for stem, png in draw_study(study).items():
        replace_file(folder / f"{stem}.png", png)
"""

import importlib
import math
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
from PIL import Image
from torch import Tensor
from torch.nn.functional import normalize

from lgq.checks import require_at_least, require_one_of
from lgq.errors import LGQError
from lgq.metrics.code_usage import CodeUsage
from lgq.metrics.codebook_study import AtlasEntry, CodeAtlas, CodebookStudy
from lgq.plots.canvas import (
    BLUE,
    DOTS_PER_INCH,
    FAINT,
    GRID,
    LINE,
    MARGIN,
    ORANGE,
    PAPER,
    SMALL_TEXT,
    blank_sheet,
    figure_png,
    sheet_png,
    write,
)
from lgq.plots.curves import usage_histogram
from lgq.quantizers import QUANTIZERS

Used = Literal["umap", "pca"]
Method = Literal["auto", "umap", "pca"]


@dataclass(frozen=True)
class Projection:
    """Points of a picture, and how they were made."""

    latents: Float64[Tensor, "n 2"]
    codes: Float64[Tensor, "k 2"]
    method: Used


def project(
    latents: Float[Tensor, "n d"],
    codes: Float[Tensor, "k d"],
    *,
    method: Method = "auto",
    seed: int = 0,
) -> Projection:
    """Latents and codes in one plane; the same for the same seed.

    method: "auto" takes UMAP where the package umap-learn is there, else PCA, and the result says which.
    """
    require_one_of(get_args(Method), method=method)
    require_at_least(2, latents=len(latents), channels=latents.shape[1])
    if latents.shape[1] != codes.shape[1]:
        sizes = f"{latents.shape[1]} and {codes.shape[1]}"
        raise LGQError(f"latents and codes need the same channels to share a plane, got {sizes}.")
    x, y = latents.detach().cpu().double(), codes.detach().cpu().double()
    umap = None if method == "pca" else _import_umap()
    if umap is not None:
        return Projection(*_by_umap(umap, x, y, seed), "umap")
    if method == "umap":
        raise LGQError("UMAP needs the package umap-learn: install lgq[umap], or choose 'pca'.")
    return Projection(*_by_pca(x, y), "pca")


def _import_umap() -> Any:
    """The package, or None where it is not there."""
    try:
        # It warns of a missing TensorFlow, which nothing here needs.
        with warnings.catch_warnings(action="ignore", category=ImportWarning):
            return importlib.import_module("umap")
    except ImportError:
        return None


def _by_pca(
    x: Float64[Tensor, "n d"], y: Float64[Tensor, "k d"]
) -> tuple[Float64[Tensor, "n 2"], Float64[Tensor, "k 2"]]:
    """On the two directions in which the latents vary most."""
    centre = x.mean(0)
    _, vectors = torch.linalg.eigh((x - centre).T @ (x - centre))
    plane = vectors[:, -2:].flip(1)
    # Directions have no sign of their own: without a rule, machines would mirror each other's pictures.
    largest = plane.gather(0, plane.abs().argmax(0, keepdim=True))
    plane = plane * largest.sign()
    return (x - centre) @ plane, (y - centre) @ plane


def _by_umap(
    umap: Any, x: Float64[Tensor, "n d"], y: Float64[Tensor, "k d"], seed: int
) -> tuple[Float64[Tensor, "n 2"], Float64[Tensor, "k 2"]]:
    """Of latents and codes together, so that neither is squeezed into the other's picture."""
    points = torch.cat([x, y]).numpy()
    neighbours = min(15, len(points) - 1)
    # One thread, as threads race and the seed would not decide.
    plane = umap.UMAP(n_neighbors=neighbours, random_state=seed, n_jobs=1).fit_transform(points)
    both = torch.from_numpy(plane).double()
    return both[: len(x)], both[len(x) :]


LATENT = "#c4c4c4"
MOST_PROJECTED_CODES = 2048
"""Of larger codebooks, so many random codes are drawn among the latents."""

_RARE_TO_FREQUENT = LinearSegmentedColormap.from_list("usage", ["#a5d5f2", BLUE, "#003454"])
_COLUMNS, _PATCH_SIDE, _SPACE, _LABEL = 2, 48, 3, 150


def draw_study(study: CodebookStudy, *, method: Method = "auto") -> dict[str, bytes]:
    """By the stem of a file: usage, atlas, and where codes were learned, norms and overlay."""
    whose, counts = _whose(study), study.usage.counts
    drawn = {
        "usage": usage_histogram(counts, caption=whose),
        "atlas": atlas_sheet(study.atlas, caption=whose),
    }
    if study.codebook is not None:
        drawn["norms"] = norm_scatter(study.codebook, counts, caption=whose)
    if study.codebook is not None and study.latents is not None:
        drawn["overlay"] = overlay(study.latents, study.codebook, counts, caption=whose, method=method)
    return drawn


def overlay(
    latents: Float[Tensor, "n c"],
    codebook: Float[Tensor, "k c"],
    counts: Int[Tensor, " k"],
    *,
    caption: str,
    method: Method = "auto",
) -> bytes:
    """Codes among latents in the plane: darker the more they are used, crossed where they never are.

    Once as they are, and once by direction alone: without a loss on latents, nothing ties the size of
    codes to that of latents, and where these differ, the first plane shows little else.
    """
    chosen = _random_codes(len(codebook))
    latents, codes, counts = latents.detach().cpu(), codebook.detach().cpu()[chosen], counts.cpu()[chosen]
    figure, panels = _figure(11.4, 5.6, panels=2)
    whole = project(latents, codes, method=method)
    _draw_plane(panels[0], whole, counts, title=f"as they are: {_median_norms(latents, codes)}")
    directions = project(normalize(latents), normalize(codes), method=method)
    shades = _draw_plane(panels[1], directions, counts, title="directions: each divided by its norm")
    _draw_shades(figure, panels, shades)
    drawn = f"{len(chosen):,} of {len(codebook):,}" if len(chosen) < len(codebook) else f"{len(codebook):,}"
    figure.suptitle(f"{caption}: {drawn} codes among latents, by {whole.method.upper()}", x=0.004, ha="left")
    _write_legend(figure, panels[0])
    return figure_png(figure)


def norm_scatter(codebook: Float[Tensor, "k c"], counts: Int[Tensor, " k"], *, caption: str) -> bytes:
    """Norm of each code against its count: do codes win by size, and are the dead ones the short ones?"""
    codebook, counts = codebook.detach().cpu(), counts.cpu()
    norms, dead = torch.linalg.vector_norm(codebook.double(), dim=1), counts == 0
    figure, (panel,) = _figure(7.6, 4.4)
    size, live = _marker_size(len(counts)), f"{int((~dead).sum()):,} live codes"
    panel.scatter(norms[~dead], counts[~dead], s=size, color=BLUE, alpha=0.6, linewidths=0, label=live)
    _draw_dead(panel, norms[dead], counts[dead], size)
    _draw_axes(panel, x="norm of the code", y="tokens that are the code")
    panel.set_title(f"{caption}: norm and use of codes{_correlation(codebook, counts)}", loc="left")
    _write_legend(figure, panel)
    return figure_png(figure)


def atlas_sheet(atlas: CodeAtlas, *, caption: str, codes: int = 32) -> bytes:
    """The most frequent codes, each with its count and the patches that it was first seen as."""
    require_at_least(1, codes=codes)
    entries = atlas.most_frequent(codes)
    keep, patch = atlas.patches.shape[1], atlas.patches.shape[-1]
    scale = -(-_PATCH_SIDE // patch)
    step, rows = scale * patch + _SPACE, -(-len(entries) // _COLUMNS)
    across = _LABEL + keep * step
    width = _COLUMNS * (across + MARGIN) + MARGIN
    title = f"{caption}: what the {len(entries)} most frequent codes stand for"
    sheet = blank_sheet(width - 2 * MARGIN, rows * step, title)
    for i, entry in enumerate(entries):
        left = MARGIN + i // rows * (across + MARGIN)
        top = MARGIN + LINE + i % rows * step
        _draw_entry(sheet, (left, top), entry, scale, share=entry.count / atlas.usage.tokens)
    return sheet_png(sheet)


def _whose(study: CodebookStudy) -> str:
    label = QUANTIZERS[study.quantizer].label
    return label if study.stages == 1 else f"{label}, stage {study.stage + 1} of {study.stages}"


def _random_codes(codes: int) -> Int64[Tensor, " chosen"]:
    """A fair sample, so that the share of dead codes in the picture is that of the codebook."""
    if codes <= MOST_PROJECTED_CODES:
        return torch.arange(codes)
    return torch.randperm(codes, generator=torch.Generator().manual_seed(0))[:MOST_PROJECTED_CODES]


def _median_norms(latents: Float[Tensor, "n c"], codes: Float[Tensor, "k c"]) -> str:
    medians = [torch.linalg.vector_norm(x.double(), dim=1).median().item() for x in (latents, codes)]
    return "median norms {:.3g} of latents, {:.3g} of codes".format(*medians)


def _draw_plane(panel: Axes, plane: Projection, counts: Int[Tensor, " k"], *, title: str) -> PathCollection:
    """Returns the live codes, whose colours are their counts."""
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


def _draw_shades(figure: Figure, panels: list[Axes], shades: PathCollection) -> None:
    bar = figure.colorbar(shades, ax=panels, shrink=0.6, label="tokens that are the code")
    bar.ax.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))


def _draw_dead(panel: Axes, x: Tensor, y: Tensor, size: float) -> None:
    if len(x):
        label, width = f"{len(x):,} dead codes", size**0.5 / 5
        panel.scatter(x, y, s=1.6 * size, color=ORANGE, marker="x", linewidths=width, label=label)


def _draw_axes(panel: Axes, *, x: str, y: str) -> None:
    """Counts by their logarithm, with room for 0 below."""
    panel.spines[["top", "right"]].set_visible(False)
    panel.grid(color=GRID, linewidth=0.8)
    panel.set_axisbelow(True)
    panel.set_yscale("symlog", linthresh=1)
    panel.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    panel.set_ylim(bottom=-0.3)
    panel.set_xlabel(x)
    panel.set_ylabel(y)


def _correlation(codebook: Float[Tensor, "k c"], counts: Int[Tensor, " k"]) -> str:
    value = CodeUsage(counts).norm_correlation(codebook)
    return "" if math.isnan(value) else f" (correlation {value:+.2f})"


def _marker_size(codes: int) -> float:
    """In square points: a few codes are large, thousands still lie beside each other."""
    return min(36.0, max(5.0, 20_000 / codes))


def _figure(width: float, height: float, *, panels: int = 1) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(width, height), dpi=DOTS_PER_INCH, layout="constrained")
    axes: list[Axes] = list(figure.subplots(1, panels, squeeze=False, gridspec_kw={"wspace": 0.1})[0])
    return figure, axes


def _write_legend(figure: Figure, panel: Axes) -> None:
    """Below the plot, where it hides no point."""
    handles, labels = panel.get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside lower left", ncols=len(labels), frameon=False, markerscale=1.5
    )


def _draw_entry(
    sheet: Image.Image, corner: tuple[int, int], entry: AtlasEntry, scale: int, *, share: float
) -> None:
    left, top = corner
    write(sheet, (left, top + 4), f"code {entry.code:,}", size=SMALL_TEXT)
    below = (left, top + SMALL_TEXT + 9)
    write(sheet, below, f"{entry.count:,} tokens, {share:.2%}", size=SMALL_TEXT, colour=FAINT)
    for i, patch in enumerate(entry.patches):
        picture = Image.fromarray(patch.permute(1, 2, 0).contiguous().numpy())
        side = scale * picture.width
        enlarged = picture.resize((side, side), Image.Resampling.NEAREST)
        sheet.paste(enlarged, (left + _LABEL + i * (side + _SPACE), top))
