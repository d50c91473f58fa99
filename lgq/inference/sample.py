"""Images of a generator as files: processes share the batches, and a call that was stopped goes on.

    how = Drawing(classes=(0, 0, 7, 7), sampling=Sampling(steps=11), seed=1)
    draw_files(maskgit, how, "drawn")

Batches are numbered through, whoever draws them, and each has a seed of its own (`batch_seed`). So the files
belong to the drawing alone: any number of processes makes the same ones, and any number goes on with them.
"""

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from lgq.checks import require_at_least
from lgq.config import to_json
from lgq.data.transforms import to_png
from lgq.distributed import wait_for_all
from lgq.errors import LGQError
from lgq.files import (
    DamagedFileError,
    Fingerprint,
    json_bytes,
    make_directory,
    replace_file,
    sealed_json,
    unsealed_json,
)
from lgq.maskgit import MaskGIT
from lgq.models.sampling import Sampling
from lgq.progress import Progress, unwatched
from lgq.random import batch_seed

NOTE = "drawing.json"
"""Says in a directory of images how they are drawn."""


class DrawingError(LGQError):
    """A directory that this drawing cannot go on with; says why, and the way out."""


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """All that images depend on, but the generator."""

    classes: tuple[int, ...]
    """The class of each image."""
    sampling: Sampling = field(default_factory=Sampling)
    seed: int = 0
    batch_size: int = 32

    def __post_init__(self) -> None:
        require_at_least(1, batch_size=self.batch_size)

    @property
    def names(self) -> list[str]:
        """A file for each image: its class, and how many of that class come before it."""
        drawn: Counter[int] = Counter()
        names = []
        for number in self.classes:
            names.append(f"class-{number:04d}-{drawn[number]:05d}.png")
            drawn[number] += 1
        return names


def in_turns(classes: Sequence[int], images: int) -> tuple[int, ...]:
    """So many images, one class after the other: those that `evaluate_generation` draws of all classes."""
    require_at_least(1, images=images)
    return tuple(classes[i % len(classes)] for i in range(images))


def draw_samples(
    maskgit: MaskGIT,
    classes: Sequence[int],
    sampling: Sampling,
    *,
    seed: int = 0,
    batch_size: int = 32,
    on_progress: Progress = unwatched,
) -> Iterator[Float[Tensor, "b 3 s s"]]:
    """Draw one image per class, batch by batch, on the CPU; the same for the same seed and batch size."""
    require_at_least(1, batch_size=batch_size)
    # Checked before the first batch is drawn, not when the last one is.
    maskgit.require_classes(classes)
    for first in range(0, len(classes), batch_size):
        labels = torch.tensor(classes[first : first + batch_size])
        yield maskgit.generate(labels, sampling, seed=batch_seed(seed, first)).cpu()
        on_progress(min(first + batch_size, len(classes)), len(classes))


def draw_files(
    maskgit: MaskGIT,
    drawing: Drawing,
    folder: str | Path,
    *,
    rank: int = 0,
    world_size: int = 1,
    on_progress: Progress = unwatched,
) -> int:
    """Write each image of a drawing as a PNG; returns how many this process drew.

    rank, world_size: which of the batches it draws: every `world_size`-th, from the `rank`-th on. All
        processes must call, and none returns before all files are there.

    A call that was stopped is continued by the same call: batches of which every file is there are not
    drawn again. A directory with images of another drawing is refused.
    """
    folder = Path(folder)
    maskgit.require_classes(drawing.classes)
    note = _note(maskgit, drawing)
    _require_same(folder, note)
    wait_for_all()
    if rank == 0:
        _claim(folder, note, drawing.names)
    wait_for_all()
    drawn = _draw_missing(maskgit, drawing, folder, rank, world_size, on_progress)
    wait_for_all()
    return drawn


def _draw_missing(
    maskgit: MaskGIT, drawing: Drawing, folder: Path, rank: int, world_size: int, report: Progress
) -> int:
    names, size = drawing.names, drawing.batch_size
    mine = [names[first : first + size] for first in range(0, len(names), size)][rank::world_size]
    there = set(os.listdir(folder)) if mine else set()
    total, done, drawn = sum(map(len, mine)), 0, 0
    for turn, batch in enumerate(mine):
        if missing := set(batch) - there:
            first = (rank + turn * world_size) * size
            for name, png in zip(batch, _pngs(maskgit, drawing, first), strict=True):
                if name in missing:
                    replace_file(folder / name, png)
                    drawn += 1
        done += len(batch)
        report(done, total)
    return drawn


def _pngs(maskgit: MaskGIT, drawing: Drawing, first: int) -> Iterator[bytes]:
    """The batch that begins with this image."""
    chosen = torch.tensor(drawing.classes[first : first + drawing.batch_size])
    images = maskgit.generate(chosen, drawing.sampling, seed=batch_seed(drawing.seed, first))
    return map(to_png, images.cpu())


def _note(maskgit: MaskGIT, drawing: Drawing) -> dict[str, Any]:
    # Of the classes a hash: there may be a million.
    classes = Fingerprint.of(json_bytes(drawing.classes)).sha256
    found = {"generator": maskgit.fingerprint(), "images": len(drawing.classes)}
    return found | to_json(replace(drawing, classes=())) | {"classes": classes}


def _claim(folder: Path, note: dict[str, Any], names: list[str]) -> None:
    """Say whose images are to come, once none of the same names is left that came from elsewhere."""
    if not (folder / NOTE).exists():
        make_directory(folder)
        for name in {*names} & {*os.listdir(folder)}:
            (folder / name).unlink()
        replace_file(folder / NOTE, sealed_json(note))


def _require_same(folder: Path, wanted: dict[str, Any]) -> None:
    try:
        found = unsealed_json((folder / NOTE).read_bytes())
    except FileNotFoundError:
        return
    except DamagedFileError as error:
        raise DrawingError(f"{folder / NOTE} {error}: choose another directory.") from error
    for name, value in wanted.items():
        if found.get(name) != value:
            raise DrawingError(
                f"{folder} holds images of another drawing ({name} not the same): repeat that command to go "
                "on with it, or choose another directory."
            )
