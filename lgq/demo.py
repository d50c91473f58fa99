"""The demo: an LGQ tokenizer (Altun et al. 2026) and a MaskGIT on its tokens (Chang et al. 2022), in minutes.

    result = run_demo("demo")              # the same call continues after Ctrl-C
    print("\\n".join(result.sentences()))

It trains on seven photographs that come with scikit-image, and shows what becomes of two others.
b = images, s = their side in pixels, t = tokens along it, k = codes.
"""

import time
from dataclasses import dataclass, replace
from math import log2
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from PIL import Image, ImageOps
from torch import Tensor

from lgq.data import ImageLoader, LoaderSettings, RandomCrop, SampleDataset, to_tensor
from lgq.data.photographs import PHOTOGRAPHS, photograph_pixels
from lgq.data.tokens import TokenDataset
from lgq.files import replace_file
from lgq.inference.encode import encode
from lgq.inference.inpaint import inpaint
from lgq.inference.sample import draw_images
from lgq.maskgit import MaskGIT, load_generator
from lgq.metrics.code_usage import CodeUsage
from lgq.metrics.reconstruction import ReconstructionQuality, psnr
from lgq.models.autoencoder import Backbone
from lgq.models.sampling import Sampling
from lgq.plots import curves, pictures
from lgq.plots.pictures import Panel
from lgq.runs import named_generator, named_run
from lgq.tokenizer import Tokenizer, load_tokenizer
from lgq.training.generator_trainer import train_generator
from lgq.training.journal import read_records
from lgq.training.loop import Outcome
from lgq.training.losses import LossWeights
from lgq.training.settings import GeneratorRun, LoopSettings, Schedule, TokenizerRun
from lgq.training.tokenizer_trainer import train
from lgq.viewer.code_gallery import Model
from lgq.viewer.standalone import export_page
from lgq.viewer.studio import Studio

RUN, TOKENS, GENERATOR = "run", "tokens", "generator"
"""Directories inside the demo's: the tokenizer's run, the tokens of the photographs, the generator's run."""

PAGE = "view.html"
"""The tokenizer as a page of the viewer (`lgq view --export`)."""

_BATCH = 64
_GRID_COLUMNS, _GRID_SCALE = 8, 5
_MAP_TOKENS, _MAP_SCALE = 16, 8
_SAMPLING = Sampling(steps=11, choice_temperature=2.0)
_SAMPLES_PER_CLASS = 8
_WHOLE = {f"photograph-{Path(name).stem}": name for name in PHOTOGRAPHS["held-out"]}
_CAPTIONS = {
    "reconstructions": "Held-out photographs, and what their tokens decode to.",
    **dict.fromkeys(_WHOLE, "A whole held-out photograph, beside what its tokens decode to."),
    "tokens": "A held-out photograph as its tokens: the index of each, on the mean colour of its code.",
    "codebook": "Each code as the mean of all patches with that token, from dark to bright.",
    "usage": "How often each code occurs, over training and held-out images.",
    "training": "The training of the tokenizer, step by step.",
    "samples": "New images, drawn token by token as parts of one photograph or another.",
    PAGE: "All of it to look at in a browser: pictures, tokens, codes, and how they grew.",
    "inpainting": "A training photograph whose right half the generator redraws from the left half.",
}
"""What each picture shows, by the stem of its file, and the page."""


class Picture(NamedTuple):
    """A file to look at, with a sentence about what it shows."""

    path: Path
    caption: str


@dataclass(frozen=True, kw_only=True)
class DemoResult:
    """Measurements and pictures of a demo; both are empty where it was interrupted."""

    outcome: Outcome
    """How the last training ended: the generator's, or the tokenizer's where that was interrupted."""
    values: dict[str, float]
    """Quality on held-out photographs, use of the codes on all photographs, sizes, and the generator's
    accuracy on hidden tokens."""
    pictures: list[Picture]
    seconds: float
    """Time of this call, which is the last part of a demo that was interrupted."""

    def sentences(self) -> list[str]:
        """Return the measurements in words; none where the demo was interrupted."""
        if not self.values:
            return []
        value = self.values
        tokens, codes = int(value["tokens"]), int(value["codes"])
        smaller = 24 * value["pixels"] / (tokens * log2(codes))
        return [
            f"The tokenizer turns {value['pixels']:,.0f} pixels into {tokens} tokens, each one of {codes} "
            f"codes: {smaller:.0f} times fewer bits.",
            f"It rebuilds photographs that it has never seen with a PSNR of {value['psnr']:.1f} dB and an "
            f"SSIM of {value['ssim']:.2f}. At 20 dB a picture is soft but recognisable; above 35 dB few "
            "people see a difference.",
            f"{value['utilization']:.0%} of the codes are in use, as if choosing among "
            f"{value['perplexity']:.0f} equally likely codes.",
            f"The generator predicts a hidden token right {100 * value['accuracy']:.0f} times in 100. Always "
            f"guessing the most frequent token of the photograph is right "
            f"{100 * value['guess_accuracy']:.0f} times in 100.",
        ]


