"""`lgq report`: the results of experiments on one page."""

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
    """The results directory of `lgq experiment`."""
    out: Path = Path("report.html")
    """HTML file to write; a browser shows it without a network."""
    keep: Path | None = None
    """Directory for a copy of the records, curves and pictures that the page shows, without weights; None
    copies nothing."""

    def run(self) -> int:
        from lgq.report.page import write_report

        if self.out.is_dir():
            raise LGQError(f"--out must be a file such as report.html, and {self.out} is a directory.")
        require_place(self.out.absolute().parent)
        written = write_report(self.results, self.out)
        for file, reason in written.damaged.items():
            say(f"left out {file}: {reason}")
        verdicts = ", ".join(f"{number} {outcome}" for outcome, number in written.outcomes.items())
        say(f"{written.runs} runs; claims of the paper: {verdicts}.")
        say(f"the page, {written.bytes / 1e6:.1f} MB: {self.out}")
        if self.keep is not None:
            from lgq.report.page import keep_results

            require_place(self.keep)
            size = keep_results(self.results, self.keep)
            say(f"a copy of the results, {size / 1e6:.1f} MB: {self.keep}")
        return 0
