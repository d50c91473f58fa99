"""The report as one HTML page: tables, curves, pictures, claims and all runs.

    summary = report("results", "report.html")

The page loads nothing from elsewhere: styles, charts and pictures are inside. The same results give the
same page.
"""

from base64 import b64encode
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import UInt8
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from PIL import Image, ImageColor

from lgq.data.images import decode
from lgq.errors import LGQError
from lgq.experiments.tasks import AutoencoderTask
from lgq.files import make_directory, replace_file
from lgq.hub import BEST, CONFIG, ENVIRONMENT
from lgq.plots import palette
from lgq.plots.canvas import BLUE
from lgq.plots.palette import Style
from lgq.reporting import charts
from lgq.reporting.claims import count_outcomes, decide_claims
from lgq.reporting.overview import changes_since
from lgq.reporting.paper_tables import Column, Table, all_tables, describe_basis, runs_table, slug
from lgq.reporting.result_set import ResultSet, RunRecord, read_result_set
from lgq.training.journal import METRICS

VIEW = "view.html"
"""Page of `lgq view --export` that a report beside it links."""
_TEMPLATES = Path(__file__).parent / "templates"
_MOST_WIDTH = 1024
"""Largest width of a picture in pixels; wider ones are scaled down."""
_PLOT_COLOURS = 48
"""Number of colours that a plot keeps."""
_LOSSY_BYTES = 96_000
"""Size from which on photographs are compressed with loss."""
_PLOTS = {
    "usage": (
        "Use of codes",
        "How often each code is used, the most frequent first. The dashed line is where all codes would be "
        "if they were equally frequent; codes in the grey part are never used.",
    ),
    "norms": (
        "Norms of codes",
        "Norm of every learned code, and how many tokens it stands for. Fixed grids (FSQ, LFQ) have no "
        "learned norms.",
    ),
    "overlay": (
        "Codes among latents",
        "Codes among the latents of the encoder that they stand for, projected to a plane: grey dots are "
        "latents, darker codes have more tokens, crosses are codes that are never used.",
    ),
}
"""Title and description of each kind of plot, by the stem of its files."""
_SCALES = {
    "smoke": "a trial of seconds, to see that everything works; its numbers mean nothing",
    "pocket": "the paper's protocol made small for two CPU cores",
    "imagenet256": "the paper's protocol",
}
"""What each scale is, in words."""
_TINTED = ("usage", "norms")
"""Plots in the colour of their quantizer."""


@dataclass(frozen=True)
class ReportSummary:
    """What a written report contains."""

    runs: int
    bytes: int
    """Size of the page."""
    outcomes: dict[str, int]
    """Number of claims by outcome."""
    damaged: dict[str, str]
    """Files that were left out, with the reason."""
    kept_bytes: int | None
    """Size of the copy of the results; None where none was asked for."""


class Picture(NamedTuple):
    """A picture inside the page."""

    caption: str
    run: str
    """Id of the run that it shows; empty for the originals."""
    description: str
    """The picture in words, for screen readers."""
    uri: str
    width: int
    height: int
    style: Style | None = None
    """Style of its quantizer in the charts; None where it has none, as the originals."""


class Album(NamedTuple):
    """Pictures of one kind, one per run."""

    stem: str
    """Stem of the names of its files."""
    title: str
    about: str
    pictures: list[Picture]


def report(
    results: str | Path, out: str | Path = "report.html", *, copy: str | Path | None = None
) -> ReportSummary:
    """Write the report of a results directory to the HTML file `out`.

    Where a page of `lgq view --export` is beside it as view.html, the report links it.

    copy: directory for a copy of the records, curves and pictures behind the page, without the weights of
        tokenizers and generators; None copies nothing.
    """
    page_file = Path(out)
    if page_file.is_dir():
        raise LGQError(f"{out} is a directory: give a file such as {page_file / 'report.html'}.")
    if copy is not None and Path(copy).resolve() == Path(results).resolve():
        raise LGQError(f"{copy} is the results directory itself: choose another directory for the copy.")
    result_set = read_result_set(results)
    view = page_file.absolute().parent / VIEW
    page = report_page(result_set, view=VIEW if view.is_file() else None).encode("utf-8", "replace")
    make_directory(page_file.absolute().parent)
    replace_file(page_file, page)
    return ReportSummary(
        runs=len(result_set.runs),
        bytes=len(page),
        outcomes={str(outcome): n for outcome, n in count_outcomes(decide_claims(result_set)).items()},
        damaged=result_set.damaged,
        kept_bytes=None if copy is None else _keep(result_set, Path(copy)),
    )


