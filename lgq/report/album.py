"""Pictures of runs, small enough to live inside a page: reconstructions, samples, use and norms of codes."""

from base64 import b64encode
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image

from lgq.data.images import BrokenImage, decode
from lgq.report.finished import FinishedRun
from lgq.report.ledger import Ledger

_WIDEST = 1024
"""Pixels that a picture keeps along its width."""
_DRAWN_COLOURS = 48
"""Enough for a plot."""
_LARGE = 96_000
"""Bytes from which on photographs are compressed with some loss."""


@dataclass(frozen=True)
class Picture:
    caption: str
    run: str
    """Id of the run that it shows; empty for what none made."""
    uri: str
    width: int
    height: int
    alternative: str


@dataclass(frozen=True)
class Album:
    """Pictures of one kind, over all tokenizers."""

    anchor: str
    title: str
    about: str
    pictures: tuple[Picture, ...]
    of_pixels: bool
    """Whether they show photographs in rows, rather than plots."""


def albums(ledger: Ledger) -> list[Album]:
    """Of the first finished seed of each row of the comparison, and of the generators; none that is empty."""
    tokenizers, generators = first_seeds(ledger, "comparison"), first_seeds(ledger, "generation")
    originals = _inline(ledger, ledger.results.originals, "originals", "", "the original images", plot=False)
    grid = _pictures(ledger, tokenizers, "reconstructions", "the same images through {}", plot=False)
    found = [
        Album(
            "reconstructions",
            "Reconstructions",
            "The same held-out images through every tokenizer of the comparison. Originals come first.",
            ((originals,) if originals and grid else ()) + grid,
            True,
        ),
        Album(
            "samples",
            "Samples",
            f"Not selected: the first images that each generator drew. {_classes(generators)}",
            _pictures(ledger, generators, "samples", "samples of the generator on {}", plot=False),
            True,
        ),
        *(_plots(ledger, tokenizers, *kind) for kind in _PLOTS),
    ]
    return [album for album in found if album.pictures]


_PLOTS = (
    ("usage", "How codes are used", "Codes by their frequency, against codes that all occur alike."),
    ("norms", "Norms of codes", "Norm and use of every code. Fixed grids have no norms that were learned."),
    ("overlay", "Codes among latents", "Where codes lie among the vectors that they stand for."),
)


def shown_files(ledger: Ledger) -> list[Path]:
    """Where the pictures of the albums would lie."""
    runs = [run for name in ("comparison", "generation") for run in first_seeds(ledger, name).values()]
    stems = ("reconstructions", "samples", *(stem for stem, _, _ in _PLOTS))
    folders = [ledger.results.pictures(run.id) for run in runs]
    return [ledger.results.originals, *(folder / f"{stem}.png" for folder in folders for stem in stems)]


def first_seeds(ledger: Ledger, experiment: str) -> dict[str, FinishedRun]:
    """The finished run with the smallest seed of each row, by the row's label."""
    plan = ledger.plans.get(experiment)
    found: dict[str, FinishedRun] = {}
    for row in sorted(plan.rows, key=lambda row: row.seed) if plan else ():
        if row.id in ledger.runs:
            found.setdefault(row.label, ledger.runs[row.id])
    order = dict.fromkeys(row.label for row in plan.rows) if plan else {}
    return {label: found[label] for label in order if label in found}


def _plots(ledger: Ledger, runs: dict[str, FinishedRun], stem: str, title: str, about: str) -> Album:
    return Album(
        stem, title, about, _pictures(ledger, runs, stem, f"{title.lower()}: {{}}", plot=True), False
    )


def _classes(generators: dict[str, FinishedRun]) -> str:
    """What stands at each place, if all generators drew the same."""
    shown: list[Any] = [run.record.get("shown_classes") for run in generators.values()]
    if not shown or not isinstance(shown[0], list) or any(each != shown[0] for each in shown):
        return ""
    # ImageNet names a class by all its synonyms.
    names = [str(name).split(",")[0] for name in shown[0]]
    return f"At each place all have the same class; row by row: {'; '.join(names)}."


def _pictures(
    ledger: Ledger, runs: dict[str, FinishedRun], stem: str, alternative: str, *, plot: bool
) -> tuple[Picture, ...]:
    made = (
        _inline(
            ledger,
            ledger.results.pictures(run.id) / f"{stem}.png",
            label,
            run.id,
            alternative.format(label),
            plot=plot,
        )
        for label, run in runs.items()
    )
    return tuple(picture for picture in made if picture)


def _inline(
    ledger: Ledger, path: Path, caption: str, run: str, alternative: str, *, plot: bool
) -> Picture | None:
    """A file as a part of the page; one that is no picture is noted as damaged."""
    if not path.is_file():
        return None
    try:
        # By way of its pixels: what else the file says would be written into the page.
        image = _shrunk(Image.fromarray(decode(path.read_bytes(), path.name)))
    except (OSError, BrokenImage) as error:
        ledger.leave_out(path, error)
        return None
    kind, data = _encoded(image, plot=plot)
    uri = f"data:image/{kind};base64,{b64encode(data).decode()}"
    return Picture(caption, run, uri, image.width, image.height, alternative)


def _shrunk(image: Image.Image) -> Image.Image:
    if image.width <= _WIDEST:
        return image
    size = (_WIDEST, max(1, round(image.height * _WIDEST / image.width)))
    return image.resize(size, Image.Resampling.LANCZOS)


def _encoded(image: Image.Image, *, plot: bool) -> tuple[str, bytes]:
    drawn = image.quantize(_DRAWN_COLOURS, dither=Image.Dither.NONE) if plot else image
    data = _saved(drawn, "PNG", optimize=True)
    if plot or len(data) <= _LARGE:
        return "png", data
    return "webp", _saved(image, "WEBP", quality=90)


def _saved(image: Image.Image, kind: str, **options: Any) -> bytes:
    file = BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()
