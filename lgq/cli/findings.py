"""What an evaluation has to show, and how columns are written."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import tyro
from rich import box
from rich.table import Table

from lgq.hub import WeightsChoice
from lgq.random import SAMPLING_BATCH

Column = tuple[str, Callable[[float], str]]
"""Heading, and how a value is written."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is asked of a tokenizer and of a generator alike."""

    source: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]
    """A run directory, a directory that `save_pretrained` wrote, or owner/name on the Hub."""
    data: str | None = None
    """Images: a folder, a shard pattern such as val-{000..001}.tar, or `sample:held-out`. Those of a
    tokenizer are reconstructed; a generator's images are compared with them."""
    images: int | None = None
    """Of a tokenizer, a random subset of this many images, the same for every tokenizer; by default all. Of a
    generator, the images to draw with each seed; by default 50,000. Of a generator's --tokens alone, images
    evenly spread over them, whose tokens are hidden; by default all, as always where images are drawn."""
    batch_size: int = SAMPLING_BATCH
    """Images at a time."""
    workers: int = 1
    """Processes that decode images ahead."""
    weights: WeightsChoice = "best"
    """Weights of a run to load: of the best validation, or of the last checkpoint."""


@dataclass(frozen=True, kw_only=True)
class Findings:
    """Of one evaluation."""

    settings: dict[str, Any]
    """Of the network that was evaluated."""
    record: dict[str, Any]
    """Its part of a results record."""
    tables: list[Table]
    absent: dict[str, str] = field(default_factory=dict)
    """Metrics that were not taken, and why."""
    draw: Callable[[], dict[str, bytes]] = dict
    """Pictures by name, made where somebody will look at them."""


def row_table(values: Mapping[str, str], *, title: str, caption: str = "") -> Table:
    """One row under its headings."""
    table = Table(title=title, caption=caption or None, box=box.SIMPLE_HEAD)
    for heading in values:
        table.add_column(heading, justify="right")
    table.add_row(*values.values())
    return table


def in_columns(metrics: Mapping[str, float], columns: Mapping[str, Column]) -> dict[str, str]:
    """Each column's heading and value; a dash where there is none."""
    return {
        heading: form(metrics[name]) if name in metrics else "-" for name, (heading, form) in columns.items()
    }
