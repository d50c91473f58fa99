"""The paper's row for a tokenizer."""

from dataclasses import dataclass
from typing import Any

import torch
from rich import box
from rich.table import Table

from lgq.cli.console import progress_of
from lgq.cli.findings import Column, Findings, Request, in_columns, row_table
from lgq.data import ImageDataset
from lgq.data.images import random_subset
from lgq.errors import LGQError
from lgq.evaluation import Evaluation, draw_extremes, evaluate_tokenizer
from lgq.metrics.codebook_study import CodebookStudy, draw_study, study_codebook
from lgq.metrics.metric_networks import judges_at_hand
from lgq.plots.codebooks import Method
from lgq.tokenizer import Tokenizer, load_tokenizer

_COLUMNS: dict[str, Column] = {
    "psnr": ("PSNR", "{:.2f}".format),
    "ssim": ("SSIM", "{:.4f}".format),
    "lpips": ("LPIPS", "{:.4f}".format),
    "reconstruction_loss": ("rec. loss", "{:.4f}".format),
    "rfid": ("rFID", "{:.2f}".format),
    "utilization": ("util.", "{:.1%}".format),
    "perplexity": ("perplexity", "{:,.0f}".format),
}
"""The paper's, in its order."""
_MORE: dict[str, Column] = {
    "l1": ("l1", "{:.4f}".format),
    "kid": ("KID x 1000", lambda value: f"{1000 * value:.3f}"),
    "precision": ("precision", "{:.3f}".format),
    "recall": ("recall", "{:.3f}".format),
    "normalized_entropy": ("entropy / log K", "{:.4f}".format),
    "top_percent_mass": ("top 1% mass", "{:.4f}".format),
    "dead_codes": ("dead codes", "{:,.0f}".format),
}


@dataclass(frozen=True, kw_only=True)
class TokenizerQuestions:
    """What is asked of a tokenizer alone."""

    image_size: int | None = None
    """Side of the centre crop that a tokenizer gets; by default that of its run."""
    geometry: Method | None = None
    """Study a tokenizer's codebook too: how freely codes combine, their norms, what they stand for, and where
    they lie among latents, in a plane by umap, pca, or (auto) umap where it is installed; with pictures."""

    def asked(self) -> list[str]:
        """Options that differ from their defaults."""
        given = {"--image-size": self.image_size, "--geometry": self.geometry}
        return [name for name, value in given.items() if value is not None]


def of_tokenizer(
    request: Request, questions: TokenizerQuestions, images: ImageDataset | None, device: torch.device
) -> Findings:
    """Reconstructions of images, and the codebook's geometry where it is asked for."""
    if images is None:
        raise LGQError("a tokenizer is evaluated on images: give --data.")
    data = images if request.images is None else random_subset(images, request.images)
    tokenizer = load_tokenizer(request.source, request.weights).to(device)
    how: dict[str, Any] = {
        "image_size": tokenizer.resolve_image_size(questions.image_size),
        "batch_size": request.batch_size,
        "workers": request.workers,
    }
    with progress_of("evaluating") as report:
        evaluation = evaluate_tokenizer(tokenizer, data, judges_at_hand(device), **how, on_progress=report)
    study = _study(tokenizer, data, how) if questions.geometry else None

    def draw() -> dict[str, bytes]:
        pictures = draw_extremes(evaluation.scores, tokenizer, data, how["image_size"])
        if study and questions.geometry:
            pictures |= draw_study(study, method=questions.geometry)
        return pictures

    origin = {"fingerprint": tokenizer.fingerprint(), "data": repr(data), "image_size": how["image_size"]}
    return Findings(
        settings=tokenizer.settings,
        record=origin | evaluation.record() | ({"geometry": study.record()} if study else {}),
        tables=[_table(evaluation), *([_study_table(study)] if study else [])],
        absent=evaluation.absent | (study.absent if study else {}),
        draw=draw,
    )


def _study(tokenizer: Tokenizer, data: ImageDataset, how: dict[str, Any]) -> CodebookStudy:
    with progress_of("studying codes") as report:
        return study_codebook(tokenizer, data, **how, on_progress=report)


def _table(evaluation: Evaluation) -> Table:
    more = in_columns(evaluation.metrics, {n: c for n, c in _MORE.items() if n in evaluation.metrics})
    caption = ", ".join(f"{heading} {value}" for heading, value in more.items())
    columns = in_columns(evaluation.metrics, _COLUMNS)
    return row_table(columns, title=f"{evaluation.images:,} images", caption=caption)


def _study_table(study: CodebookStudy) -> Table:
    table = Table(title="geometry of the codebook", box=box.SIMPLE_HEAD, show_header=False)
    for name, value in study.metrics.items():
        table.add_row(name.replace("_", " "), f"{value:,.4g}")
    return table
