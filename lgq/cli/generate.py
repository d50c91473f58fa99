"""`lgq sample` and `lgq inpaint`: images that a generator draws, whole or in part."""

from collections import Counter
from collections.abc import Callable, Iterable
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
from lgq.data import to_png
from lgq.distributed import join_processes, rank
from lgq.evaluation.inpainting import Box, box_mask, inpaint_image, read_image, read_mask
from lgq.files import make_directory, replace_file
from lgq.generator import MaskGIT
from lgq.models.sampling import Sampling
from lgq.report.samples import draw_samples, inpainting_strip, sample_grid
from lgq.training.trained import Which, trained_generator

Generator = Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="GEN")]
# Not by `tyro.conf.configure`: within a generator's run these options keep their prefix, as it has steps too.
Drawing = Annotated[Sampling, tyro.conf.arg(name="")]

_CLASSES_SHOWN = 8


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
    weights: Which = "best"
    """Which weights of a run."""
    sampling: Drawing = field(default_factory=Sampling)

    def run(self) -> int:
        device = join_processes()
        # All processes would draw the same, into the same files.
        return 0 if rank() else self._draw(device)

    def _draw(self, device: torch.device) -> int:
        """The work itself; returns the exit code."""
        raise NotImplementedError

    def _trained(self, device: torch.device) -> MaskGIT:
        return trained_generator(self.generator, self.weights).to(device)

    def _how(self, report: Callable[[int, int], None]) -> dict[str, Any]:
        return {"seed": self.seed, "batch_size": self.batch_size, "on_progress": report}


@dataclass(frozen=True, kw_only=True)
class Sample(_Draws):
    """Draw images of classes: as one picture, or as a file each."""

    out: Path
    """A name that ends in .png: one picture, with a band for each class. A name without ending: a directory
    of files such as class-0007-00000.png, the first image of class 7; files of the same name are replaced."""
    classes: tuple[int, ...] = ()
    """Numbers of classes; none takes up to 8 of them, evenly spread over all."""
    count: int = 8
    """Images of each class."""

    def _draw(self, device: torch.device) -> int:
        as_picture = _is_picture(self.out, or_folder=True)
        require_place(self.out.parent if as_picture else self.out)
        require_at_least(1, count=self.count)
        maskgit = self._trained(device)
        chosen = self._chosen(len(maskgit.classes))
        classes = [number for number in chosen for _ in range(self.count)]
        with progress_of("drawing") as report:
            batches = draw_samples(maskgit, classes, self.sampling, **self._how(report))
            if as_picture:
                grid = sample_grid(
                    torch.cat(list(batches)), classes, maskgit.classes, caption=self._caption()
                )
                _write(self.out, grid)
            else:
                _write_files(self.out, batches, classes)
        say(f"{len(classes):,} images of {len(chosen):,} class{'es' * (len(chosen) > 1)}: {self.out}")
        return 0

    def _chosen(self, known: int) -> tuple[int, ...]:
        if not self.classes:
            shown = min(_CLASSES_SHOWN, known)
            return tuple(i * known // shown for i in range(shown))
        if len(set(self.classes)) < len(self.classes):
            given = " ".join(map(str, self.classes))
            raise ValueError(f"--classes names each class once, got {given}: --count is for more images.")
        return self.classes

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
            raise ValueError("give what to draw anew as either --mask FILE or --box LEFT TOP RIGHT BOTTOM.")
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
            raise ValueError(f"the generator knows {known:,} classes: give --label, from 0 to {known - 1}.")
        return self.label or 0


def _is_picture(out: Path, *, or_folder: bool = False) -> bool:
    if out.suffix.lower() == ".png" and not out.is_dir():
        return True
    if or_folder and not out.suffix:
        return False
    rule = "end in .png, and be no directory" + (", or have no ending, for a directory" if or_folder else "")
    raise ValueError(f"--out must {rule}, got {out}.")


def _write(file: Path, png: bytes) -> None:
    make_directory(file.parent)
    replace_file(file, png)


def _write_files(folder: Path, batches: Iterable[Tensor], classes: list[int]) -> None:
    drawn: Counter[int] = Counter()
    images = (image for batch in batches for image in batch)
    for number, image in zip(classes, images, strict=True):
        _write(folder / f"class-{number:04d}-{drawn[number]:05d}.png", to_png(image))
        drawn[number] += 1
