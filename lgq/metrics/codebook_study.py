"""Codebook study (paper, section 5 and its appendix on geometry): how codes are used, what they encode, and
where they lie among the latents.

b = images, s = their side in pixels, h w = tokens along the height and the width, f = pixels per token along
each, k = codes, m = patches per code, n = latents, c = channels.

    study = study_codebook(tokenizer, open_dataset("photos"), image_size=256)
    study.metrics["cooccurrence_density"], study.absent, draw_study(study)["atlas"]

Under torchrun each process takes a share of the images, and the result is that of one process.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Float32, Int64, Integer, UInt8
from torch import Tensor

from lgq.checks import require_indices
from lgq.data import DataError, ImageDataset, ImageLoader, LoaderSettings
from lgq.data.loader import loaded_onto
from lgq.distributed import rank, stack_over_ranks, sum_over_ranks
from lgq.errors import LGQError
from lgq.metrics.code_usage import CodeUsage, learned_codebook
from lgq.metrics.features import FeatureSample
from lgq.metrics.geometry import MAX_PAIRED_CODES, CoOccurrence, PositionPairs
from lgq.progress import Progress, unwatched
from lgq.quantizers import QUANTIZERS, Quantizer, Residual
from lgq.tokenizer import Tokenizer

if TYPE_CHECKING:
    from lgq.plots.codebooks import Method

_FREE = torch.iinfo(torch.int64).max
_LATENTS = 2000
"""Largest number of vectors in the sample for the overlay."""
_ATLAS_CODES, _ATLAS_PATCHES = 32, 8
"""Number of codes in the picture of an atlas, and of patches per code."""


@dataclass
class CodeAtlas:
    """The first m patches of each code; 3 k m f² bytes (100 MB at k = 16,384, m = 8, f = 16).

    Patches are ordered by the image's number, then in reading order. So the result does not depend on the
    order of batches or processes.
    """

    places: Int64[Tensor, "k m"]
    """Position of each patch in the data set, in ascending order; the largest integer marks a free slot."""
    patches: UInt8[Tensor, "k m 3 f f"]

    @classmethod
    def empty(cls, codebook_size: int, *, factor: int, patches: int = _ATLAS_PATCHES) -> "CodeAtlas":
        """factor: pixels per token along each side; patches: their number per code."""
        places = torch.full((codebook_size, patches), _FREE)
        return cls(places, torch.zeros(codebook_size, patches, 3, factor, factor, dtype=torch.uint8))

    def update(
        self,
        images: Float[Tensor, "b 3 height width"],
        tokens: Integer[Tensor, "b h w"],
        numbers: Integer[Tensor, " b"],
    ) -> None:
        """Add a batch; numbers: place of each image in the data set, each given once."""
        tokens = require_indices(tokens, len(self.places)).cpu()
        codes, positions = tokens.flatten(), torch.arange(tokens[0].numel())
        places = (numbers.cpu().long()[:, None] * len(positions) + positions).flatten()
        early = (places < self.places[codes, -1]).nonzero().squeeze(1)
        self._keep_first(codes[early], places[early], self._cut_patches(images, early))

    def _cut_patches(
        self, images: Float[Tensor, "b 3 height width"], chosen: Int64[Tensor, " n"]
    ) -> UInt8[Tensor, "n 3 f f"]:
        """Cut out the patches of these numbers, counted in reading order over all images."""
        factor = self.patches.shape[-1]
        grid = images.detach().unflatten(3, (-1, factor)).unflatten(2, (-1, factor))
        patches = grid.permute(0, 2, 4, 1, 3, 5).flatten(0, 2)[chosen.to(images.device)]
        return ((patches.float().clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8).cpu()

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
        return CodeAtlas(places, sum_over_ranks(patches))

    def patches_of(self, code: int) -> UInt8[Tensor, "kept 3 f f"]:
        """Return the patches of a code in order of appearance; fewer than m where it occurred less often."""
        return self.patches[code, : int((self.places[code] != _FREE).sum())]


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
    """Usage, co-occurrence and mutual information of codes, and norms where codes are learned."""
    absent: dict[str, str]
    """Metrics and plots that are missing, each with the reason."""
    usage: CodeUsage
    atlas: CodeAtlas
    codebook: Float32[Tensor, "k c"] | None
    """None where the codes are a fixed grid, or the quantizer has no `codebook`."""
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
    on_progress: Progress = unwatched,
) -> CodebookStudy:
    """Encode centre crops and collect usage, geometry, an atlas and latents; the tokenizer is not changed.

    stage: stage of a residual tokenizer; its latents are what the earlier stages left over.
    """
    quantizer, tokens_per_image = _quantizer_of(tokenizer, stage), (image_size // tokenizer.factor) ** 2
    codes, codebook = quantizer.codebook_size, learned_codebook(quantizer)
    plottable = codebook is not None and quantizer.dim > 1
    usage, atlas = CodeUsage.of(quantizer), CodeAtlas.empty(codes, factor=tokenizer.factor)
    pairs = CoOccurrence.empty(codes) if codes <= MAX_PAIRED_CODES else None
    positions = PositionPairs.empty(tokens_per_image) if tokens_per_image > 1 else None
    sample = FeatureSample.empty(_LATENTS, dim=quantizer.dim) if plottable else None
    settings = LoaderSettings.of_process(
        tokenizer.device, image_size=image_size, batch_size=batch_size, workers=workers
    )
    for batch in ImageLoader(data, settings).one_pass(may_be_empty=True):
        images = loaded_onto(tokenizer.device, batch.images)
        vectors, tokens = _quantize(tokenizer, images, stage)
        for counts in (usage, pairs, positions):
            if counts is not None:
                counts.update(tokens)
        atlas.update(images, tokens, batch.indices)
        if sample is not None:
            places = batch.indices[:, None] * tokens_per_image + torch.arange(tokens_per_image)
            sample.update(vectors.flatten(0, 2), places.flatten())
        on_progress(batch.position, len(data))
    usage, atlas, sample = usage.over_ranks(), atlas.over_ranks(), sample and sample.over_ranks()
    if not usage.tokens:
        raise DataError(f"none of {len(data):,} images can be read in {data}.")
    metrics = usage.summary()
    if pairs is not None:
        metrics["cooccurrence_density"] = pairs.over_ranks().density
    if positions is not None:
        metrics |= positions.over_ranks().summary()
    if codebook is not None:
        metrics |= usage.norm_summary(codebook)
    latents = sample.features if sample is not None and len(sample.features) > 1 else None
    present = metrics.keys() | (set() if latents is None else {"overlay"})
    reasons = _reasons(quantizer, codebook)
    return CodebookStudy(
        quantizer=str(tokenizer.settings["quantizer"]),
        stage=stage,
        stages=tokenizer.stages,
        images=usage.tokens // tokens_per_image,
        metrics=metrics,
        absent={name: reason for name, reason in reasons.items() if name not in present},
        usage=usage,
        atlas=atlas,
        codebook=codebook,
        latents=latents,
    )


def draw_study(study: CodebookStudy, *, method: "Method" = "auto") -> dict[str, bytes]:
    """Draw a study, as PNG by the stem of a file: usage and atlas; norms and overlay of learned codes.

    method: projection of the overlay to the plane.
    """
    # Imported here: matplotlib takes a second to load.
    from lgq.plots.codebooks import norm_scatter, overlay
    from lgq.plots.curves import usage_histogram
    from lgq.plots.palette import colour_of
    from lgq.plots.pictures import atlas_sheet

    caption, counts = QUANTIZERS[study.quantizer].label, study.usage.counts
    colour = colour_of(study.quantizer)
    if study.stages > 1:
        caption = f"{caption}, stage {study.stage + 1} of {study.stages}"
    by_frequency = counts.argsort(descending=True, stable=True)[:_ATLAS_CODES].tolist()
    patches = {code: study.atlas.patches_of(code) for code in by_frequency if counts[code]}
    pictures = {
        "usage": usage_histogram(counts, caption=caption, colour=colour),
        "atlas": atlas_sheet(patches, counts, caption=caption),
    }
    if study.codebook is not None:
        correlation = study.metrics.get("norm_correlation")
        pictures["norms"] = norm_scatter(
            study.codebook, counts, caption=caption, correlation=correlation, colour=colour
        )
    if study.codebook is not None and study.latents is not None:
        pictures["overlay"] = overlay(study.latents, study.codebook, counts, caption=caption, method=method)
    return pictures


def _quantizer_of(tokenizer: Tokenizer, stage: int) -> Quantizer:
    if tokenizer.scales:
        raise LGQError("the study of a codebook knows stages, not `scales`: leave out `geometry`.")
    if stage not in range(tokenizer.stages):
        raise LGQError(f"`stage` must lie in 0..{tokenizer.stages - 1}, the tokenizer's stages, got {stage}.")
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


def _reasons(quantizer: Quantizer, codebook: Tensor | None) -> dict[str, str]:
    """Why each of these is missing, if it is."""
    codes, learned, name = quantizer.codebook_size, codebook is not None, type(quantizer).__name__
    fixed = f"the codes of {name} are a fixed grid, which training does not move."
    if quantizer.learned_codes:
        fixed = f"{name} has no `codebook`, the attribute with one row per code that training moves."
    return {
        "cooccurrence_density": f"pairs of {codes:,} codes would take {codes**2 / 2**33:.1f} GiB of bits: "
        f"they are counted up to {MAX_PAIRED_CODES:,} codes.",
        "mutual_information": "images of one token have no pairs of positions: take larger images.",
        "norm_correlation": "all codes have the same norm, or the same count." if learned else fixed,
        "overlay": "the plot needs 2 latents of 2 channels, or more." if learned else fixed,
    }
