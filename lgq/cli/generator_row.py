"""The paper's row for a generator."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from rich.table import Table
from torch import Tensor

from lgq.cli.console import progress_of
from lgq.cli.findings import Column, Findings, Request, in_columns, row_table
from lgq.data import ImageDataset
from lgq.data.token_format import Encoding, TokenError
from lgq.data.token_loader import TokenLoader, TokenLoading
from lgq.data.tokens import TokenDataset
from lgq.distributed import rank, world_size
from lgq.evaluation.generation import GenerationEvaluation, evaluate_generation
from lgq.evaluation.judges import judges_of_generation
from lgq.evaluation.likelihood import measure_likelihood
from lgq.evaluation.reference import RealImages, reference_of_file, reference_of_images
from lgq.evaluation.token_entropy import token_entropies
from lgq.generator import MaskGIT
from lgq.models.inception import InceptionV3
from lgq.models.modes import in_eval_mode
from lgq.models.sampling import Sampling
from lgq.report.samples import sample_grid
from lgq.training.trained import trained_generator
from lgq.weights import WeightsError

_SAMPLES = 50_000
_COLUMNS: dict[str, Column] = {
    "gfid": ("gFID", "{:.2f}".format),
    "inception_score": ("IS", "{:.2f}".format),
    "kid": ("KID x 1000", lambda value: f"{1000 * value:.3f}"),
    "precision": ("precision", "{:.3f}".format),
    "recall": ("recall", "{:.3f}".format),
}
_NATS: dict[str, Column] = {
    "nll": ("NLL", "{:.3f}".format),
    "accuracy": ("accuracy", "{:.1%}".format),
    "entropy": ("entropy", "{:.3f}".format),
    "class_entropy": ("entropy, class known", "{:.3f}".format),
    "cross_entropy": ("cross-entropy", "{:.3f}".format),
    "class_cross_entropy": ("cross-entropy, class known", "{:.3f}".format),
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
        usual = GeneratorQuestions()
        names = [name for name in vars(self) if getattr(self, name) != getattr(usual, name)]
        return [f"--{name.replace('_', '-')}" for name in names]


def of_generator(
    request: Request, questions: GeneratorQuestions, images: ImageDataset | None, device: torch.device
) -> Findings:
    """Images that it draws, beside real ones; and the likelihood of real tokens; whichever is asked for."""
    _require_question(questions, images)
    generator = trained_generator(request.source, request.weights).to(device)
    record: dict[str, Any] = {
        "fingerprint": generator.tokenizer.fingerprint(),
        "image_size": generator.image_size,
    }
    tables: list[Table] = []
    if questions.tokens is not None:
        likelihood = _likelihood(generator, questions, request.batch_size, device)
        record["likelihood"] = likelihood
        tables.append(_likelihood_table(likelihood))
    if images is None and questions.reference is None:
        return Findings(settings=generator.settings, record=record, tables=tables)
    evaluation = _generation(generator, request, questions, images, device)
    return Findings(
        settings=generator.settings,
        record=record | {"sampling": asdict(questions.sampling)} | evaluation.record(),
        tables=[_generation_table(evaluation), *tables],
        absent=evaluation.absent,
        draw=lambda: {"samples": _grid(generator, evaluation.pictures)},
    )


def _require_question(questions: GeneratorQuestions, images: ImageDataset | None) -> None:
    if images is not None and questions.reference is not None:
        raise ValueError("a generator is compared with --data or with --reference: give one of them.")
    if images is None and questions.reference is None and questions.tokens is None:
        raise ValueError(
            "a generator is compared with real images: give --data, --reference, or --tokens for likelihoods."
        )
    if questions.train_tokens is not None and questions.tokens is None:
        raise ValueError("--train-tokens is a yardstick for --tokens: give both.")


def _generation(
    generator: MaskGIT,
    request: Request,
    questions: GeneratorQuestions,
    images: ImageDataset | None,
    device: torch.device,
) -> GenerationEvaluation:
    judges = judges_of_generation(device)
    if judges.inception is None:
        raise WeightsError(judges.absent["gfid"])
    reference = (
        _read(images, generator.image_size, judges.inception, request, device)
        if images is not None
        else reference_of_file(questions.reference or "")
    )
    with progress_of("drawing and judging") as report:
        return evaluate_generation(
            lambda classes, seed: generator.generate(classes, questions.sampling, seed=seed),
            len(generator.classes),
            reference,
            judges,
            samples=_SAMPLES if request.images is None else request.images,
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


def _likelihood(
    generator: MaskGIT, questions: GeneratorQuestions, batch_size: int, device: torch.device
) -> dict[str, Any]:
    tokens = TokenDataset(questions.tokens or "")
    _require_known(tokens, generator)
    loading = TokenLoading(batch_size=batch_size, rank=rank(), world_size=world_size())
    with in_eval_mode(generator):
        values = measure_likelihood(generator.transformer, TokenLoader(tokens, loading).one_pass(), device)
    yardstick = None if questions.train_tokens is None else TokenDataset(questions.train_tokens)
    entropies = token_entropies(tokens) if yardstick is None else token_entropies(yardstick, tokens)
    return {"data": repr(tokens)} | values | entropies.record()


def _require_known(tokens: TokenDataset, generator: MaskGIT) -> None:
    """Refuse tokens that mean nothing to the generator."""
    tokens.require_fingerprint(generator.tokenizer.fingerprint())
    given, known = _kind(tokens.encoding), _kind(generator)
    if tokens.encoding.token_shape != generator.token_shape or len(tokens.classes) > len(generator.classes):
        raise TokenError(
            f"{tokens.path} holds {given}, and the generator was trained on {known}: "
            "encode images of the same size and classes."
        )


def _kind(of: Encoding | MaskGIT) -> str:
    return f"{' x '.join(map(str, of.token_shape))} tokens an image of {len(of.classes)} classes"


def _generation_table(evaluation: GenerationEvaluation) -> Table:
    values = in_columns(evaluation.metrics, _COLUMNS)
    spread = in_columns(evaluation.std, _COLUMNS)
    with_spread = {
        heading: value if spread[heading] == "-" else f"{value} ± {spread[heading]}"
        for heading, value in values.items()
    }
    seeds = f", of each of {len(evaluation.seeds)} seeds" if len(evaluation.seeds) > 1 else ""
    return row_table(with_spread, title=f"{evaluation.images:,} images{seeds}")


def _likelihood_table(values: dict[str, Any]) -> Table:
    found = {name: value for name, value in values.items() if name in _NATS and value is not None}
    title = f"{values['masked_tokens']:,.0f} hidden tokens, in nats"
    return row_table(in_columns(found, {name: _NATS[name] for name in found}), title=title)


def _grid(generator: MaskGIT, pictures: Float[Tensor, "p 3 s s"]) -> bytes:
    """The first images, which are of the first classes."""
    classes = [number % len(generator.classes) for number in range(len(pictures))]
    caption = f"The first {len(pictures)} images, none left out"
    return sample_grid(pictures, classes, generator.classes, caption=caption)