def report_page(results: ResultSet, *, view: str | None = None) -> str:
    """The page as HTML.

    view: address of a page that `lgq view --export` wrote, to link.
    """
    verdicts, pictures, tables = decide_claims(results), albums(results), all_tables(results)
    # Everything that comes from a file is escaped, and a name that a template misspells is an error.
    templates = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters["slug"] = slug
    return templates.get_template("page.html.jinja").render(
        plans=results.plans,
        runs=results.runs,
        failed={run.id: run.failed for run in results.runs.values() if run.failed},
        warned={run.id: run.warnings for run in results.runs.values() if run.warnings},
        mixed=results.mixed,
        scales=_SCALES,
        changes=changes_since(results),
        timing_ratio=results.timing_ratio,
        tables=tables,
        columns=columns_of([table for table in tables if table.was_run]),
        charts={name: shown for name in results.plans if (shown := charts.charts_of(results, name))},
        frame=charts,
        palette=palette,
        albums=pictures,
        verdicts=verdicts,
        counts=count_outcomes(verdicts),
        all_runs=runs_table(results),
        # Read after the pictures, some of which may turn out to be damaged.
        damaged=results.damaged,
        view=view,
    )


def columns_of(tables: list[Table]) -> dict[str, Column]:
    """All columns of the tables, by their headings."""
    return {column.heading: column for table in tables for column in table.spec.columns}


def _keep(results: ResultSet, target: Path) -> int:
    """Copy what the page shows to another directory; return the number of bytes.

    The copy is itself a results directory: it gives the same page, and `lgq experiment` skips the rows that
    are finished in it. It has the weights of autoencoders, so that rows to come start from the same ones:
    trained on another machine, they would differ in rounding.
    """
    directory = results.directory
    files = [
        *directory.root.glob("experiments/*.json"),
        *directory.root.glob("rows/*.json"),
        *(directory.run(id) / METRICS for id in results.runs),
        *(
            file
            for run in results.runs.values()
            if run.kind == AutoencoderTask.kind
            for name in (CONFIG, ENVIRONMENT, f"{BEST}/*")
            for file in directory.run(run.id).glob(name)
        ),
        directory.originals,
        *(
            directory.pictures(run.id) / f"{stem}.png"
            for experiment in ("comparison", "generation")
            for run in first_seeds(results, experiment).values()
            for stem in ("reconstructions", "samples", *_PLOTS)
        ),
    ]
    present = [file for file in files if file.is_file()]
    for file in present:
        copy = target / file.relative_to(directory.root)
        make_directory(copy.parent)
        replace_file(copy, file.read_bytes())
    return sum(file.stat().st_size for file in present)


def albums(results: ResultSet) -> list[Album]:
    """Pictures of the first finished seed of each row of the comparison, and of the generators."""
    tokenizers, generators = first_seeds(results, "comparison"), first_seeds(results, "generation")
    grids = _pictures(results, tokenizers, "reconstructions", "the same images through {}")
    images = f"{round(grids[0].width / grids[0].height)} images" if grids else ""
    if grids and (originals := _inline(results, results.directory.originals)):
        grids.insert(0, Picture("originals", "", "the original images", *originals))
    shown = results.plans["comparison"].shown if grids else ""
    same_images = f"The same {images} of {shown} through every tokenizer of the comparison, one seed each. "
    samples = _pictures(results, generators, "samples", "samples of the generator on {}")
    first_samples = "Not selected: the first samples of each generator, one training seed each. "
    made = [
        Album("reconstructions", "Reconstructions", f"{same_images}Originals come first.", grids),
        Album("samples", "Samples", f"{first_samples}{_class_names(generators)}", samples),
    ]
    counted = describe_basis(tokenizers.values(), "geometry")
    basis = f" Counted on {counted}, one training seed each." if counted else " One training seed each."
    for stem, (title, about) in _PLOTS.items():
        plots = _pictures(results, tokenizers, stem, f"{title.lower()}: {{}}")
        made.append(Album(stem, title, f"{about}{basis}", plots))
    return [album for album in made if album.pictures]


