"""Commands that train a named run: its settings are the defaults of their options."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, make_dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich import box
from rich.console import Console
from rich.table import Table

from lgq.cli.console import say
from lgq.config import to_json
from lgq.distributed import rank
from lgq.files import json_bytes
from lgq.training.footprint import Footprint
from lgq.training.settings import LoopSettings, Outcome, TrainingRun

# `--steps` and `--checkpoint-every`, not `--loop.steps`: every run has them.
tyro.conf.configure(tyro.conf.OmitArgPrefixes)(LoopSettings)

_ENDINGS = {
    "finished": "all {step:,} steps are done",
    "interrupted": "stopped after step {step:,} and saved: the same command goes on from there",
    "out_of_time": "the time is up after step {step:,}",
    "no_improvement": "no better validation for a while, after step {step:,}",
}


@dataclass(frozen=True)
class Family:
    """A command and the runs that it knows by name."""

    command: type[Any]
    """With the fields `name` and `settings`."""
    names: Sequence[str]
    named: Callable[[str], TrainingRun]

    def with_defaults_of(self, name: str) -> type[Any]:
        """The command with the settings of a named run as its defaults."""
        settings = self.named(name)
        field = ("settings", Annotated[type(settings), tyro.conf.arg(name="")], settings)
        kind = self.command
        return make_dataclass(
            kind.__name__,
            [field],
            bases=(kind,),
            namespace={"__doc__": kind.__doc__},
            frozen=True,
            kw_only=True,
        )

    def named_in(self, arguments: Sequence[str]) -> str:
        """The run that a command line seems to name: its settings are what `--help` shows."""
        return next((word for word in arguments if word in self.names), self.names[0])


def report_ending(outcome: Outcome, out: Path) -> int:
    """Say how a run ended; returns its exit code."""
    ending = _ENDINGS[outcome.reason].format(step=outcome.step)
    best = "" if outcome.best is None else f"; best score {outcome.best:.4g} at step {outcome.best_step:,}"
    if rank() == 0:
        say(f"{ending}{best}: {out}")
    return outcome.exit_code


def show_plan(run: TrainingRun, images: int, needs: Callable[[Any], Footprint]) -> int:
    """Print the resolved run, its parameters and an estimate of its memory; returns exit code 0."""
    run = run.for_data(images)
    print(json_bytes(to_json(run), indent=2).decode())
    Console().print(_table(needs(run), run, images))
    return 0


def _table(needs: Footprint, run: TrainingRun, images: int) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_header=False)
    epochs = run.loop.steps * run.batch_size * run.accumulate / images
    table.add_row("images", f"{images:,}, seen {epochs:.1f} times by one process")
    for part, count in needs.parameters.items():
        table.add_row(f"parameters, {part}", f"{count:,}")
    for part, size in needs.bytes.items():
        table.add_row(f"memory, {part}", f"{size / 1e6:,.0f} MB")
    table.add_row("memory, in all", f"{sum(needs.bytes.values()) / 1e6:,.0f} MB a process")
    return table
