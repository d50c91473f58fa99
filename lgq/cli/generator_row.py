"""The paper's row for a generator."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from rich.table import Table
from torch import Tensor

from lgq.checks import require_at_least
from lgq.cli.console import progress_of
from lgq.cli.findings import Column, Findings, Request, in_columns, row_table
from lgq.cli.likelihood_row import likelihood_of, likelihood_table, open_token_sets
from lgq.data import ImageDataset
from lgq.errors import LGQError
from lgq.maskgit import MaskGIT, load_generator
from lgq.metrics.generation import (
    GenerationEvaluation,
    evaluate_generation,
    require_comparable,
    require_drawable,
    require_inception,
)
from lgq.metrics.metric_networks import MetricNetworks, judges_of_generation
from lgq.metrics.reference import RealImages, reference_of_file, reference_of_images
from lgq.models.inception import InceptionV3
from lgq.models.sampling import Sampling
from lgq.plots.pictures import sample_grid

_SAMPLES = 50_000
_COLUMNS: dict[str, Column] = {
    "gfid": ("gFID", "{:.2f}".format),
    "inception_score": ("IS", "{:.2f}".format),
    "kid": ("KID x 1000", lambda value: f"{1000 * value:.3f}"),
    "precision": ("precision", "{:.3f}".format),
    "recall": ("recall", "{:.3f}".format),
}


@dataclass(frozen=True, kw_only=True)
class GeneratorQuestions:
    """What is asked of a generator alone."""

    reference: Path | None = None
    """Statistics that a generator's images are compared with in the place of --data: an .npz file with mu
    and sigma."""
    seeds: tuple[int, ...] = (0, 1, 2, 3)
    """Sampling seeds, with each of which a generator draws all its images."""
    tokens: Path | None = None
    """Measure also how likely a generator finds tokens that are hidden from it, of this directory."""
    train_tokens: Path | None = None
    """The tokens that it was trained on, whose frequencies are then the yardstick; without, those of
    --tokens themselves."""
    sampling: Sampling = field(default_factory=Sampling)
    """How a generator's images are drawn."""

    def asked(self) -> list[str]:
        """Options that differ from their defaults."""
        usual = GeneratorQuestions()._options()
        given = [name for name, value in self._options().items() if value != usual[name]]
        return [f"--{name.replace('_', '-')}" for name in given]

    def _options(self) -> dict[str, Any]:
        own = {name: value for name, value in vars(self).items() if name != "sampling"}
        return own | {f"sampling.{name}": value for name, value in vars(self.sampling).items()}


def of_generator(
    request: Request, questions: GeneratorQuestions, images: ImageDataset | None, device: torch.device
) -> Findings:
    """Images that it draws, beside real ones; and the likelihood of real tokens; whichever is asked for."""
    _require_question(request, questions, images)
    generator = load_generator(request.source, request.weights).to(device)
    # Whatever may be refused comes before the first of several long works.
    sets = open_token_sets(questions.tokens, questions.train_tokens, generator)
    draws = _draws(questions, images)
    jury = _jury(questions.reference, device) if draws else None
    record: dict[str, Any] = {
        "fingerprint": generator.tokenizer.fingerprint(),
        "image_size": generator.image_size,
    }
    if sets:
        limit = None if draws else request.images
        record["likelihood"] = likelihood_of(generator, sets, request.batch_size, device, limit)
    tables = [likelihood_table(record["likelihood"])] if sets else []
    if jury is None:
        return Findings(settings=generator.settings, record=record, tables=tables)
    evaluation = _generation(generator, request, questions, images, jury, device)
    return Findings(
        settings=generator.settings,
        record=record | {"sampling": asdict(questions.sampling)} | evaluation.record(),
        tables=[_generation_table(evaluation), *tables],
        absent=evaluation.absent,
        draw=lambda: {"samples": _grid(generator, evaluation.pictures)},
    )


