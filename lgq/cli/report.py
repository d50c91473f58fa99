"""`lgq report`: the results of experiments on one page."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from lgq.cli.console import say


@dataclass(frozen=True, kw_only=True)
class Report:
    """Write one page with every table, curve and picture of experiments, beside the paper's figures."""

    results: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RESULTS")]
    """The results directory of `lgq experiment`."""
    out: Path = Path("report.html")
    """HTML file to write; a browser shows it without a network."""
    keep: Path | None = None
    """Directory for a copy of the records, curves and pictures that the page shows, without weights; None
    copies nothing."""

    def run(self) -> int:
        from lgq.report.page import write_report

        summary = write_report(self.results, self.out, keep=self.keep)
        for file, reason in summary.damaged.items():
            say(f"left out {file}: {reason}")
        outcomes = ", ".join(f"{number} {outcome}" for outcome, number in summary.outcomes.items())
        say(f"{summary.runs} runs; claims of the paper: {outcomes}.")
        say(f"the page, {summary.bytes / 1e6:.1f} MB: {self.out}")
        if summary.kept_bytes is not None:
            say(f"a copy of the results, {summary.kept_bytes / 1e6:.1f} MB: {self.keep}")
        return 0
