"""`lgq evaluate`: measure a tokenizer or a generator, and print the columns of the paper's tables."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich import box
from rich.table import Table

from lgq.cli.console import key_values, progress_of, say, show
from lgq.cli.options import Computes
from lgq.distributed import rank
from lgq.evaluation import SEEDS, evaluate
from lgq.files import WeightsChoice
from lgq.models.sampling import Sampling
from lgq.random import SAMPLING_BATCH

_MANY_CODES = 100
"""Perplexity from which tenths of a code say nothing."""
Columns = dict[str, tuple[str, Callable[[float], str]]]
"""Heading and format of each metric."""
_TOKENIZER_COLUMNS: Columns = {
    "psnr": ("PSNR", "{:.2f}".format),
    "ssim": ("SSIM", "{:.4f}".format),
    "lpips": ("LPIPS", "{:.4f}".format),
    "reconstruction_loss": ("rec. loss", "{:.4f}".format),
    "rfid": ("rFID", "{:.2f}".format),
    "utilization": ("util.", "{:.1%}".format),
    "perplexity": ("perplexity", lambda codes: f"{codes:,.{0 if codes >= _MANY_CODES else 1}f}"),
}
"""Columns of the paper, in its order."""
_SAMPLE_COLUMNS: Columns = {
    "kid": ("KID x 1000", lambda kid: f"{1000 * kid:.3f}"),
    "precision": ("precision", "{:.3f}".format),
    "recall": ("recall", "{:.3f}".format),
}
_CAPTION_COLUMNS: Columns = {
    "l1": ("l1", "{:.4f}".format),
    **_SAMPLE_COLUMNS,
    "normalized_entropy": ("entropy / log K", "{:.4f}".format),
    "top_percent_mass": ("top 1% mass", "{:.4f}".format),
    "dead_codes": ("dead codes", "{:,.0f}".format),
}
_GENERATOR_COLUMNS: Columns = {
    "gfid": ("gFID", "{:.2f}".format),
    "inception_score": ("IS", "{:.2f}".format),
    **_SAMPLE_COLUMNS,
}
_LIKELIHOOD_COLUMNS: Columns = {
    "nll": ("NLL", "{:.3f}".format),
    "accuracy": ("accuracy", "{:.1%}".format),
    "entropy": ("entropy", "{:.3f}".format),
    "class_entropy": ("entropy given the class", "{:.3f}".format),
    "cross_entropy": ("cross-entropy", "{:.3f}".format),
    "class_cross_entropy": ("cross-entropy given the class", "{:.3f}".format),
}


@dataclass(frozen=True, kw_only=True)
class Evaluate(Computes):
    """Measure a tokenizer or a generator: the columns of the paper's tables, and more."""

    source: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]
    """A run directory, a directory that `save_pretrained` wrote, photo-f8, or owner/name on the Hub."""
    data: str | None = None
    """Images: a folder, a shard pattern such as val-{000..001}.tar, or `sample:held-out`. A tokenizer
    reconstructs them; a generator's images are compared with them."""
    images: int | None = None
    """Number of images of --data to take, a random subset that is the same for every model; default all."""
    image_size: int | None = None
    """Tokenizer: side in pixels to which the centre crop is brought; default that of its run. Smaller images
    are enlarged, with a warning: their own size measures them as they are."""
    resamples: int = 0
    """Tokenizer: random resamples of the images, such as 100, whose standard deviations are the ± of rFID and
    KID; 0 for none. Each resample takes about 0.1 s for 1,000 images, and half a minute for 10,000, which are
    the most that are resampled."""
    geometry: Literal["auto", "umap", "pca"] | None = None
    """Tokenizer: study the codebook too (co-occurrence and norms of codes, patches that they encode, a plot
    of codes among latents). The plot is made by umap, by pca, or (auto) by umap if it is installed."""
    reference: Path | None = None
    """Generator: an .npz file with mu and sigma to compare with, in place of --data."""
    samples: int | None = None
    """Generator: images to draw with each sampling seed; default as many as --images, else 50,000."""
    sampling_seeds: tuple[int, ...] = SEEDS
    """Generator: seeds of the images that are drawn."""
    tokens: Path | None = None
    """Generator: directory of tokens whose likelihood is measured."""
    masked_images: int | None = None
    """Generator: number of images whose tokens are masked, evenly spread over --tokens; default all."""
    train_tokens: Path | None = None
    """Generator: tokens that it was trained on; their frequencies give the cross-entropies of --tokens."""
    sampling: Annotated[Sampling, tyro.conf.arg(name="")] = field(default_factory=Sampling)
    """How a generator draws images."""
    batch_size: int = SAMPLING_BATCH
    """Images per batch; a generator draws different images with a different batch size."""
    workers: int = 1
    """Processes that decode images ahead; 0 does it in the main process."""
    weights: WeightsChoice = "best"
    """Weights of a run: of the best validation, or of the last checkpoint."""
    out: Path | None = None
    """Directory for the record, the scores of each image (scores.csv) and the pictures; default
    RUN/evaluation, or nothing is written if RUN is no directory."""
    as_json: Annotated[bool, tyro.conf.arg(name="json")] = False
    """Print the record as one JSON object; tables then go to the error output."""

    def run(self) -> int:
        options = {name: value for name, value in vars(self).items() if name not in ("source", "as_json")}
        with progress_of("evaluating") as report:
            record = evaluate(self.source, **options, on_progress=report)
        for table in _tables(record.fields):
            show(table, on_errors=self.as_json)
        for reason in dict.fromkeys(record.absent.values()):
            names = [name for name, why in record.absent.items() if why == reason]
            say(f"no {', '.join(names)}: {reason}")
        if record.directory is not None:
            scores = ", scores of each image" if record.scores else ""
            say(f"record{scores} and pictures: {record.directory}")
        if self.as_json and rank() == 0:
            print(record.to_json())
        return 0


