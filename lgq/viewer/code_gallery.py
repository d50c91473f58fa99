"""The tokenizers of the page, and what there is to know about each of their codes.

That is a code's use, its mean and most typical patches, its place in the plane, and how these grew.

k = codes, m = patches per code, f = side of a patch in pixels, c = channels, n = patches in all,
l = stages or scales with these codes, t = validations.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Float32, Int64, UInt8, UInt32
from torch import Tensor

from lgq.data import ImageDataset, ImageLoader, LoaderSettings
from lgq.data.loader import evenly_spread
from lgq.errors import LGQError
from lgq.progress import Progress, unwatched
from lgq.quantizers import QUANTIZERS, Quantizer
from lgq.quantizers.compositions.composition import Composition
from lgq.tokenizer import Tokenizer
from lgq.training.run_directory import count_codebooks, read_codebooks
from lgq.viewer import NoSuchThing

MOST_CODES = 2**16
"""Largest codebook that the page shows code by code."""
TYPICAL = 8
"""Number of typical patches per code."""
_BATCH = 4
_MOST_STEPS = 32
"""Validations that the time slider shows, evenly spread."""
PlaneMethod = Literal["pca", "umap"]


@dataclass(frozen=True)
class CodeGallery:
    """Codes of one codebook, counted over images: those of a stage, or those that all scales share."""

    counts: Int64[Tensor, "l k"]
    """Number of patches of each code."""
    colours: UInt8[Tensor, "l k 3"]
    """Mean colour of the patches of each code; grey for a dead one."""
    means: UInt8[Tensor, "k f f 3"]
    """Mean patch of each code; grey for a dead one."""
    typical: UInt8[Tensor, "k m f f 3"]
    """Patches nearest to the mean of their code, the nearest first."""
    images: int
    """Number of images that were read."""

    def typical_of(self, code: int) -> UInt8[Tensor, "kept f f 3"]:
        """Return the typical patches of a code; fewer than m where it occurred less often."""
        return self.typical[code, : int(self.counts[:, code].sum().clamp(max=self.typical.shape[1]))]


@dataclass
class Model:
    """A tokenizer on the page."""

    name: str
    tokenizer: Tokenizer
    run: Path | None = None
    """Its run directory, if it has one; snapshots of its codebook are there."""
    galleries: list[CodeGallery] = field(default_factory=list)
    """One per stage, once the study is done; all scales share one."""
    progress: tuple[int, int] = (0, 0)
    """Images of the study that are done, and all."""
    problem: str = ""
    """Why there is no study."""

    def describe(self) -> dict[str, Any]:
        """Return what the page shows of it."""
        tokenizer = self.tokenizer
        quantizer = str(tokenizer.settings["quantizer"])
        return {
            "name": self.name,
            "quantizer": QUANTIZERS[quantizer].label,
            "codes": tokenizer.codebook_size,
            "stages": tokenizer.stages,
            "scales": len(tokenizer.scales),
            "factor": tokenizer.factor,
            "parameters": sum(tokenizer.parameter_counts().values()),
            "history": self.run is not None and count_codebooks(self.run) > 1,
            "fingerprint": tokenizer.fingerprint(),
        }


class History(NamedTuple):
    """Use, norms and places of codes over the validations of a run."""

    steps: list[int]
    counts: UInt32[np.ndarray, "t l k"]
    norms: Float32[np.ndarray, "t k"] | None
    """None where codes are a fixed grid."""
    planes: Float32[np.ndarray, "t k 2"] | None
    """Places in the plane of the last codes; None where snapshots hold no codes."""


def stage_quantizer(tokenizer: Tokenizer, stage: int) -> Quantizer:
    """Return the quantizer of a stage; a tokenizer without stages has stage 0 alone, also for all scales."""
    if stage not in range(tokenizer.stages):
        raise LGQError(f"the stage must lie in 0..{tokenizer.stages - 1}, got {stage}.")
    quantizer = tokenizer.quantizer
    return quantizer.parts[stage] if isinstance(quantizer, Composition) else quantizer


def levels_of(tokenizer: Tokenizer, stage: int) -> slice:
    """Return the stages or scales whose tokens are codes of this stage."""
    return slice(0, tokenizer.levels) if tokenizer.scales else slice(stage, stage + 1)


@torch.no_grad()
def codes_of(tokenizer: Tokenizer, stage: int) -> Float[Tensor, "k c"]:
    """Return the codes of a stage on the CPU; those of a fixed grid, or without a `codebook`, too."""
    quantizer = stage_quantizer(tokenizer, stage)
    codes: Any = getattr(quantizer, "codebook", None)
    if codes is None:
        codes = quantizer.lookup(torch.arange(quantizer.codebook_size, device=tokenizer.device))
    return codes.detach().float().cpu()


def collect_codes(
    tokenizer: Tokenizer,
    data: ImageDataset,
    *,
    image_size: int,
    images: int,
    turn: Callable[[], AbstractContextManager[Any]],
    on_progress: Progress = unwatched,
) -> list[CodeGallery]:
    """Encode up to `images` centre squares, evenly spread over the data; return a gallery per stage.

    turn: context in which a batch is encoded, so that others can use the processor in between.

    A patch of a coarse scale is what its token stands for, reduced to f x f pixels.
    """
    if tokenizer.codebook_size > MOST_CODES:
        raise LGQError(
            f"{tokenizer.codebook_size:,} codes are too many to show one by one: the page shows up to "
            f"{MOST_CODES:,}."
        )
    loader = ImageLoader(data, LoaderSettings(image_size=image_size, batch_size=_BATCH))
    side, read = image_size // tokenizer.factor, 0
    patches: dict[torch.Size, list[Tensor]] = {}
    tokens: list[list[Tensor]] = [[] for _ in range(tokenizer.levels)]
    for batch in loader.one_pass(images):
        with turn():
            encoded = tokenizer.encode(batch.images.to(tokenizer.device)).cpu()
        grids = tokenizer.by_level(encoded, (side, side))
        for level, grid in zip(tokens, grids, strict=True):
            level.append(grid)
        for rows, columns in {grid.shape[1:] for grid in grids}:
            reduced = F.interpolate(
                batch.images, (rows * tokenizer.factor, columns * tokenizer.factor), mode="area"
            )
            shape = torch.Size((rows, columns))
            patches.setdefault(shape, []).append(cut_patches(reduced, tokenizer.factor))
        read += len(batch.images)
        on_progress(batch.position, min(images, len(data)))
    galleries = []
    for stage in range(tokenizer.stages):
        levels = tokens[levels_of(tokenizer, stage)]
        cut = [torch.cat(patches[level[0].shape[1:]]) for level in levels]
        codes = [torch.cat(level).flatten() for level in levels]
        galleries.append(gallery_of(cut, codes, tokenizer.codebook_size, read))
    return galleries


def cut_patches(images: Float[Tensor, "b 3 height width"], factor: int) -> UInt8[Tensor, "n f f 3"]:
    """Cut images in [-1, 1] into patches, in reading order."""
    levels = ((images.clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8)
    grid = levels.unflatten(3, (-1, factor)).unflatten(2, (-1, factor))
    return grid.permute(0, 2, 4, 3, 5, 1).flatten(0, 2)


def gallery_of(
    level_patches: Sequence[UInt8[Tensor, "_ f f 3"]],
    level_codes: Sequence[Int64[Tensor, " _"]],
    codebook_size: int,
    images: int,
) -> CodeGallery:
    """Sort patches by their codes, and by their distance to the mean patch of their code.

    level_patches, level_codes: those of each stage or scale with these codes.
    """
    patches, codes = torch.cat(list(level_patches)), torch.cat(list(level_codes))
    factor = patches.shape[1]
    level_counts = torch.stack([torch.bincount(level, minlength=codebook_size) for level in level_codes])
    counts = level_counts.sum(0)
    flat = patches.flatten(1).float()
    sums = flat.new_zeros(codebook_size, flat.shape[1]).index_add_(0, codes, flat)
    means = sums / counts.clamp_min(1)[:, None]
    distances = (flat - means[codes]).square().sum(1)
    order = distances.argsort(stable=True)
    order = order[codes[order].argsort(stable=True)]
    ranks = torch.arange(len(order)) - (counts.cumsum(0) - counts)[codes[order]]
    kept = ranks < TYPICAL
    typical = torch.full((codebook_size, TYPICAL, factor, factor, 3), 128, dtype=torch.uint8)
    typical[codes[order[kept]], ranks[kept]] = patches[order[kept]]
    means[counts == 0] = 128
    shown = means.round().to(torch.uint8).unflatten(1, (factor, factor, 3))
    colours = torch.stack(
        [_mean_colours(*level) for level in zip(level_patches, level_codes, level_counts, strict=True)]
    )
    return CodeGallery(level_counts, colours, shown, typical, images)


def _mean_colours(
    patches: UInt8[Tensor, "n f f 3"], codes: Int64[Tensor, " n"], counts: Int64[Tensor, " k"]
) -> UInt8[Tensor, "k 3"]:
    sums = torch.zeros(len(counts), 3).index_add_(0, codes, patches.float().mean((1, 2)))
    means = sums / counts.clamp_min(1)[:, None]
    means[counts == 0] = 128
    return means.round().to(torch.uint8)


def history_of(model: Model, stage: int) -> History:
    """Return what became of the codes of a stage over the validations of a run."""
    tokenizer = model.tokenizer
    stage_quantizer(tokenizer, stage)
    snapshots = [] if model.run is None else read_codebooks(model.run)
    shape = (tokenizer.levels, tokenizer.codebook_size)
    snapshots = [x for x in snapshots if x.counts.shape == shape]
    if len(snapshots) < 2:
        raise NoSuchThing(
            f"{model.name} has no history of its codes: trainings write one into codebooks/ of the run "
            "directory, with an entry per validation."
        )
    snapshots = [snapshots[i] for i in evenly_spread(len(snapshots), min(len(snapshots), _MOST_STEPS))]
    levels = levels_of(tokenizer, stage)
    codes = [x.codes[stage].float() for x in snapshots if x.codes is not None]
    norms = [x.norms[stage] for x in snapshots if x.norms is not None]
    return History(
        [x.step for x in snapshots],
        torch.stack([x.counts[levels] for x in snapshots]).numpy().astype(np.uint32),
        torch.stack(norms).numpy().astype(np.float32) if len(norms) == len(snapshots) else None,
        planes_over_time(codes) if len(codes) == len(snapshots) else None,
    )


def plane_of(codes: Float[Tensor, "k c"], method: PlaneMethod) -> Float32[np.ndarray, "k 2"]:
    """Return the codes in the plane."""
    if method == "pca":
        return planes_over_time([codes])[0]
    from lgq.plots.codebooks import project  # imports matplotlib

    # UMAP places all points together; it asks for two latents at least.
    return project(codes[:2], codes, method="umap").codes.numpy().astype(np.float32)


def planes_over_time(codes: Sequence[Float[Tensor, "k c"]]) -> Float32[np.ndarray, "t k 2"]:
    """Return codes in the plane in which the last of them vary most, so that their ways can be seen."""
    from lgq.plots.codebooks import project  # imports matplotlib

    if codes[-1].shape[1] < 2 or len(codes[-1]) < 2:
        flat = [torch.cat([code[:, :1], torch.zeros(len(code), 1)], dim=1) for code in codes]
    else:
        flat = [project(codes[-1], code, method="pca").codes for code in codes]
    return torch.stack(flat).numpy().astype(np.float32)


def colours_of(quantizer: str) -> list[str]:
    """Return the colours of a quantizer on a white and on a dark background."""
    from lgq.plots.palette import styles_of  # imports matplotlib

    style = styles_of([quantizer])[quantizer]
    return [style.light, style.dark]