def first_seeds(results: ResultSet, experiment: str) -> dict[str, RunRecord]:
    """The finished run with the smallest seed of each row, by the row's label."""
    rows = results.rows(experiment)
    return {row.label: min(runs, key=lambda run: run.seed or 0) for row, runs in rows if runs}


def _class_names(generators: dict[str, RunRecord]) -> str:
    """The class at each place of the sample grids, where all generators drew the same classes."""
    drawn: list[Any] = [run.record.get("shown_classes") for run in generators.values()]
    if not drawn or not isinstance(drawn[0], list) or any(classes != drawn[0] for classes in drawn):
        return ""
    # ImageNet names a class by all its synonyms.
    names = [str(name).split(",")[0] for name in drawn[0]]
    same = f"Every grid has the same {len(names)} classes at the same places"
    return f"{same}; row by row: {'; '.join(names)}."


def _pictures(results: ResultSet, runs: dict[str, RunRecord], stem: str, description: str) -> list[Picture]:
    pictures, styles = [], palette.styles_of(results.quantizers)
    for label, run in runs.items():
        path, style = results.directory.pictures(run.id) / f"{stem}.png", styles.get(run.setting("quantizer"))
        colour = style.light if style and stem in _TINTED else BLUE
        if image := _inline(results, path, plot=stem in _PLOTS, colour=colour):
            pictures.append(Picture(label, run.id, description.format(label), *image, style))
    return pictures


def _inline(
    results: ResultSet, path: Path, *, plot: bool = False, colour: str = BLUE
) -> tuple[str, int, int] | None:
    """Data URI, width and height; None where there is no file, or a damaged one, which is noted."""
    if not path.is_file():
        return None
    with results.noting_damage(path):
        # Decoded and encoded again, so that nothing else in the file reaches the page.
        image = Image.fromarray(tinted(decode(path.read_bytes(), path.name), colour))
        if image.width > _MOST_WIDTH:
            size = (_MOST_WIDTH, max(1, round(image.height * _MOST_WIDTH / image.width)))
            image = image.resize(size, Image.Resampling.LANCZOS)
        encoded = image.quantize(_PLOT_COLOURS, dither=Image.Dither.NONE) if plot else image
        kind, data = "png", _saved(encoded, "PNG", optimize=True)
        if not plot and len(data) > _LOSSY_BYTES:
            kind, data = "webp", _saved(image, "WEBP", quality=90)
        return f"data:image/{kind};base64,{b64encode(data).decode()}", image.width, image.height
    return None


def tinted(pixels: UInt8[np.ndarray, "h w 3"], colour: str) -> UInt8[np.ndarray, "h w 3"]:
    """Return a plot with `colour` in place of BLUE, in which earlier versions drew every quantizer."""
    if colour == BLUE:
        return pixels
    blue, wanted = (np.array(ImageColor.getrgb(name)[:3], dtype=float) for name in (BLUE, colour))
    # BLUE has no red, so red tells how much BLUE there is over white at the edge of a mark.
    share = 1 - pixels[..., :1] / 255
    is_blue = np.abs(255 - share * (255 - blue) - pixels).max(2, keepdims=True) < 24
    is_blue &= pixels[..., 2:].astype(int) - pixels[..., :1] > 100 * share
    mixed = 255 - share * (255 - wanted)
    return np.where(is_blue, mixed, pixels).round().astype(np.uint8)


def _saved(image: Image.Image, kind: str, **options: Any) -> bytes:
    file = BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()
