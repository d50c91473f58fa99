"""`lgq evaluate`: the paper's row for a tokenizer."""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich import box
from rich.console import Console
from rich.table import Table

from lgq.cli.console import ERRORS, command_line, progress_of, say
from lgq.data import ImageDataset, open_dataset
from lgq.data.subset import random_subset
from lgq.distributed import join_processes, rank
from lgq.evaluation.judges import judges_at_hand
from lgq.evaluation.projection import Method
from lgq.evaluation.study import CodebookStudy, study_codebook
from lgq.evaluation.tokenizer import Evaluation, evaluate_tokenizer
from lgq.files import make_directory, replace_file
from lgq.report.codebooks import draw_study
from lgq.report.extremes import extremes
from lgq.results import RESULTS, append_result, strict
from lgq.tokenizer import Tokenizer
from lgq.training.directory import describe_environment
from lgq.training.trained import (
    Which,
    chosen_image_size,
    trained_settings,
    trained_tokenizer,
    trained_weights,
)

_COLUMNS: dict[str, tuple[str, Callable[[float], str]]] = {
    "psnr": ("PSNR", "{:.2f}".format),
    "ssim": ("SSIM", "{:.4f}".format),
    "lpips": ("LPIPS", "{:.4f}".format),
    "reconstruction_loss": ("rec. loss", "{:.4f}".format),
    "rfid": ("rFID", "{:.2f}".format),
    "utilization": ("util.", "{:.1%}".format),
    "perplexity": ("perplexity", "{:,.0f}".format),
}
"""The paper's, in its order."""
_MORE: dict[str, tuple[str, Callable[[float], str]]] = {
    "l1": ("l1", "{:.4f}".format),
    "kid": ("KID x 1000", lambda value: f"{1000 * value:.3f}"),
    "precision": ("precision", "{:.3f}".format),
    "recall": ("recall", "{:.3f}".format),
    "normalized_entropy": ("entropy / log K", "{:.4f}".format),
    "top_percent_mass": ("top 1% mass", "{:.4f}".format),
    "dead_codes": ("dead codes", "{:,.0f}".format),
}


@dataclass(frozen=True, kw_only=True)
class Evaluate:
    """Measure a tokenizer on a data set: the columns of the paper's tables, and what users ask for beside."""

    tokenizer: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]
    """A run directory, a directory that `save_pretrained` wrote, or owner/name on the Hub."""
    data: str
    """Images: a folder, a shard pattern such as val-{000..001}.tar, or `sample:held-out`."""
    images: int | None = None
    """A random subset of this many, the same for every tokenizer; None takes all."""
    image_size: int | None = None
    """Side of the centre crop; by default that of the run."""
    batch_size: int = 32
    """Images at a time."""
    workers: int = 1
    """Processes that decode images ahead."""
    weights: Which = "best"
    """Which weights of a run."""
    out: Path | None = None
    """Directory for the record and the pictures; by default RUN/evaluation."""
    geometry: Method | None = None
    """Study the codebook too: how freely codes combine, their norms, what they stand for, and where they
    lie among latents, in a plane by umap, pca, or (auto) umap where it is installed; with pictures."""
    as_json: Annotated[bool, tyro.conf.arg(name="json")] = False
    """Print the record as one JSON object; the table then goes to the error output."""

    def run(self) -> int:
        size = chosen_image_size(self.tokenizer, self.image_size)
        data: ImageDataset = open_dataset(self.data)
        if self.images is not None:
            data = random_subset(data, self.images)
        # Before hours of work: can the result be kept?
        folder, device = self._folder(), join_processes()
        tokenizer: Tokenizer = trained_tokenizer(self.tokenizer, self.weights).to(device)
        how: dict[str, Any] = {"image_size": size, "batch_size": self.batch_size, "workers": self.workers}
        with progress_of("evaluating") as report:
            judges = judges_at_hand(device)
            evaluation = evaluate_tokenizer(tokenizer, data, judges, **how, on_progress=report)
        study = self._study(tokenizer, data, how) if self.geometry else None
        if rank() == 0:
            record = self._origin(tokenizer, data, size) | evaluation.record()
            record |= {"geometry": study.record()} if study else {}
            self._show(evaluation, study, record)
            append_result(folder / RESULTS, record)
            _draw(folder, extremes(evaluation.scores, tokenizer, data, size))
            _draw(folder, draw_study(study, method=self.geometry) if study and self.geometry else {})
            say(f"the record, and the best, median and worst reconstructions: {folder}")
        return 0

    def _study(self, tokenizer: Tokenizer, data: ImageDataset, how: dict[str, Any]) -> CodebookStudy:
        with progress_of("studying codes") as report:
            return study_codebook(tokenizer, data, **how, on_progress=report)

    def _origin(self, tokenizer: Tokenizer, data: ImageDataset, size: int) -> dict[str, Any]:
        """What was evaluated, and on what."""
        settings = trained_settings(self.tokenizer) or {}
        return {
            "kind": "tokenizer",
            "command": ["lgq", *command_line.get()],
            "run": self.tokenizer,
            "weights": str(trained_weights(self.tokenizer, self.weights)),
            "fingerprint": tokenizer.fingerprint(),
            "config": settings or tokenizer.settings,
            "seed": settings.get("seed"),
            "data": repr(data),
            "image_size": size,
            "environment": describe_environment(settings.get("seed")),
        }

    def _show(self, evaluation: Evaluation, study: CodebookStudy | None, record: dict[str, Any]) -> None:
        console = ERRORS if self.as_json else Console()
        console.print(_table(evaluation))
        if study:
            console.print(_study_table(study))
        absent = evaluation.absent | (study.absent if study else {})
        for reason in dict.fromkeys(absent.values()):
            say(f"no {', '.join(name for name, why in absent.items() if why == reason)}: {reason}")
        if self.as_json:
            print(json.dumps(strict(record)))

    def _folder(self) -> Path:
        if self.out is None and not Path(self.tokenizer).is_dir():
            raise ValueError(f"{self.tokenizer} is not on this machine: give --out for record and pictures.")
        folder = self.out or Path(self.tokenizer) / "evaluation"
        make_directory(folder)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise ValueError(f"cannot write to {folder}: choose another place with --out.")
        return folder


def _draw(folder: Path, pictures: dict[str, bytes]) -> None:
    for stem, picture in pictures.items():
        replace_file(folder / f"{stem}.png", picture)


def _study_table(study: CodebookStudy) -> Table:
    table = Table(title="geometry of the codebook", box=box.SIMPLE_HEAD, show_header=False)
    for name, value in study.metrics.items():
        table.add_row(name.replace("_", " "), f"{value:,.4g}")
    return table


def _table(evaluation: Evaluation) -> Table:
    title = f"{evaluation.images:,} images"
    caption = ", ".join(
        f"{heading} {form(evaluation.metrics[name])}"
        for name, (heading, form) in _MORE.items()
        if name in evaluation.metrics
    )
    table = Table(title=title, caption=caption, box=box.SIMPLE_HEAD)
    for heading, _ in _COLUMNS.values():
        table.add_column(heading, justify="right")
    values = evaluation.metrics
    table.add_row(*(form(values[name]) if name in values else "-" for name, (_, form) in _COLUMNS.items()))
    return table
