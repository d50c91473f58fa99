"""`lgq evaluate`: the paper's row for a tokenizer."""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro
from rich import box
from rich.console import Console
from rich.table import Table

from lgq.cli.console import ERRORS, progress_of, say
from lgq.data import ImageDataset, open_dataset
from lgq.data.subset import random_subset
from lgq.distributed import join_processes, rank
from lgq.evaluation.judges import judges_at_hand
from lgq.evaluation.tokenizer import Evaluation, evaluate_tokenizer
from lgq.files import make_directory, replace_file
from lgq.report.extremes import extremes
from lgq.results import RESULTS, append_result
from lgq.tokenizer import Tokenizer
from lgq.training.directory import describe_environment
from lgq.training.trained import Which, trained_image_size, trained_settings, trained_tokenizer

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
    as_json: Annotated[bool, tyro.conf.arg(name="json")] = False
    """Print the record as one JSON object; the table then goes to the error output."""

    def run(self) -> int:
        size = self.image_size or trained_image_size(self.tokenizer)
        if size is None:
            raise ValueError(f"{self.tokenizer} is no run that says its image size: give --image-size.")
        data: ImageDataset = open_dataset(self.data)
        if self.images is not None:
            data = random_subset(data, self.images)
        device = join_processes()
        tokenizer: Tokenizer = trained_tokenizer(self.tokenizer, self.weights).to(device)
        evaluation = self._measure(tokenizer, data, size, device)
        if rank() == 0:
            self._show(evaluation, self._record(evaluation, tokenizer, data, size))
            self._draw(evaluation, tokenizer, data, size)
        return 0

    def _measure(
        self, tokenizer: Tokenizer, data: ImageDataset, size: int, device: torch.device
    ) -> Evaluation:
        with progress_of("evaluating") as report:
            return evaluate_tokenizer(
                tokenizer,
                data,
                judges_at_hand(device),
                image_size=size,
                batch_size=self.batch_size,
                workers=self.workers,
                on_progress=report,
            )

    def _record(
        self, evaluation: Evaluation, tokenizer: Tokenizer, data: ImageDataset, size: int
    ) -> dict[str, Any]:
        settings = trained_settings(self.tokenizer) or {}
        record = {
            "kind": "tokenizer",
            "command": ["lgq", *sys.argv[1:]],
            "run": self.tokenizer,
            "weights": self.weights,
            "fingerprint": tokenizer.fingerprint(),
            "config": settings or tokenizer.settings,
            "seed": settings.get("seed"),
            "data": repr(data),
            "image_size": size,
            "images": evaluation.images,
            "broken": evaluation.broken,
            "metrics": evaluation.metrics,
            "absent": evaluation.absent,
            "fid": evaluation.fid,
            "environment": describe_environment(settings.get("seed")),
        }
        append_result(self._folder() / RESULTS, record)
        return record

    def _show(self, evaluation: Evaluation, record: dict[str, Any]) -> None:
        console = ERRORS if self.as_json else Console()
        console.print(_table(evaluation))
        for metric, reason in evaluation.absent.items():
            say(f"no {metric}: {reason}")
        if self.as_json:
            print(json.dumps(record, allow_nan=False))

    def _draw(self, evaluation: Evaluation, tokenizer: Tokenizer, data: ImageDataset, size: int) -> None:
        make_directory(self._folder())
        for name, picture in extremes(evaluation.scores, tokenizer, data, size).items():
            replace_file(self._folder() / f"{name}.png", picture)
        say(f"the record, and the best, median and worst reconstructions: {self._folder()}")

    def _folder(self) -> Path:
        if self.out is not None:
            return self.out
        if Path(self.tokenizer).is_dir():
            return Path(self.tokenizer) / "evaluation"
        raise ValueError(f"{self.tokenizer} is not on this machine: give --out for the record and pictures.")


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