def _tables(fields: Mapping[str, Any]) -> list[Table]:
    metrics, tables = fields.get("metrics"), []
    if metrics is not None and fields["kind"] == "tokenizer":
        errors = fields["standard_error"] | fields["bootstrap_std"]
        columns = {name: c for name, c in _CAPTION_COLUMNS.items() if name in metrics}
        below = ", ".join(
            f"{heading} {text}" for heading, text in _cells_with_errors(metrics, errors, columns).items()
        )
        side = fields["image_size"]
        title = f"{fields['images']:,} images of {side} x {side} pixels"
        tables.append(_table(_cells(metrics, _TOKENIZER_COLUMNS), title, caption=below))
        if errors:
            # A row of its own: beside their values, the table would be wider than a terminal.
            own = {name: c for name, c in _TOKENIZER_COLUMNS.items() if name in errors}
            cells = _cells(errors, own)
            tables[-1].add_row(
                *(f"± {cells[h]}" if h in cells else "" for h, _ in _TOKENIZER_COLUMNS.values())
            )
            tables[-1].caption = f"± standard error over the images\n{below}"
        if "psnr/0" in metrics:
            tables.append(_level_table(metrics, fields["config"].get("scales", ())))
    elif metrics is not None:
        cells = _cells_with_errors(metrics, fields["std"], _GENERATOR_COLUMNS)
        seeds = f" with each of {len(fields['seeds'])} seeds" if len(fields["seeds"]) > 1 else ""
        tables.append(_table(cells, f"{fields['images']:,} images{seeds}"))
    if "geometry" in fields:
        values = fields["geometry"]["metrics"].items()
        tables.append(key_values({name.replace("_", " "): f"{value:,.4g}" for name, value in values}))
        tables[-1].title = "geometry of the codebook"
    if "likelihood" in fields:
        likelihood = fields["likelihood"]
        columns = {name: c for name, c in _LIKELIHOOD_COLUMNS.items() if likelihood[name] is not None}
        title = f"{likelihood['masked_tokens']:,.0f} masked tokens, in nats per token"
        tables.append(_table(_cells({name: likelihood[name] for name in columns}, columns), title))
    return tables


def _level_table(metrics: Mapping[str, float], scales: Sequence[int]) -> Table:
    """Return a table with a row for each stage or scale."""
    heading = "scale" if scales else "stage"
    table = Table(title=f"by {heading}", box=box.SIMPLE_HEAD)
    for name in (heading, f"PSNR of {heading}s so far", "util.", "perplexity"):
        table.add_column(name, justify="right")
    for i in range(sum(name.startswith("psnr/") for name in metrics)):
        own = {name: metrics[f"{name}/{i}"] for name in ("psnr", "utilization", "perplexity")}
        cells = _cells(own, {name: _TOKENIZER_COLUMNS[name] for name in own})
        table.add_row(str(scales[i] if scales else i + 1), *cells.values())
    return table


def _cells(metrics: Mapping[str, float], columns: Columns) -> dict[str, str]:
    """Return heading and text of each column; a dash where the metric is missing."""
    return {
        heading: text(metrics[name]) if name in metrics else "-" for name, (heading, text) in columns.items()
    }


def _cells_with_errors(
    metrics: Mapping[str, float], errors: Mapping[str, float], columns: Columns
) -> dict[str, str]:
    """Return heading and text of each column, with ± where the metric has an error."""
    values, own = _cells(metrics, columns), _cells(errors, columns)
    return {heading: f"{text} ± {own[heading]}".removesuffix(" ± -") for heading, text in values.items()}


def _table(cells: Mapping[str, str], title: str, *, caption: str | None = None) -> Table:
    """Return a table of one row."""
    table = Table(title=title, caption=caption or None, box=box.SIMPLE_HEAD)
    for heading in cells:
        table.add_column(heading, justify="right")
    table.add_row(*cells.values())
    return table
