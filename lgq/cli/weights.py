"""`lgq weights`: published weights of the networks behind LPIPS and FID."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from lgq import weights
from lgq.cli.console import progress_of, say, show


@dataclass(frozen=True, kw_only=True)
class WeightsStatus:
    """List the weights behind LPIPS and FID, which of them are here, and how to get the others."""

    def run(self) -> int:
        # Lines and no table, which would break names and commands that are to be copied.
        for name, state in weights.status().items():
            known = weights.SETS[name]
            way = "" if state == "here" else f": {known.command}"
            show(f"{name:16}{known.purpose:20}{state}{way}")
        show(f"cache: {weights.cache_directory()}")
        return 0


@dataclass(frozen=True, kw_only=True)
class WeightsFetch:
    """Download the weights behind LPIPS and FID once; afterwards no network is needed."""

    def run(self) -> int:
        for name in weights.FETCHABLE:
            with progress_of(f"fetching {name}") as report:
                new = weights.fetch(name, report)
            say(f"{name} {'is here now' if new else 'was here already'}.")
        return 0


@dataclass(frozen=True, kw_only=True)
class WeightsImport:
    """Take weights from a file or archive on this machine, recognised by its content."""

    file: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="FILE")]
    """A published file of weights, or an archive that contains some."""

    def run(self) -> int:
        for name in weights.import_file(self.file):
            say(f"{name} is here now.")
        return 0
