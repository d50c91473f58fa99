"""The demo's second part: a small MaskGIT (Chang et al. 2022) on the tokens of the first, shown."""

from dataclasses import replace
from pathlib import Path

import torch

from lgq.data import ImageLoader, LoaderSettings, SampleDataset
from lgq.data.tokens import TokenDataset
from lgq.demo.drawing import Drawing
from lgq.inference.inpaint import inpaint
from lgq.inference.sample import draw
from lgq.maskgit import MaskGIT, load_generator
from lgq.metrics.likelihood import token_entropies
from lgq.models.sampling import Sampling
from lgq.plots.pictures import inpainting_strip, sample_grid
from lgq.runs import named_generator
from lgq.training.journal import read_records
from lgq.training.settings import GeneratorRun, LoopSettings, Schedule

_EACH, _RESULTS = 8, 4
_SAMPLING = Sampling(steps=11, choice_temperature=2.0)


def demo_generator() -> GeneratorRun:
    """The pocket scale, cut short: few images, so that they are seen often."""
    return replace(
        named_generator("pocket"),
        schedule=Schedule(kind="cosine", warmup_steps=50),
        average_decay=None,
        sample_images=0,
        loop=LoopSettings(steps=500, log_every=20, validate_every=250, checkpoint_every=100, keep=1),
    )


def show_generator(folder: Path, tokens: Path) -> tuple[dict[str, float], list[Drawing]]:
    """How well it knows tokens that are hidden from it, and images that it draws and fills in.

    folder: of the run.
    tokens: directory of those that it was trained on.
    """
    generator = load_generator(folder, "last")
    validations = [record["values"] for record in read_records(folder) if record["split"] == "validation"]
    values = {
        "nll": validations[-1]["nll"],
        "token_entropy": token_entropies(TokenDataset(tokens)).class_entropy,
    }
    return values, [_samples(generator), _inpainting(generator)]


def _samples(generator: MaskGIT) -> Drawing:
    classes = [number for number in range(len(generator.classes)) for _ in range(_EACH)]
    images = torch.cat(list(draw(generator, classes, _SAMPLING)))
    caption = f"Drawn by the generator in {_SAMPLING.steps} steps, {_EACH} of each photograph, none left out"
    return Drawing(
        "samples.png",
        "New images, drawn token by token as parts of one photograph or another.",
        sample_grid(images, classes, generator.classes, caption=caption, columns=_EACH, scale=3),
    )


def _inpainting(generator: MaskGIT) -> Drawing:
    """Of the first photograph, all of it: the right half."""
    side, data = generator.image_size, SampleDataset("train")
    first = next(ImageLoader(data, LoaderSettings(image_size=side, batch_size=1)).one_pass())
    label = int(first.labels[0])
    right_half = (side // 2, 0, side, side)
    options = {"label": label, "count": _RESULTS, "sampling": _SAMPLING}
    drawn = inpaint(generator, first.images[0], box=right_half, **options)
    return Drawing(
        "inpainting.png",
        "A training photograph, whose right half the generator draws anew from the left one.",
        inpainting_strip(first.images[0], drawn.mask, drawn.images, name=generator.classes[label]),
    )
