"""What codes stand for: for each code, the first patches of images that were encoded by it.

b = images, h w = tokens along the height and the width, f = pixels a token along each, k = codes,
m = patches kept a code.

    atlas = CodeAtlas.of(1024, grid=(8, 8), patch=8, keep=16)
    atlas.update(images, tokens, numbers)                # per batch
    for entry in atlas.over_ranks().most_frequent(64): ...

The study of a codebook (paper, section 5 and its appendix on geometry): how codes are used, and where.

b = images, s = their side in pixels, h w = tokens along the height and the width, k = codes, n = latents,
c = channels.

    study = study_codebook(tokenizer, open_dataset("photos"), image_size=256)
    study.metrics["cooccurrence_density"], study.absent, study.atlas.most_frequent(32)

Under torchrun each process takes a share, and the result is that of one process.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Float32, Int64, Integer, UInt8
from torch import Tensor

from lgq.checks import require_at_least, require_indices
from lgq.data import DataError, ImageDataset, ImageLoader
from lgq.distributed import rank, stack_over_ranks, sum_over_ranks
from lgq.errors import LGQError
from lgq.metrics.code_usage import CodeUsage, learned_codebook
from lgq.metrics.features import FeatureSample
from lgq.metrics.geometry import CoOccurrence, PositionPairs
from lgq.metrics.reference import share_of_images
from lgq.progress import Progress, unwatched
from lgq.quantizers import QUANTIZERS, Quantizer, Residual
from lgq.tokenizer import Tokenizer

if TYPE_CHECKING:
    from lgq.plots.codebooks import Method

_FREE = torch.iinfo(torch.int64).max


@dataclass(frozen=True)
class AtlasEntry:
    """A code and what it stands for."""

    code: int
    count: int
    """Tokens that are this code."""
    patches: UInt8[Tensor, "m 3 f f"]
    """In order of appearance, fewer than m where the code occurred less often."""


@dataclass
class CodeAtlas:
    """Streaming; takes 3 k m f² bytes at most (100 MB at k = 16,384, m = 8, f = 16), claimed as codes occur.

    Appearances are ordered by the image's number, then in reading order. So the result does not depend
    on the order of batches or processes.
    """

    grid: tuple[int, int]
    usage: CodeUsage
    places: Int64[Tensor, "k m"]
    """Where each patch appeared, in order; the largest integer marks a free slot."""
    patches: UInt8[Tensor, "k m 3 f f"]

    @classmethod
    def of(cls, codebook_size: int, *, grid: tuple[int, int], patch: int, keep: int = 8) -> "CodeAtlas":
        """patch: pixels a token along each side; keep: patches a code."""
        require_at_least(1, codebook_size=codebook_size, patch=patch, keep=keep)
        places = torch.full((codebook_size, keep), _FREE)
        patches = torch.zeros(codebook_size, keep, 3, patch, patch, dtype=torch.uint8)
        return cls(grid, CodeUsage.of(codebook_size), places, patches)

    def update(
        self,
        images: Float[Tensor, "b 3 height width"],
        tokens: Integer[Tensor, "b h w"],
        numbers: Integer[Tensor, " b"],
    ) -> None:
        """numbers: place of each image in the data set, each given once."""
        tokens = self._checked(images, tokens)
        self.usage.update(tokens)
        codes = tokens.flatten()
        positions = torch.arange(self.grid[0] * self.grid[1])
        places = (numbers.cpu().long()[:, None] * len(positions) + positions).flatten()
        early = (places < self.places[codes, -1]).nonzero().squeeze(1)
        patches = _patches(images, self.patches.shape[-1], early)
        self._offer(codes[early], places[early], patches)

    def _checked(
        self, images: Float[Tensor, "b 3 height width"], tokens: Integer[Tensor, "b h w"]
    ) -> Int64[Tensor, "b h w"]:
        patch, (h, w) = self.patches.shape[-1], self.grid
        expected = (len(images), 3, h * patch, w * patch), (len(images), h, w)
        if (tuple(images.shape), tuple(tokens.shape)) != expected:
            shapes = f"{tuple(images.shape)} and {tuple(tokens.shape)}"
            raise LGQError(f"expected images and tokens of shapes {expected}, got {shapes}.")
        return require_indices(tokens, len(self.places)).cpu()

    def _offer(
        self, codes: Int64[Tensor, " n"], places: Int64[Tensor, " n"], patches: UInt8[Tensor, "n 3 f f"]
    ) -> None:
        """Keep the earliest m patches a code, of those that are there and those that come."""
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

    def merge(self, other: "CodeAtlas") -> "CodeAtlas":
        """The atlas of two parts of a data set."""
        if (self.grid, self.patches.shape) != (other.grid, other.patches.shape):
            raise LGQError("atlases of different codebook, grid, patch or number kept cannot be merged.")
        usage = self.usage.merge(other.usage)
        merged = CodeAtlas(self.grid, usage, self.places.clone(), self.patches.clone())
        codes, columns = (other.places != _FREE).nonzero().unbind(1)
        merged._offer(codes, other.places[codes, columns], other.patches[codes, columns])
        return merged

    def over_ranks(self) -> "CodeAtlas":
        """The atlas of all processes."""
        keep = self.places.shape[1]
        every = stack_over_ranks(self.places).permute(1, 0, 2).flatten(1)
        places, chosen = every.sort(dim=1, stable=True)
        places, chosen = places[:, :keep], chosen[:, :keep]
        mine = (chosen // keep == rank()) & (places != _FREE)
        patches = torch.zeros_like(self.patches)
        codes = mine.nonzero()[:, 0]
        patches[mine] = self.patches[codes, chosen[mine] % keep]
        return CodeAtlas(self.grid, self.usage.over_ranks(), places, sum_over_ranks(patches))

    def most_frequent(self, count: int) -> list[AtlasEntry]:
        """The codes with most tokens, most frequent first, of equals the lower one; unused codes are none."""
        counts = self.usage.counts
        order = counts.argsort(descending=True, stable=True)[:count].tolist()
        return [self._entry(code) for code in order if counts[code]]

    def _entry(self, code: int) -> AtlasEntry:
        taken = int((self.places[code] != _FREE).sum())
        return AtlasEntry(code, int(self.usage.counts[code]), self.patches[code, :taken])


def _patches(
    images: Float[Tensor, "b 3 height width"], size: int, chosen: Int64[Tensor, " n"]
) -> UInt8[Tensor, "n 3 f f"]:
    """The patches of these numbers, all images' patches being counted in reading order."""
    tiles = images.detach().unflatten(3, (-1, size)).unflatten(2, (-1, size))
    every = tiles.permute(0, 2, 4, 1, 3, 5).flatten(0, 2)
    unit = every[chosen.to(images.device)].float().clamp(-1, 1)
    return ((unit + 1) * 127.5).round().to(torch.uint8).cpu()


