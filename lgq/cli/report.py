"""`lgq report`: what experiments found, on one page."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from lgq.cli.console import say
from lgq.cli.places import require_place
from lgq.errors import LGQError


@dataclass(frozen=True, kw_only=True)
class Report:
    """Write one page with every table, curve and picture of experiments, beside the paper's figures."""

    results: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RESULTS")]
    """The directory that `lgq experiment` filled."""
    out: Path = Path("report.html")
    """File of the page; a browser shows it without a network."""
    keep: Path | None = None
    """Directory to copy the records, curves and pictures to that the page is made of, without weights."""

    def run(self) -> int:
        from lgq.report.page import write_report  # draws with Pillow, and reads every template

        if self.out.is_dir():
            raise LGQError(f"--out must be a file such as report.html, and {self.out} is a directory.")
        require_place(self.out.absolute().parent)
        written = write_report(self.results, self.out)
        for file, reason in written.damaged.items():
            say(f"left out {file}: {reason}")
        found = ", ".join(f"{number} {outcome}" for outcome, number in written.outcomes.items())
        say(f"{written.runs} runs; claims of the paper: {found}.")
        say(f"the page, {written.bytes / 1e6:.1f} MB: {self.out}")
        if self.keep is not None:
            self._keep(self.keep)
        return 0

    def _keep(self, place: Path) -> None:
        from lgq.report.page import keep_results

        require_place(place)
        say(f"what it is made of, {keep_results(self.results, place) / 1e6:.1f} MB: {place}")
