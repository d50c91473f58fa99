"""Codebook study (paper, section 5 and its appendix on geometry): how codes are used, what they encode, and
where they lie among the latents.

b = images, s = their side in pixels, h w = tokens along the height and the width, f = pixels per token along
each, k = codes, m = patches kept per code, n = latents, c = channels.

    study = study_codebook(tokenizer, open_dataset("photos"), image_size=256)
    study.metrics["cooccurrence_density"], study.absent, draw_study(study)["atlas"]

Under torchrun each process takes a share of the images, and the result is that of one process.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Float32, Int64, Integer, UInt8
from torch import Tensor

from lgq.checks import require_at_least, require_indices
from lgq.data import DataError, ImageDataset
from lgq.distributed import rank, stack_over_ranks, sum_over_ranks
from lgq.errors import LGQError
from lgq.metrics.code_usage import CodeUsage, learned_codebook
from lgq.metrics.features import FeatureSample
from lgq.metrics.geometry import MAX_PAIRED_CODES, CodeGeometry
from lgq.metrics.reference import evaluation_loader
from lgq.progress import Progress, unwatched
from lgq.quantizers import QUANTIZERS, Quantizer, Residual
from lgq.tokenizer import Tokenizer

if TYPE_CHECKING:
    from lgq.plots.codebooks import Method

_FREE = torch.iinfo(torch.int64).max
_MIN_LATENTS = 2
_ATLAS_CODES = 32
"""Number of codes in the picture of an atlas."""


@dataclass
class CodeAtlas:
    """The first m patches of each code; 3 k m f² bytes (100 MB at k = 16,384, m = 8, f = 16).

    Patches are ordered by the image's number, then in reading order. So the result does not depend on the
    order of batches or processes.
    """

    grid: tuple[int, int]
    places: Int64[Tensor, "k m"]
    """Where each patch appeared, in order; the largest integer marks a free slot."""
    patches: UInt8[Tensor, "k m 3 f f"]

    @classmethod
    def empty(cls, codebook_size: int, *, grid: tuple[int, int], patch: int, keep: int = 8) -> "CodeAtlas":
        """patch: pixels per token along each side; keep: patches per code."""
        require_at_least(1, codebook_size=codebook_size, patch=patch, keep=keep)
        places = torch.full((codebook_size, keep), _FREE)
        patches = torch.zeros(codebook_size, keep, 3, patch, patch, dtype=torch.uint8)
        return cls(grid, places, patches)

    def update(
        self,
        images: Float[Tensor, "b 3 height width"],
        tokens: Integer[Tensor, "b h w"],
        numbers: Integer[Tensor, " b"],
    ) -> None:
        """Add a batch; numbers: place of each image in the data set, each given once."""
        patch, (h, w) = self.patches.shape[-1], self.grid
        expected = (len(images), 3, h * patch, w * patch), (len(images), h, w)
        if (tuple(images.shape), tuple(tokens.shape)) != expected:
            shapes = f"{tuple(images.shape)} and {tuple(tokens.shape)}"
            raise ValueError(f"expected images and tokens of shapes {expected}, got {shapes}.")
        tokens = require_indices(tokens, len(self.places)).cpu()
        codes, positions = tokens.flatten(), torch.arange(h * w)
        places = (numbers.cpu().long()[:, None] * len(positions) + positions).flatten()
        early = (places < self.places[codes, -1]).nonzero().squeeze(1)
        self._keep_first(codes[early], places[early], _cut_patches(images, patch, early))

    def _keep_first(
        self, codes: Int64[Tensor, " n"], places: Int64[Tensor, " n"], patches: UInt8[Tensor, "n 3 f f"]
    ) -> None:
        """Keep the first m patches per code among those in the atlas and the new ones."""
        touched, keep = codes.unique(), self.places.shape[1]
        codes = torch.cat([touched.repeat_interleave(keep), codes])
        places = torch.cat([self.places[touched].flatten(), places])
        patches = torch.cat([self.patches[touched].flatten(0, 1), patches])
        order = places.argsort(stable=True)
        order = order[codes[order].argsort(stable=True)]
        codes = codes[order]
        column = torch.arange(len(codes)) - torch.searchsorted(codes, codes)
        kept = column < keep
        self.places[codes[kept], column[kept]] = places[order[kept]]
        self.patches[codes[kept], column[kept]] = patches[order[kept]]

    def over_ranks(self) -> "CodeAtlas":
        """Return the atlas of all processes."""
        keep = self.places.shape[1]
        all_places = stack_over_ranks(self.places).permute(1, 0, 2).flatten(1)
        places, source = all_places.sort(dim=1, stable=True)
        places, source = places[:, :keep], source[:, :keep]
        local = (source // keep == rank()) & (places != _FREE)
        patches = torch.zeros_like(self.patches)
        patches[local] = self.patches[local.nonzero()[:, 0], source[local] % keep]
        return CodeAtlas(self.grid, places, sum_over_ranks(patches))

    def patches_of(self, code: int) -> UInt8[Tensor, "kept 3 f f"]:
        """Return the patches of a code in order of appearance; fewer than m where it occurred less often."""
        return self.patches[code, : int((self.places[code] != _FREE).sum())]


def _cut_patches(
    images: Float[Tensor, "b 3 height width"], size: int, chosen: Int64[Tensor, " n"]
) -> UInt8[Tensor, "n 3 f f"]:
    """Cut out the patches of these numbers, counted in reading order over all images."""
    grid = images.detach().unflatten(3, (-1, size)).unflatten(2, (-1, size))
    patches = grid.permute(0, 2, 4, 1, 3, 5).flatten(0, 2)[chosen.to(images.device)]
    return ((patches.float().clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8).cpu()


@dataclass(frozen=True)
class CodebookStudy:
    """Results of `study_codebook`, over all processes."""

    quantizer: str
    """Name in `lgq.quantizers.QUANTIZERS`."""
    stage: int
    """Stage of a residual tokenizer, counted from 0."""
    stages: int
    """Number of stages of the tokenizer."""
    images: int
    """Number of images that were read."""
    metrics: dict[str, float]
    """Values of `CodeGeometry.summary`, and of `CodeUsage.norm_summary` where codes are learned."""
    absent: dict[str, str]
    """Metrics and plots that are missing, each with the reason."""
    usage: CodeUsage
    atlas: CodeAtlas
    codebook: Float32[Tensor, "k c"] | None
    """None where the codes are a fixed grid."""
    latents: Float32[Tensor, "n c"] | None
    """Random sample of the vectors that were quantized; None where they cannot be plotted with the codes."""

    def record(self) -> dict[str, Any]:
        """Return the part of a results record (`lgq.results`)."""
        reported = ("quantizer", "stage", "stages", "images", "metrics", "absent")
        return {name: getattr(self, name) for name in reported}


def study_codebook(
    tokenizer: Tokenizer,
    data: ImageDataset,
    *,
    image_size: int,
    stage: int = 0,
    batch_size: int = 32,
    workers: int = 0,
    latents: int = 2000,
    keep: int = 8,
    on_progress: Progress = unwatched,
) -> CodebookStudy:
    """Encode centre crops and collect usage, geometry, an atlas and latents; the tokenizer is not changed.

    stage: stage of a residual tokenizer; its latents are what the earlier stages left over.
    latents: largest number of vectors in the sample; the images' numbers decide which.
    keep: patches per code in the atlas.
    """
    require_at_least(_MIN_LATENTS, latents=latents)
    quantizer, side = _quantizer_of(tokenizer, stage), _tokens_per_side(tokenizer, image_size)
    codebook_size, grid = quantizer.codebook_size, (side, side)
    geometry = CodeGeometry.empty(codebook_size, grid=grid)
    atlas = CodeAtlas.empty(codebook_size, grid=grid, patch=tokenizer.factor, keep=keep)
    plottable = quantizer.learned_codes and quantizer.dim > 1
    sample = FeatureSample.empty(latents, dim=quantizer.dim) if plottable else None
    loader = evaluation_loader(
        data, tokenizer.device, image_size=image_size, batch_size=batch_size, workers=workers
    )
    for batch in loader.one_pass(may_be_empty=True):
        images = batch.images.to(tokenizer.device, non_blocking=True)
        vectors, tokens = _quantize(tokenizer, images, stage)
        geometry.update(tokens)
        atlas.update(images, tokens, batch.indices)
        if sample is not None:
            places = batch.indices[:, None] * side * side + torch.arange(side * side)
            sample.update(vectors.flatten(0, 2), places.flatten())
        on_progress(batch.position, len(data))
    geometry, atlas, sample = geometry.over_ranks(), atlas.over_ranks(), sample and sample.over_ranks()
    if not geometry.usage.tokens:
        raise DataError(f"none of {len(data):,} images can be read in {data!r}.")
    codebook = learned_codebook(quantizer)
    vectors_kept = sample.features if sample is not None and len(sample.features) >= _MIN_LATENTS else None
    metrics = geometry.summary() | ({} if codebook is None else geometry.usage.norm_summary(codebook))
    present = metrics.keys() | (set() if vectors_kept is None else {"overlay"})
    return CodebookStudy(
        quantizer=str(tokenizer.settings["quantizer"]),
        stage=stage,
        stages=tokenizer.stages,
        images=geometry.usage.tokens // side**2,
        metrics=metrics,
        absent={name: reason for name, reason in _reasons(quantizer).items() if name not in present},
        usage=geometry.usage,
        atlas=atlas,
        codebook=codebook,
        latents=vectors_kept,
    )


def draw_study(study: CodebookStudy, *, method: "Method" = "auto") -> dict[str, bytes]:
    """Draw a study, as PNG by the stem of a file: usage and atlas; norms and overlay of learned codes.

    method: projection of the overlay to the plane.
    """
    # Imported here: matplotlib takes a second to load.
    from lgq.plots.codebooks import atlas_sheet, norm_scatter, overlay
    from lgq.plots.curves import usage_histogram

    caption, counts = QUANTIZERS[study.quantizer].label, study.usage.counts
    if study.stages > 1:
        caption = f"{caption}, stage {study.stage + 1} of {study.stages}"
    by_frequency = counts.argsort(descending=True, stable=True)[:_ATLAS_CODES].tolist()
    patches = {code: study.atlas.patches_of(code) for code in by_frequency if counts[code]}
    pictures = {
        "usage": usage_histogram(counts, caption=caption),
        "atlas": atlas_sheet(patches, counts, caption=caption),
    }
    if study.codebook is not None:
        correlation = study.metrics.get("norm_correlation")
        pictures["norms"] = norm_scatter(study.codebook, counts, caption=caption, correlation=correlation)
    if study.codebook is not None and study.latents is not None:
        pictures["overlay"] = overlay(study.latents, study.codebook, counts, caption=caption, method=method)
    return pictures


def _tokens_per_side(tokenizer: Tokenizer, image_size: int) -> int:
    side, rest = divmod(image_size, tokenizer.factor)
    if side < 1 or rest:
        raise LGQError(f"image_size must be a multiple of f = {tokenizer.factor}, got {image_size}.")
    return side


def _quantizer_of(tokenizer: Tokenizer, stage: int) -> Quantizer:
    if stage not in range(tokenizer.stages):
        raise LGQError(f"stage must lie in 0..{tokenizer.stages - 1}, the tokenizer's stages, got {stage}.")
    quantizer = tokenizer.quantizer
    chosen: Any = quantizer.stages[stage] if isinstance(quantizer, Residual) else quantizer
    return chosen


@torch.no_grad()
def _quantize(
    tokenizer: Tokenizer, images: Float[Tensor, "b 3 s s"], stage: int
) -> tuple[Float[Tensor, "b h w c"], Int64[Tensor, "b h w"]]:
    """Return the vectors that a stage quantizes, and their tokens; the same in train and in eval mode."""
    latents = tokenizer.encoder(images.to(next(tokenizer.parameters()).dtype))
    tokens = tokenizer.quantizer.encode(latents)
    if tokenizer.stages == 1:
        return latents.movedim(1, -1), tokens
    if stage:
        latents = latents - tokenizer.quantizer.decode(tokens[..., :stage])
    return latents.movedim(1, -1), tokens[..., stage]


def _reasons(quantizer: Quantizer) -> dict[str, str]:
    """Why each of these is missing, if it is."""
    codes, learned = quantizer.codebook_size, quantizer.learned_codes
    fixed = f"the codes of {type(quantizer).__name__} are a fixed grid, which training does not move."
    return {
        "cooccurrence_density": f"pairs of {codes:,} codes would take {codes**2 / 2**33:.1f} GiB of bits: "
        f"they are counted up to {MAX_PAIRED_CODES:,} codes.",
        "mutual_information": "images of one token have no pairs of positions: take larger images.",
        "norm_correlation": "all codes have the same norm, or the same count." if learned else fixed,
        "overlay": "the plot needs 2 latents of 2 channels, or more." if learned else fixed,
    }
