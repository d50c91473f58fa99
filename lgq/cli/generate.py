"""`lgq sample` and `lgq inpaint`: images that a generator draws, whole or in part."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro
from jaxtyping import Bool
from torch import Tensor

from lgq.checks import require_at_least
from lgq.cli.console import progress_of, say
from lgq.cli.places import require_place
from lgq.distributed import join_processes, rank, world_size
from lgq.errors import LGQError
from lgq.files import make_directory, replace_file
from lgq.hub import WeightsChoice
from lgq.inference.inpaint import Box, box_mask, inpaint_image, read_image, read_mask
from lgq.inference.sample import Drawing, draw_files, draw_samples, in_turns
from lgq.maskgit import MaskGIT, load_generator
from lgq.models.sampling import Sampling
from lgq.plots.pictures import inpainting_strip, sample_grid
from lgq.progress import Progress

Generator = Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="GEN")]
# Not by `tyro.conf.configure`: within a generator's run these options keep their prefix, as it has steps too.
SamplingOptions = Annotated[Sampling, tyro.conf.arg(name="")]

_CLASSES_SHOWN = 8
_COUNT = 8


@dataclass(frozen=True, kw_only=True)
class _Draws:
    """What all commands have that draw."""

    generator: Generator
    """A generator's run directory, a directory that `save_pretrained` wrote, or owner/name on the Hub."""
    out: Path
    """Where the images go."""
    batch_size: int = 32
    """Images drawn at a time; other sizes draw other images."""
    seed: int = 0
    """The same command with the same seed draws the same images."""
    weights: WeightsChoice = "best"
    """Weights of a run to load: of the best validation, or of the last checkpoint."""
    sampling: SamplingOptions = field(default_factory=Sampling)

    def run(self) -> int:
        device = join_processes()
        # All processes would draw the same, into the same picture.
        return self._draw(device) if rank() == 0 or self._is_shared() else 0

    def _is_shared(self) -> bool:
        """Whether all processes draw, each a part."""
        return False

    def _draw(self, device: torch.device) -> int:
        """The work itself; returns the exit code."""
        raise NotImplementedError

    def _trained(self, device: torch.device) -> MaskGIT:
        return load_generator(self.generator, self.weights).to(device)

    def _how(self, report: Progress) -> dict[str, Any]:
        return {"seed": self.seed, "batch_size": self.batch_size, "on_progress": report}


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
    """Images of each class, 8 unless given."""
    images: int | None = None
    """In place of --count: images in all, one class after the other. With the seed and the batch size of
    an evaluation (64), these are the images that its gFID is of."""

    def _is_shared(self) -> bool:
        return not _is_picture(self.out, or_folder=True)

    def _draw(self, device: torch.device) -> int:
        require_place(self.out if self._is_shared() else self.out.parent)
        self._require_one_number()
        maskgit = self._trained(device)
        chosen = self._chosen(len(maskgit.classes))
        classes = self._class_of_each(chosen)
        with progress_of("drawing") as report:
            if self._is_shared():
                self._draw_files(maskgit, classes, report)
            else:
                self._draw_picture(maskgit, classes, report)
        if rank() == 0:
            named = f"{len(chosen):,} class{'es' * (len(chosen) > 1)}"
            say(f"{len(classes):,} images of {named}: {self.out}")
        return 0

    def _draw_files(self, maskgit: MaskGIT, classes: tuple[int, ...], report: Progress) -> None:
        how = Drawing(classes=classes, sampling=self.sampling, seed=self.seed, batch_size=self.batch_size)
        mine = {"rank": rank(), "world_size": world_size()}
        draw_files(maskgit, how, self.out, **mine, on_progress=report)

    def _draw_picture(self, maskgit: MaskGIT, classes: tuple[int, ...], report: Progress) -> None:
        drawn = torch.cat(list(draw_samples(maskgit, classes, self.sampling, **self._how(report))))
        _write(self.out, sample_grid(drawn, classes, maskgit.classes, caption=self._caption()))

    def _require_one_number(self) -> None:
        if self.count is not None and self.images is not None:
            raise LGQError("give either --count, images of each class, or --images, images in all.")
        given = {"count": self.count, "images": self.images}
        require_at_least(1, **{name: number for name, number in given.items() if number is not None})

    def _chosen(self, known: int) -> tuple[int, ...]:
        if not self.classes:
            shown = known if self.images is not None else min(_CLASSES_SHOWN, known)
            return tuple(i * known // shown for i in range(shown))
        if len(set(self.classes)) < len(self.classes):
            given = " ".join(map(str, self.classes))
            raise LGQError(f"--classes names each class once, got {given}: --count is for more images.")
        return self.classes

    def _class_of_each(self, chosen: tuple[int, ...]) -> tuple[int, ...]:
        if self.images is not None:
            return in_turns(chosen, self.images)
        count = _COUNT if self.count is None else self.count
        return tuple(number for number in chosen for _ in range(count))

    def _caption(self) -> str:
        name, steps = Path(self.generator).resolve().name, self.sampling.steps
        return f"{name}: {steps} steps, guidance {self.sampling.guidance:g}, seed {self.seed}"


@dataclass(frozen=True, kw_only=True)
class Inpaint(_Draws):
    """Draw a part of an image anew: the picture shows the image, the part that is hidden, and results."""

    image: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="IMAGE")]
    """A file; the square in its middle is resized to the generator's images."""
    out: Path
    """The picture, a name that ends in .png."""
    mask: Path | None = None
    """An image file of the size of IMAGE, bright where it is to be drawn anew. A token is drawn anew where
    any pixel of its patch is; all other tokens stay."""
    box: Annotated[Box | None, tyro.conf.arg(metavar="LEFT TOP RIGHT BOTTOM")] = None
    """In place of a mask: a rectangle in pixels of the generator's square image; right and bottom are the
    first pixels outside."""
    label: int | None = None
    """Number of the class to draw, that of the image or another; needed where there are several."""
    count: int = 4
    """Results."""

    def _draw(self, device: torch.device) -> int:
        _is_picture(self.out)
        require_place(self.out.parent)
        if (self.mask is None) == (self.box is None):
            raise LGQError("give what to draw anew as either --mask FILE or --box LEFT TOP RIGHT BOTTOM.")
        maskgit = self._trained(device)
        label = self._label(maskgit)
        image = read_image(self.image, maskgit.image_size)
        with progress_of("drawing") as report:
            result = inpaint_image(
                maskgit,
                image,
                self._mask(maskgit.image_size),
                self.sampling,
                label=label,
                count=self.count,
                **self._how(report),
            )
        _write(self.out, inpainting_strip(image, result.mask, result.images, name=maskgit.classes[label]))
        say(f"{result.mask.float().mean():.0%} of the image drawn anew, {self.count:,} times: {self.out}")
        return 0

    def _mask(self, side: int) -> Bool[Tensor, "{side} {side}"]:
        if self.mask is not None:
            return read_mask(self.mask, self.image, side)
        assert self.box is not None
        return box_mask(self.box, side)

    def _label(self, maskgit: MaskGIT) -> int:
        known = len(maskgit.classes)
        if self.label is None and known > 1:
            raise LGQError(f"the generator knows {known:,} classes: give --label, from 0 to {known - 1}.")
        return self.label or 0


def _is_picture(out: Path, *, or_folder: bool = False) -> bool:
    if out.suffix.lower() == ".png" and not out.is_dir():
        return True
    if or_folder and not out.suffix:
        return False
    rule = "end in .png, and be no directory" + (", or have no ending, for a directory" if or_folder else "")
    raise LGQError(f"--out must {rule}, got {out}.")


def _write(file: Path, png: bytes) -> None:
    make_directory(file.parent)
    replace_file(file, png)
