"""`lgq experiment` and `lgq report`: the rows of a table, and one page about all results."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich import box
from rich.table import Table
from rich.text import Text

from lgq.cli.console import command_line, say, show
from lgq.cli.options import Computes
from lgq.experiments.runner import ExperimentOutcome, experiment
from lgq.experiments.scales import WarmStart
from lgq.training.settings import Precision

_MINUTE = 60


@dataclass(frozen=True, kw_only=True)
class Experiment(Computes):
    """Train and evaluate the rows of a table; finished rows are kept, and the same command continues."""

    name: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="NAME")]
    """Experiment: autoencoder, comparison, codebook-size, logits, geometry, generation, regularizers,
    temperature, cost, scaling, search, gaussian, latents, modality, variants or cold."""
    scale: Literal["smoke", "pocket", "imagenet256"]
    """The paper's protocol (imagenet256), hours of two CPU cores (pocket), or seconds per row (smoke)."""
    data: str
    """Training images: a folder, a shard pattern such as train-{000..005}.tar, or `sample`."""
    val_data: str | None = None
    """Images for validation and evaluation; by default the training images."""
    show: str | None = None
    """Images of which every row shows eight; by default the validation images. Name others, such as
    `sample:whole`, where those may not be published."""
    recordings: Path | None = None
    """Recordings for `modality`: a folder or a tar of WAV files, 16 bits and one channel; by default none."""
    out: Path
    """Results directory, which several machines may share."""
    seeds: int | None = None
    """Number of training seeds per row, from 0 on; by default 1, at the pocket scale 3 or 5."""
    shard: str = "0/1"
    """Share of the rows to run, such as 0/4 to 3/4 on four machines."""
    only: tuple[str, ...] = ()
    """Rows to run, by their labels, groups or names; by default all."""
    steps: int | None = None
    """Steps of every tokenizer, and of every quantizer that is trained alone; by default the scale's."""
    generator_steps: int | None = None
    """Steps of every generator; by default the scale's."""
    precision: Precision | None = None
    """Precision of every training; by default the scale's."""
    warm_start: WarmStart = "auto"
    """Start every tokenizer from the continuous autoencoder of its seed, which is trained first, where the
    scale has one (auto), or from random weights (never)."""
    dry_run: bool = False
    """Print the rows, which of them are finished, and how long training takes here; train nothing."""

    def run(self) -> int:
        outcome = experiment(**vars(self), command=("lgq", *command_line.get()))
        if self.dry_run:
            show(_table(outcome))
        else:
            for id in outcome.failed:
                say(f"{id} failed: see its record in {self.out / 'rows'}.")
            for id in outcome.busy:
                say(f"{id} is still in use by another process.")
            if outcome.exit_code:
                say("stopped; finished rows are kept, and the same command continues.")
            else:
                say(f"all {outcome.rows} rows are finished, {outcome.new_rows} of them now: {self.out}")
        return outcome.exit_code


@dataclass(frozen=True, kw_only=True)
class Report:
    """Write one page with every table, curve and picture of experiments, beside the paper's figures.

    It links a page that `lgq view RUN ... --export view.html` wrote beside it.
    """

    results: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RESULTS")]
    """The results directory of `lgq experiment`."""
    out: Path = Path("report.html")
    """HTML file to write; a browser shows it without a network."""
    copy: Path | None = None
    """Directory for a copy of the records, curves and pictures that the page shows, without the weights of
    tokenizers and generators; by default nothing is copied."""

    def run(self) -> int:
        from lgq.reporting.page import report

        summary = report(self.results, self.out, copy=self.copy)
        for file, reason in summary.damaged.items():
            say(f"left out {file}: {reason}")
        outcomes = ", ".join(f"{number} {outcome}" for outcome, number in summary.outcomes.items())
        say(f"{summary.runs} runs; claims of the paper: {outcomes}.")
        say(f"the page, {summary.bytes / 1e6:.1f} MB: {self.out}")
        if summary.kept_bytes is not None:
            say(f"a copy of the results, {summary.kept_bytes / 1e6:.1f} MB: {self.copy}")
        return 0


def _table(outcome: ExperimentOutcome) -> Table:
    estimates, plan = outcome.estimates, outcome.plan
    title = plan.title + (f" ({plan.paper})" if plan.paper else "")
    to_do = [estimate for estimate in estimates if not estimate.finished]
    known = [estimate.seconds for estimate in to_do if estimate.seconds is not None]
    rest = f"about {_duration(sum(known))}" if sum(known) >= _MINUTE else "under a minute"
    caption = f"{len(estimates) - len(to_do)} of {len(estimates)} rows are finished"
    if known:
        caption += f"; training the others takes {rest} here, without their evaluation"
        if unknown := len(to_do) - len(known):
            caption += f" and without {unknown} rows whose time is not known beforehand"
    elif to_do:
        caption += "; how long the others take is not known beforehand"
    table = Table(title=title, caption=caption, box=box.SIMPLE_HEAD)
    for heading in ("row", "state"):
        table.add_column(heading, overflow="fold")
    for heading in ("steps", "parameters", "training"):
        table.add_column(heading, justify="right", overflow="fold")
    for estimate in estimates:
        table.add_row(
            Text(str(estimate.row)),
            "finished" if estimate.finished else "to do",
            f"{estimate.steps:,}" if estimate.steps else "-",
            f"{estimate.parameters:,}" if estimate.parameters else "-",
            "-" if estimate.seconds is None else _duration(estimate.seconds),
        )
    return table


def _duration(seconds: float) -> str:
    if seconds < _MINUTE:
        return "< 1 min"  # in a cell, more words would fold the rows
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds / 60:.1f} min"
