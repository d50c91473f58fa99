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

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from PIL import Image

from lgq.data.images import decode
from lgq.errors import LGQError
from lgq.files import make_directory, replace_file
from lgq.reporting import charts
from lgq.reporting.claims import count_outcomes, decide_claims
from lgq.reporting.paper_tables import all_tables, runs_table
from lgq.reporting.result_set import ResultSet, RunRecord, read_result_set
from lgq.training.journal import METRICS

_TEMPLATES = Path(__file__).parent / "templates"
_MOST_WIDTH = 1024
"""Largest width of a picture in pixels; wider ones are scaled down."""
_PLOT_COLOURS = 48
"""Number of colours that a plot keeps."""
_LOSSY_BYTES = 96_000
"""Size from which on photographs are compressed with loss."""
_PLOTS = {
    "usage": ("Use of codes", "Codes by frequency, against a uniform distribution."),
    "norms": ("Norms of codes", "Norm and frequency of every code. Fixed grids have no learned norms."),
    "overlay": ("Codes among latents", "Positions of codes among the latents that they stand for."),
}
"""Title and description of each kind of plot, by the stem of its files."""


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

    copy: directory for a copy of the records, curves and pictures behind the page, without weights; None
        copies nothing.
    """
    page_file = Path(out)
    if page_file.is_dir():
        raise LGQError(f"{out} is a directory: give a file such as {page_file / 'report.html'}.")
    if copy is not None and Path(copy).resolve() == Path(results).resolve():
        raise LGQError(f"{copy} is the results directory itself: choose another directory for the copy.")
    result_set = read_result_set(results)
    page = report_page(result_set).encode("utf-8", "replace")
    make_directory(page_file.absolute().parent)
    replace_file(page_file, page)
    return ReportSummary(
        runs=len(result_set.runs),
        bytes=len(page),
        outcomes={str(outcome): n for outcome, n in count_outcomes(decide_claims(result_set)).items()},
        damaged=result_set.damaged,
        kept_bytes=None if copy is None else _keep(result_set, Path(copy)),
    )


def report_page(results: ResultSet) -> str:
    """The page as HTML."""
    verdicts, pictures = decide_claims(results), albums(results)
    # Everything that comes from a file is escaped, and a name that a template misspells is an error.
    templates = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return templates.get_template("page.html.jinja").render(
        plans=results.plans,
        runs=results.runs,
        failed={run.id: run.failed for run in results.runs.values() if run.failed},
        warned={run.id: run.warnings for run in results.runs.values() if run.warnings},
        tables=all_tables(results),
        charts={name: shown for name in results.plans if (shown := charts.charts_of(results, name))},
        frame=charts,
        albums=pictures,
        verdicts=verdicts,
        counts=count_outcomes(verdicts),
        all_runs=runs_table(results),
        # Read after the pictures, some of which may turn out to be damaged.
        damaged=results.damaged,
    )


def _keep(results: ResultSet, target: Path) -> int:
    """Copy what the page shows to another directory; return the number of bytes.

    The copy is itself a results directory: it gives the same page, and `lgq experiment` skips the rows that
    are finished in it.
    """
    directory = results.directory
    files = [
        *directory.root.glob("experiments/*.json"),
        *directory.root.glob("rows/*.json"),
        *(directory.run(id) / METRICS for id in results.runs),
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
    if grids and (originals := _inline(results, results.directory.originals, plot=False)):
        grids.insert(0, Picture("originals", "", "the original images", *originals))
    same_images = "The same held-out images through every tokenizer of the comparison. Originals come first."
    samples = _pictures(results, generators, "samples", "samples of the generator on {}")
    first_samples = f"Not selected: the first samples of each generator. {_class_names(generators)}"
    shown = [
        Album("reconstructions", "Reconstructions", same_images, grids),
        Album("samples", "Samples", first_samples, samples),
    ]
    for stem, (title, about) in _PLOTS.items():
        plots = _pictures(results, tokenizers, stem, f"{title.lower()}: {{}}")
        shown.append(Album(stem, title, about, plots))
    return [album for album in shown if album.pictures]


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
    return f"Every grid has the same classes at the same places; row by row: {'; '.join(names)}."


def _pictures(results: ResultSet, runs: dict[str, RunRecord], stem: str, description: str) -> list[Picture]:
    pictures = []
    for label, run in runs.items():
        path = results.directory.pictures(run.id) / f"{stem}.png"
        if image := _inline(results, path, plot=stem in _PLOTS):
            pictures.append(Picture(label, run.id, description.format(label), *image))
    return pictures


def _inline(results: ResultSet, path: Path, *, plot: bool) -> tuple[str, int, int] | None:
    """Data URI, width and height; None where there is no file, or a damaged one, which is noted."""
    if not path.is_file():
        return None
    with results.noting_damage(path):
        # Decoded and encoded again, so that nothing else in the file reaches the page.
        image = Image.fromarray(decode(path.read_bytes(), path.name))
        if image.width > _MOST_WIDTH:
            size = (_MOST_WIDTH, max(1, round(image.height * _MOST_WIDTH / image.width)))
            image = image.resize(size, Image.Resampling.LANCZOS)
        encoded = image.quantize(_PLOT_COLOURS, dither=Image.Dither.NONE) if plot else image
        kind, data = "png", _saved(encoded, "PNG", optimize=True)
        if not plot and len(data) > _LOSSY_BYTES:
            kind, data = "webp", _saved(image, "WEBP", quality=90)
        return f"data:image/{kind};base64,{b64encode(data).decode()}", image.width, image.height
    return None


def _saved(image: Image.Image, kind: str, **options: Any) -> bytes:
    file = BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()
