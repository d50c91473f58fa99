"""`lgq weights`: the networks behind LPIPS and FID, which others trained."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from lgq import weights
from lgq.cli.console import progress_of, say


@dataclass(frozen=True, kw_only=True)
class WeightsStatus:
    """Which weights are here, and how to have the others."""

    def run(self) -> int:
        table = Table(box=box.SIMPLE_HEAD, caption=Text(f"cache: {weights.cache_directory()}"))
        for heading in ("weights", "for", "state", "to have them"):
            table.add_column(heading, overflow="fold")
        for each in weights.status():
            table.add_row(each.name, each.purpose, each.state, "" if each.state == "here" else each.command)
        Console().print(table)
        return 0


@dataclass(frozen=True, kw_only=True)
class WeightsFetch:
    """Download all that can be, once; from then on no network is needed."""

    def run(self) -> int:
        for name in weights.FETCHABLE:
            with progress_of(f"fetching {name}") as report:
                new = weights.fetch(name, report)
            say(f"{name} {'is here now' if new else 'was here already'}.")
        return 0


@dataclass(frozen=True, kw_only=True)
class WeightsImport:
    """Take weights from a file or archive that you have; what it is, its content says."""

    file: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="FILE")]
    """A published file, or an archive that carries some."""

    def run(self) -> int:
        for name in weights.import_file(self.file):
            say(f"{name} is here now.")
        return 0


@dataclass(frozen=True)
class Weights:
    """Weights of the networks behind LPIPS and FID."""

    action: Annotated[
        Annotated[WeightsStatus, tyro.conf.subcommand("status")]
        | Annotated[WeightsFetch, tyro.conf.subcommand("fetch")]
        | Annotated[WeightsImport, tyro.conf.subcommand("import")],
        tyro.conf.arg(name=""),
    ]

    def run(self) -> int:
        return self.action.run()