def demo_run() -> TokenizerRun:
    """Return the pocket run, smaller still: 32 x 32 pixels, f = 4, K = 512; 1.1 M parameters.

    Half the batch and twice the steps use more of the codes in the same time.
    """
    return replace(
        named_run("pocket-lgq"),
        codebook_size=512,
        # Attention would have to learn about distances that only whole photographs have.
        backbone=Backbone(widths=(16, 64, 128), blocks=1, groups=8, attention_heads=0),
        image_size=32,
        batch_size=16,
        workers=0,
        # The training photographs are brown and red; the sky of a held-out one is blue.
        crop=RandomCrop(smallest_area=0.5, exchange=1 / 3),
        precision="float32",
        schedule=Schedule(kind="cosine", warmup_steps=100),
        clip=None,
        channels_last=True,
        loss=LossWeights(lpips=0.0, gan=0.0),  # so that nothing has to be fetched
        loop=LoopSettings(steps=1_000, log_every=20, validate_every=200, checkpoint_every=100, keep=1),
    )


def demo_generator() -> GeneratorRun:
    """Return the pocket generator with fewer steps: there are few images, so each is seen often."""
    return replace(
        named_generator("pocket"),
        schedule=Schedule(kind="cosine", warmup_steps=50),
        average_decay=None,
        sample_images=0,
        loop=LoopSettings(steps=500, log_every=20, validate_every=250, checkpoint_every=100, keep=1),
    )


def run_demo(
    out: str | Path = "demo",
    run: TokenizerRun | None = None,
    generator: GeneratorRun | None = None,
    *,
    device: str | torch.device = "auto",
) -> DemoResult:
    """Train, evaluate on held-out photographs and draw; the same call continues an interrupted one.

    run, generator: settings instead of `demo_run()` and `demo_generator()`.
    device: where to train and encode, the words of `--device`; the pictures are made on the CPU.
    """
    began, out, run = time.monotonic(), Path(out), run or demo_run()
    outcome = _train(out, run, generator or demo_generator(), device)
    values: dict[str, float] = {}
    drawn: list[Picture] = []
    if outcome.reason != "interrupted":
        # The last weights, not the best ones: held-out photographs must not choose what they measure.
        for pngs, measured in (
            _show_tokenizer(load_tokenizer(out / RUN, "last"), out, run.image_size),
            _show_generator(load_generator(out / GENERATOR, "last"), out),
        ):
            values |= measured
            for stem, png in pngs.items():
                replace_file(out / f"{stem}.png", png)
                drawn.append(Picture(out / f"{stem}.png", _CAPTIONS[stem]))
        model = Model("demo", load_tokenizer(out / RUN, "last"), out / RUN)
        export_page(Studio([model]), out / PAGE)
        drawn.append(Picture(out / PAGE, _CAPTIONS[PAGE]))
    return DemoResult(outcome=outcome, values=values, pictures=drawn, seconds=time.monotonic() - began)


def _train(out: Path, run: TokenizerRun, generator: GeneratorRun, device: str | torch.device) -> Outcome:
    """Train the tokenizer, then the generator on its tokens; return how the last training ended."""
    photographs = SampleDataset("train")
    outcome = train(run, photographs, out / RUN, val_data=SampleDataset("held-out"), device=device)
    if outcome.reason == "interrupted":
        return outcome
    tokenizer = load_tokenizer(out / RUN, "last", device=device)
    tokens = encode(tokenizer, photographs, out / TOKENS, image_size=run.image_size, flips=True)
    # The held-out photographs are other classes, so the generator is validated on its training tokens.
    sources: dict[str, Any] = {"val_tokens": tokens, "tokenizer": tokenizer}
    return train_generator(generator, tokens, out / GENERATOR, **sources, device=device)


class _Reconstructed(NamedTuple):
    """The images of a data set, their tokens, and the images that these decode to."""

    images: Float[Tensor, "b 3 s s"]
    tokens: Int[Tensor, "b t t"]
    decoded: Float[Tensor, "b 3 s s"]


