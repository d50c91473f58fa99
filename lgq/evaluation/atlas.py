"""What codes stand for: for each code, the first patches of images that were encoded by it.

b = images, h w = tokens along the height and the width, f = pixels a token along each, k = codes,
m = patches kept a code.

    atlas = CodeAtlas.of(1024, grid=(8, 8), patch=8, keep=16)
    atlas.update(images, tokens, numbers)                # per batch
    for entry in atlas.over_ranks().most_frequent(64): ...
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64, Integer, UInt8
from torch import Tensor

from lgq.checks import require_at_least, require_indices
from lgq.distributed import rank, stack_over_ranks, sum_over_ranks
from lgq.evaluation.codebook import CodeUsage

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
            raise ValueError(f"expected images and tokens of shapes {expected}, got {shapes}.")
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
            raise ValueError("atlases of different codebook, grid, patch or number kept cannot be merged.")
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