MOST_PAIRED_CODES = 65_536
"""Of larger codebooks co-occurrence is not counted: its k² / 8 bytes are 0.5 GiB here, 8 GiB at 262,144."""

_LEAST_OF_A_PLANE = 2
_ATLAS_CODES = 32
"""Number of codes in the picture of an atlas."""


@dataclass(frozen=True)
class CodebookStudy:
    """What a study found, over all processes."""

    quantizer: str
    """Name in `lgq.quantizers.QUANTIZERS`."""
    stage: int
    """Of a residual tokenizer, the stage that was studied, from 0 on."""
    stages: int
    images: int
    """That were read."""
    metrics: dict[str, float]
    """Those of `CodeGeometry.summary`, and of `CodeUsage.norm_summary` where codes were learned."""
    absent: dict[str, str]
    """Metrics and pictures that were not made, and why."""
    atlas: CodeAtlas
    codebook: Float32[Tensor, "k c"] | None
    """None where the codes are a fixed grid."""
    latents: Float32[Tensor, "n c"] | None
    """A random sample of the vectors that were quantized; None where they share no plane with the codes."""
    broken: dict[str, str]
    """Images that this process, not another one, could not read, with the reason."""

    @property
    def usage(self) -> CodeUsage:
        return self.atlas.usage

    def record(self) -> dict[str, Any]:
        """Its part of a results record (`lgq.results`)."""
        reported = ("quantizer", "stage", "stages", "images", "metrics", "absent")
        return {name: getattr(self, name) for name in reported}


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
    patches = {entry.code: entry.patches for entry in study.atlas.most_frequent(_ATLAS_CODES)}
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
    """Centre-cropped images through encoder and quantizer, which stay as they are.

    stage: of a residual tokenizer; its latents are what the stages before it left over.
    latents: vectors in the sample at most; which ones, the images' numbers decide.
    keep: patches a code in the atlas.
    """
    quantizer, device = _stage(tokenizer, stage), tokenizer.device
    loader = share_of_images(data, device, image_size=image_size, batch_size=batch_size, workers=workers)
    tally = _Tally.of(quantizer, _grid(tokenizer, image_size), tokenizer.factor, keep=keep, latents=latents)
    for batch in loader.one_pass(may_be_empty=True):
        images = batch.images.to(device, non_blocking=True)
        vectors, tokens = _quantized(tokenizer, images, stage)
        tally.update(images, vectors, tokens, batch.indices)
        on_progress(batch.position, len(data))
    everywhere = tally.over_ranks()
    if not everywhere.images:
        raise DataError(f"none of {len(data):,} images can be read in {data!r}.")
    return _summed_up(everywhere, tokenizer, quantizer, stage, loader)


