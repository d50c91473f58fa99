"""The demo's first part: a pocket LGQ tokenizer (Altun et al. 2026) on photographs that come along, shown.

b = images, s = their side in pixels, t = tokens along it, k = codes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from PIL import Image, ImageOps
from torch import Tensor

from lgq.data import ImageDataset, ImageLoader, LoaderSettings, RandomCrop, SampleDataset, to_tensor
from lgq.data.photographs import PHOTOGRAPHS, Tile, photograph_pixels
from lgq.demo.drawing import Drawing
from lgq.metrics.code_usage import CodeUsage
from lgq.metrics.reconstruction import ReconstructionQuality, psnr
from lgq.models.autoencoder import Backbone
from lgq.plots import curves as plots
from lgq.plots import pictures
from lgq.plots.pictures import Panel
from lgq.runs import pocket
from lgq.tokenizer import Tokenizer, load_tokenizer
from lgq.training.journal import read_records
from lgq.training.settings import LoopSettings, Schedule, TokenizerRun

_BATCH = 64
_GRID_COLUMNS, _GRID_SCALE = 8, 5
_MAP_TOKENS, _MAP_SCALE = 16, 8


def demo_run() -> TokenizerRun:
    """The pocket scale, smaller still: 32 x 32 pixels, f = 4, K = 512; 1.1 M parameters.

    Half the batch and twice the steps use more of the codes in the same time.
    """
    return replace(
        pocket("lgq"),
        codebook_size=512,
        # Attention would have to learn about distances that only whole photographs have.
        backbone=Backbone(widths=(16, 64, 128), blocks=1, groups=8, attention_heads=0),
        image_size=32,
        batch_size=16,
        workers=0,
        # The training photographs are brown and red, and the sky of a held-out one is blue.
        crop=RandomCrop(smallest_area=0.5, exchange=1 / 3),
        precision="float32",
        learning_rate=1e-3,
        schedule=Schedule(kind="cosine", warmup_steps=100),
        channels_last=True,
        loop=LoopSettings(steps=1_000, log_every=20, validate_every=200, checkpoint_every=100, keep=1),
    )


def show_tokenizer(folder: Path, image_size: int) -> tuple[dict[str, float], list[Drawing]]:
    """Quality on held-out photographs, use of the codes on these and on the training images, sizes; drawn.

    folder: of the run.
    """
    # The last weights, not the best ones: held-out photographs must not choose what they judge.
    tokenizer = load_tokenizer(folder, "last")
    seen, unseen = (
        _reconstruct(tokenizer, SampleDataset(split), image_size) for split in ("train", "held-out")
    )
    usage = _count(tokenizer, seen, unseen)
    curves = Drawing(
        "training.png", "The training, step by step.", plots.training_curves(read_records(folder))
    )
    drawings = [*_draw_quality(tokenizer, unseen), *_draw_codes(tokenizer, (seen, unseen), usage), curves]
    return _measure(tokenizer, unseen, usage), drawings


class _Reconstructed(NamedTuple):
    """The images of a data set, their tokens, and what these decode to."""

    images: Float[Tensor, "b 3 s s"]
    tokens: Int[Tensor, "b t t"]
    decoded: Float[Tensor, "b 3 s s"]


def _reconstruct(tokenizer: Tokenizer, data: ImageDataset, size: int) -> _Reconstructed:
    loader = ImageLoader(data, LoaderSettings(image_size=size, batch_size=_BATCH))
    images = torch.cat([batch.images for batch in loader.one_pass()])
    tokens = torch.cat([tokenizer.encode(part) for part in images.split(_BATCH)])
    decoded = torch.cat([tokenizer.decode(part) for part in tokens.split(_BATCH)])
    return _Reconstructed(images, tokens, decoded)


def _count(tokenizer: Tokenizer, *parts: _Reconstructed) -> CodeUsage:
    usage = CodeUsage.of(tokenizer.codebook_size)
    for part in parts:
        usage.update(part.tokens)
    return usage


def _measure(tokenizer: Tokenizer, unseen: _Reconstructed, usage: CodeUsage) -> dict[str, float]:
    quality = ReconstructionQuality()
    quality.update(unseen.images, unseen.decoded)
    sizes = {
        "codes": tokenizer.codebook_size,
        "tokens": unseen.tokens[0].numel(),
        "parameters": sum(tokenizer.parameter_counts().values()),
    }
    return quality.summary() | usage.summary() | sizes


def _draw_quality(tokenizer: Tokenizer, unseen: _Reconstructed) -> Iterator[Drawing]:
    yield Drawing(
        "reconstructions.png", "Held-out photographs, and what their tokens decode to.", _grid(unseen)
    )
    for name in PHOTOGRAPHS["held-out"]:
        title = Path(name).stem
        caption = f"A whole held-out photograph, {title}, beside what its tokens decode to."
        yield Drawing(f"photograph-{title}.png", caption, _whole(tokenizer, name))


def _draw_codes(tokenizer: Tokenizer, parts: Sequence[_Reconstructed], usage: CodeUsage) -> Iterator[Drawing]:
    decoded, tokens = (torch.cat([getattr(part, name) for part in parts]) for name in ("decoded", "tokens"))
    patches = pictures.mean_patches(decoded, tokens, tokenizer.codebook_size)
    yield Drawing(
        "tokens.png",
        "A held-out photograph as its tokens: the index of each, on the mean colour of its code.",
        _token_map(tokenizer, patches.mean((2, 3))),
    )
    summary = f"{len(patches):,} codes, {usage.utilization:.1%} in use; each as the mean of its places"
    yield Drawing(
        "codebook.png",
        "What each code stands for: the mean of all patches with that token, from dark to bright.",
        pictures.codebook_grid(patches, usage.counts, caption=summary),
    )
    yield Drawing(
        "usage.png",
        "How often each code occurs, over training and held-out images.",
        plots.usage_histogram(usage.counts),
    )


def _grid(unseen: _Reconstructed) -> bytes:
    chosen = _recognisable(SampleDataset("held-out").tiles)
    images, decoded = unseen.images[chosen], unseen.decoded[chosen]
    side, tokens = images.shape[3], unseen.tokens[0].numel()
    return pictures.reconstruction_grid(
        images,
        decoded,
        caption=f"Held-out photographs, {side} x {side} pixels; below, what their {tokens} tokens decode to",
        remarks=[f"{value:.1f} dB" for value in psnr(images, decoded).tolist()],
        columns=_GRID_COLUMNS,
        scale=_GRID_SCALE,
    )


def _recognisable(tiles: Sequence[Tile]) -> list[int]:
    """Of each photograph, every other one of its largest tiles, which come first; enough to fill a row."""
    places: dict[str, list[int]] = {}
    for i, tile in enumerate(tiles):
        places.setdefault(tile.photograph, []).append(i)
    return [i for found in places.values() for i in found[: 2 * _GRID_COLUMNS : 2]]


def _whole(tokenizer: Tokenizer, name: str) -> bytes:
    """All of a photograph but the last pixels, where f does not divide a side."""
    pixels = to_tensor(photograph_pixels(name))[None]
    height, width = (side // tokenizer.factor * tokenizer.factor for side in pixels.shape[2:])
    image = pixels[:, :, :height, :width]
    tokens = tokenizer.encode(image)
    decoded = tokenizer.decode(tokens)
    size = f"{tokens.shape[2]} x {tokens.shape[1]}"
    before = Panel(f"Held-out photograph, {width} x {height} pixels", image[0])
    after = Panel(f"What its {size} tokens decode to, {psnr(image, decoded).item():.1f} dB", decoded[0])
    return pictures.side_by_side([before, after])


def _token_map(tokenizer: Tokenizer, colours: Float[Tensor, "k 3"]) -> bytes:
    side = _MAP_TOKENS * tokenizer.factor
    square = ImageOps.fit(
        photograph_pixels(PHOTOGRAPHS["held-out"][0]), (side, side), Image.Resampling.BICUBIC
    )
    image = to_tensor(square)
    tokens = tokenizer.encode(image[None])
    mosaic = pictures.token_mosaic(tokens[0], colours, cell=_MAP_SCALE * tokenizer.factor)
    return pictures.side_by_side(
        [
            Panel(f"Held-out photograph, {side} x {side} pixels", image, _MAP_SCALE),
            Panel(f"Its {_MAP_TOKENS} x {_MAP_TOKENS} tokens, on the mean colours of their codes", mosaic),
            Panel("What the tokens decode to", tokenizer.decode(tokens)[0], _MAP_SCALE),
        ]
    )
