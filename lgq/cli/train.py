"""`lgq train`: a named run, any field of which an option may change."""

from dataclasses import dataclass, make_dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich import box
from rich.console import Console
from rich.table import Table

from lgq.cli.console import say
from lgq.config import to_json
from lgq.data import open_dataset
from lgq.distributed import rank
from lgq.files import json_bytes
from lgq.runs import RUNS, named_run
from lgq.training.footprint import Footprint, footprint
from lgq.training.loop import LoopSettings, Outcome, Resume
from lgq.training.networks import require_possible
from lgq.training.tokenizer import TokenizerRun, train_tokenizer

# `--steps` and `--checkpoint-every`, not `--loop.steps`: every run has them.
tyro.conf.configure(tyro.conf.OmitArgPrefixes)(LoopSettings)

_ENDINGS = {
    "finished": "all {step:,} steps are done",
    "interrupted": "stopped after step {step:,} and saved: the same command goes on from there",
    "out_of_time": "the time is up after step {step:,}",
    "no_improvement": "no better validation for a while, after step {step:,}",
}


@dataclass(frozen=True, kw_only=True)
class Train:
    """Train a tokenizer into a run directory; the same command continues a run that was stopped."""

    name: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="NAME")]
    """A scale (pocket, imagenet256) and a quantizer: pocket-lgq, imagenet256-fsq, ..."""
    data: str
    """Images to train on: a folder, a shard pattern such as train-{000..005}.tar, or `sample`."""
    out: Path
    """The run directory."""
    val_data: str | None = None
    """Images to validate on; without, the middle of the training images."""
    resume: Resume = "auto"
    """Continue what is in the run directory (auto), refuse to (never), or insist on it (must)."""
    dry_run: bool = False
    """Print the resolved run, its parameters and an estimate of its memory, and train nothing."""
    settings: Annotated[TokenizerRun, tyro.conf.arg(name="")]

    def run(self) -> int:
        data = open_dataset(self.data)
        validation = None if self.val_data is None else open_dataset(self.val_data)
        require_possible(self.settings)
        if self.dry_run:
            _show_plan(self.settings, len(data))
            return 0
        outcome = train_tokenizer(self.settings, data, validation, self.out, self.resume)
        if rank() == 0:
            say(_summary(outcome, self.out))
        return outcome.exit_code


def train_from(name: str) -> type[Train]:
    """The command with the settings of a named run as its defaults."""
    field = ("settings", Annotated[TokenizerRun, tyro.conf.arg(name="")], named_run(name))
    return make_dataclass(
        "Train", [field], bases=(Train,), namespace={"__doc__": Train.__doc__}, frozen=True, kw_only=True
    )


def run_named_in(arguments: list[str]) -> str:
    """The run that a command line seems to name: its settings are what `--help` shows."""
    return next((word for word in arguments if word in RUNS), RUNS[0])


def _summary(outcome: Outcome, out: Path) -> str:
    ending = _ENDINGS[outcome.reason].format(step=outcome.step)
    best = "" if outcome.best is None else f"; best score {outcome.best:.4g} at step {outcome.best_step:,}"
    return f"{ending}{best}: {out}"


def _show_plan(run: TokenizerRun, images: int) -> None:
    run = run.for_data(images)
    print(json_bytes(to_json(run), indent=2).decode())
    Console().print(_table(footprint(run), run, images))


def _table(needs: Footprint, run: TokenizerRun, images: int) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_header=False)
    epochs = run.loop.steps * run.batch_size * run.accumulate / images
    table.add_row("images", f"{images:,}, seen {epochs:.1f} times by one process")
    for part, count in needs.parameters.items():
        table.add_row(f"parameters, {part}", f"{count:,}")
    for part, size in needs.bytes.items():
        table.add_row(f"memory, {part}", f"{size / 1e6:,.0f} MB")
    table.add_row("memory, in all", f"{sum(needs.bytes.values()) / 1e6:,.0f} MB a process")
    return table
