"""`lgq sample` and `lgq inpaint`: draw images with a generator, whole or in part."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from lgq.cli.console import progress_of, say
from lgq.cli.options import Computes
from lgq.files import WeightsChoice
from lgq.inference.inpaint import Box, inpaint
from lgq.inference.sample import sample
from lgq.models.sampling import Sampling
from lgq.random import SAMPLING_BATCH

Generator = Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="GEN")]
SamplingOptions = Annotated[Sampling, tyro.conf.arg(name="")]


@dataclass(frozen=True, kw_only=True)
class _Draws(Computes):
    """Options of every command that draws."""

    generator: Generator
    """Run directory of a generator, a directory that `save_pretrained` wrote, or owner/name on the Hub."""
    out: Path
    """Path of the images that are written."""
    batch_size: int = SAMPLING_BATCH
    """Images per batch; a different batch size draws different images."""
    seed: int = 0
    """Seed of the images: the same command with the same seed draws the same images."""
    weights: WeightsChoice = "best"
    """Weights of a run to load: of the best validation, or of the last checkpoint."""
    sampling: SamplingOptions = field(default_factory=Sampling)
    """How the generator draws images."""


@dataclass(frozen=True, kw_only=True)
class Sample(_Draws):
    """Draw images of classes, into one picture or one file per image."""

    out: Path
    """A name that ends in .png: one picture, with a band per class. A name without ending: a directory of
    files such as class-0007-00000.png, the first image of class 7; processes of torchrun share the files, and
    the same command continues after a stop, with any number of processes."""
    classes: tuple[str, ...] = ()
    """Names or numbers of classes, a name first where both fit; by default up to 8 that spread over all
    classes, or with --samples all classes."""
    count: int | None = None
    """Images per class, 8 by default."""
    samples: int | None = None
    """Instead of --count: images in all, one class after the other. With the seed and the batch size of an
    evaluation, these are the images that it measured."""

    def run(self) -> int:
        with progress_of("drawing") as report:
            drawn = sample(**vars(self), on_progress=report)
        classes = f"{drawn.classes:,} class{'es' * (drawn.classes > 1)}"
        say(f"{drawn.images:,} images of {classes}: {self.out}")
        return 0


@dataclass(frozen=True, kw_only=True)
class Inpaint(_Draws):
    """Redraw a part of an image, into one picture or one file per result."""

    image: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="IMAGE")]
    """Image file; its centre square is resized to the size of the generator's images."""
    out: Path
    """A name that ends in .png: one picture of the image, the masked image and the results. A name without
    ending: a directory of the results, result-00000.png and so on."""
    mask: Path | None = None
    """An image file of the size of IMAGE, in pixels of the photograph itself, bright where to redraw. A token
    is redrawn where any pixel of its patch is bright; all other tokens stay."""
    box: Annotated[Box | None, tyro.conf.arg(metavar="LEFT TOP RIGHT BOTTOM")] = None
    """Instead of a mask, a rectangle in pixels of the generator's square image, not of IMAGE: 0 0 16 32 is
    the left half of 32 x 32 pixels. RIGHT and BOTTOM are the first pixels outside."""
    label: str | None = None
    """Name or number of the class to draw, the image's own or a different one; required where there are
    several."""
    count: int = 4
    """Number of results."""
    keep_decoded: bool = False
    """Keep the decoder's pixels everywhere, in place of the image's own outside of the mask."""

    def run(self) -> int:
        with progress_of("drawing") as report:
            result = inpaint(**vars(self), on_progress=report)
        say(f"{result.mask.float().mean():.0%} of the image redrawn, {self.count:,} times: {self.out}")
        return 0