def _show_tokenizer(
    tokenizer: Tokenizer, out: Path, image_size: int
) -> tuple[dict[str, bytes], dict[str, float]]:
    """Return pictures as PNG by the stems of their files, and the values of the tokenizer."""
    seen, unseen = (_reconstruct(tokenizer, part, image_size) for part in ("train", "held-out"))
    usage, quality = CodeUsage.of(tokenizer.quantizer), ReconstructionQuality()
    for part in (seen, unseen):
        usage.update(part.tokens)
    quality.update(unseen.images, unseen.decoded)
    sizes = {
        "codes": tokenizer.codebook_size,
        "tokens": unseen.tokens[0].numel(),
        "pixels": image_size**2,
        "parameters": sum(tokenizer.parameter_counts().values()),
    }
    decoded, tokens = torch.cat([seen.decoded, unseen.decoded]), torch.cat([seen.tokens, unseen.tokens])
    patches = pictures.mean_patches(decoded, tokens, tokenizer.codebook_size)
    in_use = f"{len(patches):,} codes, {usage.utilization:.1%} in use; each as the mean of its patches"
    pngs = {
        "reconstructions": _reconstruction_grid(unseen),
        **{stem: _whole_photograph(tokenizer, name) for stem, name in _WHOLE.items()},
        "tokens": _token_map(tokenizer, patches.mean((2, 3))),
        "codebook": pictures.codebook_grid(patches, usage.counts, caption=in_use),
        "usage": curves.usage_histogram(usage.counts),
        "training": curves.training_curves(read_records(out / RUN)),
    }
    return pngs, quality.summary() | usage.summary() | sizes


def _reconstruct(tokenizer: Tokenizer, part: str, size: int) -> _Reconstructed:
    loader = ImageLoader(SampleDataset(part), LoaderSettings(image_size=size, batch_size=_BATCH))
    images = torch.cat([batch.images for batch in loader.one_pass()])
    tokens = torch.cat([tokenizer.encode(chunk) for chunk in images.split(_BATCH)])
    decoded = torch.cat([tokenizer.decode(chunk) for chunk in tokens.split(_BATCH)])
    return _Reconstructed(images, tokens, decoded)


def _reconstruction_grid(unseen: _Reconstructed) -> bytes:
    """Draw every other one of each photograph's largest tiles, which come first; enough to fill a row."""
    tiles: dict[str, list[int]] = {}
    for i, tile in enumerate(SampleDataset("held-out").tiles):
        tiles.setdefault(tile.photograph, []).append(i)
    chosen = [i for numbers in tiles.values() for i in numbers[: 2 * _GRID_COLUMNS : 2]]
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


def _whole_photograph(tokenizer: Tokenizer, name: str) -> bytes:
    """Draw all of a photograph except the last pixels of a side that f does not divide."""
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
    photograph = photograph_pixels(PHOTOGRAPHS["held-out"][0])
    image = to_tensor(ImageOps.fit(photograph, (side, side), Image.Resampling.BICUBIC))
    tokens = tokenizer.encode(image[None])
    mosaic = pictures.token_mosaic(tokens[0], colours, cell=_MAP_SCALE * tokenizer.factor)
    return pictures.side_by_side(
        [
            Panel(f"Held-out photograph, {side} x {side} pixels", image, _MAP_SCALE),
            Panel(f"Its {_MAP_TOKENS} x {_MAP_TOKENS} tokens, on the mean colours of their codes", mosaic),
            Panel("What the tokens decode to", tokenizer.decode(tokens)[0], _MAP_SCALE),
        ]
    )


def _show_generator(generator: MaskGIT, out: Path) -> tuple[dict[str, bytes], dict[str, float]]:
    """Return pictures as PNG by the stems of their files, and the values of the generator."""
    validations = [r["values"] for r in read_records(out / GENERATOR) if r["split"] == "validation"]
    labels = [label for label in range(len(generator.classes)) for _ in range(_SAMPLES_PER_CLASS)]
    images = torch.cat(list(draw_images(generator, labels, _SAMPLING, batch_size=32)))
    caption = f"Drawn in {_SAMPLING.steps} steps, {_SAMPLES_PER_CLASS} of each photograph, none left out"
    samples = pictures.sample_grid(
        images, labels, generator.classes, caption=caption, columns=_SAMPLES_PER_CLASS, scale=3
    )
    guess_accuracy = _guess_accuracy(TokenDataset(out / TOKENS))
    values = {"accuracy": validations[-1]["accuracy"], "guess_accuracy": guess_accuracy}
    return {"samples": samples, "inpainting": _inpainting(generator)}, values


def _inpainting(generator: MaskGIT) -> bytes:
    side = generator.image_size
    loader = ImageLoader(SampleDataset("train"), LoaderSettings(image_size=side, batch_size=1))
    first = next(loader.one_pass())
    label, half = int(first.labels[0]), (side // 2, 0, side, side)
    result = inpaint(generator, first.images[0], box=half, label=label, sampling=_SAMPLING)
    return pictures.inpainting_strip(
        first.images[0], result.mask, result.images, name=generator.classes[label]
    )


def _guess_accuracy(tokens: TokenDataset) -> float:
    """Return how often the most frequent token of a photograph is the right guess for one of its tokens."""
    by_class: dict[int | None, list[Tensor]] = {}
    for i in range(len(tokens)):
        by_class.setdefault(tokens[i].label, []).append(tokens[i].tokens.flatten())
    counts = [torch.bincount(torch.cat(parts)) for parts in by_class.values()]
    return sum(int(count.max()) for count in counts) / sum(int(count.sum()) for count in counts)