def _require_question(request: Request, questions: GeneratorQuestions, images: ImageDataset | None) -> None:
    if images is not None and questions.reference is not None:
        raise LGQError("a generator is compared with --data or with --reference: give one of them.")
    if not _draws(questions, images) and questions.tokens is None:
        raise LGQError(
            "a generator is compared with real images: give --data, --reference, or --tokens for likelihoods."
        )
    if questions.train_tokens is not None and questions.tokens is None:
        raise LGQError("--train-tokens is a yardstick for --tokens: give both.")
    if not _draws(questions, images):
        _require_no_drawing(request, questions)
        return
    require_at_least(2, images=_samples(request))
    require_drawable(_samples(request), questions.seeds, request.batch_size)
    if images is not None and len(images) < 2:
        raise LGQError(
            f"{images!r} holds {len(images)} image, and statistics take 2 at least: give more with --data."
        )


def _draws(questions: GeneratorQuestions, images: ImageDataset | None) -> bool:
    """Whether there is anything to compare images with."""
    return images is not None or questions.reference is not None


def _require_no_drawing(request: Request, questions: GeneratorQuestions) -> None:
    """Refuse options about images that --tokens alone does not draw."""
    require_at_least(1, batch_size=request.batch_size)
    if request.images is not None:
        require_at_least(1, images=request.images)
    useless = [option for option in questions.asked() if option.startswith(("--seeds", "--sampling."))]
    if useless:
        raise LGQError(
            f"{useless[0]} asks nothing of --tokens, for which no image is drawn: leave it out, or give "
            "--data or --reference too."
        )


def _samples(request: Request) -> int:
    return _SAMPLES if request.images is None else request.images


def _jury(file: Path | None, device: torch.device) -> tuple[MetricNetworks, RealImages | None]:
    """The judges of images, and the statistics of real ones, where a file has them."""
    judges = judges_of_generation(device)
    require_inception(judges)
    if file is None:
        return judges, None
    statistics = reference_of_file(file)
    require_comparable(statistics, judges)
    return judges, statistics


def _generation(
    generator: MaskGIT,
    request: Request,
    questions: GeneratorQuestions,
    images: ImageDataset | None,
    jury: tuple[MetricNetworks, RealImages | None],
    device: torch.device,
) -> GenerationEvaluation:
    judges, reference = jury
    if images is not None:
        reference = _read(images, generator.image_size, require_inception(judges), request, device)
    assert reference is not None
    with progress_of("drawing and judging") as report:
        return evaluate_generation(
            lambda classes, seed: generator.generate(classes, questions.sampling, seed=seed),
            len(generator.classes),
            reference,
            judges,
            samples=_samples(request),
            seeds=questions.seeds,
            batch_size=request.batch_size,
            device=device,
            on_progress=report,
        )


def _read(
    images: ImageDataset, size: int, inception: InceptionV3, request: Request, device: torch.device
) -> RealImages:
    with progress_of("reading real images") as report:
        return reference_of_images(
            images,
            size,
            inception,
            device,
            batch_size=request.batch_size,
            workers=request.workers,
            on_progress=report,
        )


def _generation_table(evaluation: GenerationEvaluation) -> Table:
    values = in_columns(evaluation.metrics, _COLUMNS)
    spread = in_columns(evaluation.std, _COLUMNS)
    with_spread = {
        heading: value if spread[heading] == "-" else f"{value} ± {spread[heading]}"
        for heading, value in values.items()
    }
    seeds = f", of each of {len(evaluation.seeds)} seeds" if len(evaluation.seeds) > 1 else ""
    return row_table(with_spread, title=f"{evaluation.images:,} images{seeds}")


def _grid(generator: MaskGIT, pictures: Float[Tensor, "p 3 s s"]) -> bytes:
    """The first images, which are of the first classes."""
    classes = [number % len(generator.classes) for number in range(len(pictures))]
    caption = f"The first {len(pictures)} images, none left out"
    return sample_grid(pictures, classes, generator.classes, caption=caption)
