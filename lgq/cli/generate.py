"""`lgq sample` and `lgq inpaint`: images that a generator draws, whole or in part."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import tyro

from lgq.cli.console import progress_of, say
from lgq.distributed import rank
from lgq.hub import WeightsChoice
from lgq.inference.inpaint import Box, inpaint
from lgq.inference.sample import sample
from lgq.models.sampling import Sampling
from lgq.progress import Progress
from lgq.random import SAMPLING_BATCH

Generator = Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="GEN")]
# Not by `tyro.conf.configure`: within a generator's run these options keep their prefix, as it has steps too.
SamplingOptions = Annotated[Sampling, tyro.conf.arg(name="")]


@dataclass(frozen=True, kw_only=True)
class _Draws:
    """Options of every command that draws."""

    generator: Generator
    """A generator's run directory, a directory that `save_pretrained` wrote, or owner/name on the Hub."""
    out: Path
    """Where the images go."""
    batch_size: int = SAMPLING_BATCH
    """Images drawn at a time; other sizes draw other images."""
    seed: int = 0
    """The same command with the same seed draws the same images."""
    weights: WeightsChoice = "best"
    """Weights of a run to load: of the best validation, or of the last checkpoint."""
    sampling: SamplingOptions = field(default_factory=Sampling)

    def _options(self, on_progress: Progress) -> dict[str, Any]:
        return {
            "sampling": self.sampling,
            "seed": self.seed,
            "batch_size": self.batch_size,
            "weights": self.weights,
            "on_progress": on_progress,
        }


@dataclass(frozen=True, kw_only=True)
class Sample(_Draws):
    """Draw images of classes: as one picture, or as a file each."""

    out: Path
    """A name that ends in .png: one picture, with a band for each class. A name without ending: a directory
    of files such as class-0007-00000.png, the first image of class 7. Started by torchrun, processes share
    the files; stopped, the same command goes on, with any number of processes."""
    classes: tuple[int, ...] = ()
    """Numbers of classes; none takes up to 8 of them, evenly spread over all, or with --images all."""
    count: int | None = None
    """Images per class, 8 by default."""
    images: int | None = None
    """Instead of --count: images in all, one class after the other. With the seed and the batch size of an
    evaluation, these are the images that it measured."""

    def run(self) -> int:
        with progress_of("drawing") as report:
            chosen: dict[str, Any] = {"classes": self.classes, "count": self.count, "images": self.images}
            drawn = sample(self.generator, self.out, **chosen, **self._options(report))
        if rank() == 0:
            classes = f"{drawn.classes:,} class{'es' * (drawn.classes > 1)}"
            say(f"{drawn.images:,} images of {classes}: {self.out}")
        return 0


@dataclass(frozen=True, kw_only=True)
class Inpaint(_Draws):
    """Redraw a part of an image: the picture shows the image, the masked image, and the results."""

    image: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="IMAGE")]
    """A file; the square in its middle is resized to the generator's images."""
    out: Path
    """The picture, a name that ends in .png."""
    mask: Path | None = None
    """An image file of the size of IMAGE, bright where to redraw. A token is redrawn where any pixel of its
    patch is bright; all other tokens stay."""
    box: Annotated[Box | None, tyro.conf.arg(metavar="LEFT TOP RIGHT BOTTOM")] = None
    """In place of a mask: a rectangle in pixels of the generator's square image; right and bottom are the
    first pixels outside."""
    label: int | None = None
    """Number of the class to draw, that of the image or another; needed where there are several."""
    count: int = 4
    """Results."""

    def run(self) -> int:
        with progress_of("drawing") as report:
            chosen: dict[str, Any] = {"mask": self.mask, "box": self.box, "label": self.label}
            chosen |= {"count": self.count} | self._options(report)
            result = inpaint(self.generator, self.image, self.out, **chosen)
        if rank() == 0:
            say(f"{result.mask.float().mean():.0%} of the image redrawn, {self.count:,} times: {self.out}")
        return 0