@dataclass
class _Tally:
    """Streaming: `update` per batch, `over_ranks` for all processes. What cannot be counted is None."""

    atlas: CodeAtlas
    together: CoOccurrence | None
    positions: PositionPairs | None
    latents: FeatureSample | None

    @classmethod
    def of(
        cls, quantizer: Quantizer, grid: tuple[int, int], patch: int, *, keep: int, latents: int
    ) -> "_Tally":
        require_at_least(_LEAST_OF_A_PLANE, latents=latents)
        codes, shares_plane = quantizer.codebook_size, quantizer.learned_codes and quantizer.dim > 1
        return cls(
            CodeAtlas.of(codes, grid=grid, patch=patch, keep=keep),
            CoOccurrence.of(codes) if codes <= MOST_PAIRED_CODES else None,
            PositionPairs.of(grid) if grid != (1, 1) else None,
            FeatureSample.of(latents, dim=quantizer.dim) if shares_plane else None,
        )

    def update(
        self,
        images: Float[Tensor, "b 3 s s"],
        vectors: Float[Tensor, "b h w c"],
        tokens: Int64[Tensor, "b h w"],
        numbers: Integer[Tensor, " b"],
    ) -> None:
        tokens = tokens.cpu()
        self.atlas.update(images, tokens, numbers)
        if self.together is not None:
            self.together.update(tokens)
        if self.positions is not None:
            self.positions.update(tokens)
        if self.latents is not None:
            count = tokens[0].numel()
            places = (numbers[:, None] * count + torch.arange(count)).flatten()
            self.latents.update(vectors.flatten(0, 2), places)

    def over_ranks(self) -> "_Tally":
        return _Tally(
            self.atlas.over_ranks(),
            self.together and self.together.over_ranks(),
            self.positions and self.positions.over_ranks(),
            self.latents and self.latents.over_ranks(),
        )

    @property
    def images(self) -> int:
        height, width = self.atlas.grid
        return self.atlas.usage.tokens // (height * width)

    @property
    def sample(self) -> Float32[Tensor, "n c"] | None:
        """Latents enough to span a plane, or none."""
        found = None if self.latents is None else self.latents.features
        return None if found is None or len(found) < _LEAST_OF_A_PLANE else found

    def metrics(self, codebook: Float[Tensor, "k c"] | None) -> dict[str, float]:
        values = self.atlas.usage.summary()
        if self.together is not None:
            values["cooccurrence_density"] = self.together.density
        if self.positions is not None:
            values["mutual_information"] = self.positions.information
            values["mutual_information_ceiling"] = self.positions.ceiling
        return values if codebook is None else values | self.atlas.usage.norm_summary(codebook)


def _grid(tokenizer: Tokenizer, image_size: int) -> tuple[int, int]:
    side, rest = divmod(image_size, tokenizer.factor)
    if side < 1 or rest:
        raise LGQError(f"image_size must be a multiple of f = {tokenizer.factor}, got {image_size}.")
    return side, side


def _stage(tokenizer: Tokenizer, stage: int) -> Quantizer:
    if stage not in range(tokenizer.stages):
        raise LGQError(f"stage must lie in 0..{tokenizer.stages - 1}, as the tokenizer has, got {stage}.")
    quantizer = tokenizer.quantizer
    chosen: Any = quantizer.stages[stage] if isinstance(quantizer, Residual) else quantizer
    return chosen


@torch.no_grad()
def _quantized(
    tokenizer: Tokenizer, images: Float[Tensor, "b 3 s s"], stage: int
) -> tuple[Float[Tensor, "b h w c"], Int64[Tensor, "b h w"]]:
    """The vectors that a stage quantizes, and their tokens; the same in train and in eval mode."""
    latents = tokenizer.encoder(images.to(next(tokenizer.parameters()).dtype))
    tokens = tokenizer.quantizer.encode(latents)
    if tokenizer.stages == 1:
        return latents.movedim(1, -1), tokens
    if stage:
        latents = latents - tokenizer.quantizer.decode(tokens[..., :stage])
    return latents.movedim(1, -1), tokens[..., stage]


def _summed_up(
    tally: _Tally, tokenizer: Tokenizer, quantizer: Quantizer, stage: int, loader: ImageLoader
) -> CodebookStudy:
    codebook, latents = learned_codebook(quantizer), tally.sample
    metrics = tally.metrics(codebook)
    made = metrics.keys() | ({"overlay"} if latents is not None else set())
    return CodebookStudy(
        quantizer=str(tokenizer.settings["quantizer"]),
        stage=stage,
        stages=tokenizer.stages,
        images=tally.images,
        metrics=metrics,
        absent={name: reason for name, reason in _reasons(quantizer).items() if name not in made},
        atlas=tally.atlas,
        codebook=codebook,
        latents=latents,
        broken=dict(loader.broken),
    )


def _reasons(quantizer: Quantizer) -> dict[str, str]:
    """Why each of these would be absent, if it is."""
    codes, learned = quantizer.codebook_size, quantizer.learned_codes
    fixed = f"the codes of {type(quantizer).__name__} are a fixed grid: where they lie was not learned."
    return {
        "cooccurrence_density": f"pairs of {codes:,} codes would take {codes**2 / 2**33:.1f} GiB of bits: "
        f"they are counted up to {MOST_PAIRED_CODES:,} codes.",
        "mutual_information": "images of one token have no pairs of positions: take larger images.",
        "norm_correlation": "all codes have the same norm, or the same count." if learned else fixed,
        "overlay": "a plane takes 2 latents of 2 channels, or more." if learned else fixed,
    }
