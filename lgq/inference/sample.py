"""Images that a generator draws, as `lgq sample` makes them: files in a directory, or one picture.

    sample("runs/generator", "drawn", classes=("goldfish", 7), count=4)    # drawn/class-0007-00003.png, ...
    sample("runs/generator", "drawn.png", sampling=Sampling(guidance=2.0))

The images of a call are cut into batches in their order, and each batch has a seed of its own
(`lgq.random.batch_seed`). So the images depend on generator, classes, sampling, seed and batch size alone:
any number of processes draws the same files, and any number continues an interrupted call. An evaluation
draws by the same rule: with its seed, `samples=N` gives the images that it measured.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from lgq.checks import require_at_least
from lgq.config import to_json
from lgq.data.loader import evenly_spread
from lgq.data.transforms import to_png
from lgq.distributed import rank, wait_for_all, world_size
from lgq.errors import LGQError
from lgq.files import (
    DamagedFileError,
    Fingerprint,
    WeightsChoice,
    json_bytes,
    require_writable,
    sealed_json,
    unsealed_json,
    write_file,
)
from lgq.inference import Device, GeneratorSource, generator_on_device
from lgq.maskgit import MaskGIT
from lgq.models.sampling import Sampling
from lgq.plots.pictures import sample_grid
from lgq.progress import Progress, unwatched
from lgq.random import SAMPLING_BATCH, batch_seed

NOTE = "drawing.json"
"""File that says how the images of a directory are drawn."""

_CLASSES_SHOWN, _COUNT = 8, 8
_DEFAULT = Sampling()


class Samples(NamedTuple):
    """Result of `sample`."""

    images: int
    """Number of images, over all classes."""
    classes: int
    """Number of classes."""


def sample(
    generator: GeneratorSource,
    out: str | Path,
    *,
    classes: Sequence[int | str] = (),
    count: int | None = None,
    samples: int | None = None,
    sampling: Sampling = _DEFAULT,
    seed: int = 0,
    batch_size: int = SAMPLING_BATCH,
    weights: WeightsChoice = "best",
    device: Device = "auto",
    on_progress: Progress = unwatched,
) -> Samples:
    """Draw images of classes, as a PNG each or as one picture.

    out: a name that ends in .png is one picture, with a band per class. A name without ending is a
        directory of files such as class-0007-00000.png, which processes share; the same call continues
        an interrupted one, with any number of processes.
    classes: names or numbers of classes; none takes up to 8 that spread over all classes, or with `samples`
        all of them.
    count: images per class, 8 by default.
    samples: instead of `count`, images in all: image i has class i modulo the number of classes.
    """
    out = Path(out)
    is_picture = is_one_picture(out)
    if count is not None and samples is not None:
        raise LGQError("give either `count`, images per class, or `samples`, images in all.")
    given = {"count": count, "samples": samples, "batch_size": batch_size}
    require_at_least(1, **{name: number for name, number in given.items() if number is not None})
    name = type(generator).__name__ if isinstance(generator, MaskGIT) else Path(generator).resolve().name
    generator = generator_on_device(generator, weights, device)
    numbers = generator.class_numbers(classes)
    if len(set(numbers)) < len(numbers):
        given_classes = " ".join(map(str, classes))
        raise LGQError(f"`classes` names each class once, got {given_classes}: `count` is for more images.")
    known = len(generator.classes)
    chosen = numbers or evenly_spread(known, known if samples else min(_CLASSES_SHOWN, known))
    if samples is None:
        labels = [number for number in chosen for _ in range(count or _COUNT)]
    else:
        labels = [chosen[i % len(chosen)] for i in range(samples)]
    settings: dict[str, Any] = {"seed": seed, "batch_size": batch_size}
    draw = partial(draw_images, generator, labels, sampling, **settings, on_progress=on_progress)
    if not is_picture:
        # A hash of the classes: there may be a million.
        note = {"images": len(labels), "classes": Fingerprint.of(json_bytes(labels)).sha256} | settings
        note |= {"generator": generator.fingerprint(), "sampling": to_json(sampling)}
        _write_files(out, labels, note, draw)
    elif rank() == 0:
        caption = f"{name}: {sampling.steps} steps, guidance {sampling.guidance:g}, seed {seed}"
        write_file(out, sample_grid(torch.cat(list(draw())), labels, generator.classes, caption=caption))
    return Samples(len(labels), len(chosen))


def draw_images(
    generator: MaskGIT,
    labels: Sequence[int],
    sampling: Sampling = _DEFAULT,
    *,
    seed: int = 0,
    batch_size: int = SAMPLING_BATCH,
    starts: Sequence[int] | None = None,
    on_progress: Progress = unwatched,
) -> Iterator[Float[Tensor, "b 3 s s"]]:
    """Draw one image per label, batch by batch, onto the CPU.

    starts: numbers of the first images of the batches to draw; None draws all.
    """
    require_at_least(1, batch_size=batch_size)
    # Before the first batch is drawn, not when the last one is.
    generator.class_numbers(labels)
    starts = range(0, len(labels), batch_size) if starts is None else starts
    batches = [torch.tensor(labels[first : first + batch_size]) for first in starts]
    done, total = 0, sum(map(len, batches))
    for first, batch in zip(starts, batches, strict=True):
        yield generator.generate(batch, sampling, seed=batch_seed(seed, first)).cpu()
        done += len(batch)
        on_progress(done, total)


def is_one_picture(out: Path) -> bool:
    """Tell whether a name asks for one picture, or for a directory of images; refuse what can be neither."""
    picture = out.suffix.lower() == ".png" and not out.is_dir()
    if not picture and out.suffix and (out.suffix.lower() == ".png" or not out.is_dir()):
        rule = "end in .png, and be no directory, or have no ending, for a directory"
        raise LGQError(f"`out` must {rule}, got {out}.")
    require_writable(out.parent if picture else out)
    return picture


def _write_files(
    folder: Path, labels: list[int], note: dict[str, Any], draw: Callable[..., Iterator[Tensor]]
) -> None:
    """Write the images as files; batches of which every file exists are not drawn again."""
    drawn: Counter[int] = Counter()
    names = []
    for label in labels:
        names.append(f"class-{label:04d}-{drawn[label]:05d}.png")
        drawn[label] += 1
    _require_same(folder, note)
    wait_for_all()
    if rank() == 0 and not (folder / NOTE).exists():
        # Files of these names came from elsewhere.
        for name in {*names} & {*(os.listdir(folder) if folder.exists() else ())}:
            (folder / name).unlink()
        write_file(folder / NOTE, sealed_json(note))
    wait_for_all()
    present, size = set(os.listdir(folder)), note["batch_size"]
    mine = range(0, len(names), size)[rank() :: world_size()]
    missing = [first for first in mine if not present.issuperset(names[first : first + size])]
    for first, images in zip(missing, draw(starts=missing), strict=True):
        for name, image in zip(names[first : first + size], images, strict=True):
            if name not in present:
                write_file(folder / name, to_png(image))
    wait_for_all()


def _require_same(folder: Path, expected: dict[str, Any]) -> None:
    try:
        note = unsealed_json((folder / NOTE).read_bytes())
    except FileNotFoundError:
        return
    except DamagedFileError as error:
        raise LGQError(f"{folder / NOTE} {error}: choose another directory.") from error
    for name, value in expected.items():
        if note.get(name) != value:
            raise LGQError(
                f"{folder} holds images of another drawing ({name} not the same): repeat that command to "
                "continue it, or choose another directory."
            )
