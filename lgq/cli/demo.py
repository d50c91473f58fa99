"""`lgq demo`: see it all at work in a few minutes."""

from dataclasses import dataclass
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from lgq.cli.console import say


@dataclass(frozen=True, kw_only=True)
class Demo:
    """Train a small tokenizer on photographs that come along, and draw what it does."""

    out: Path = Path("demo")
    """Directory for the run and its pictures."""

    def run(self) -> int:
        from lgq.demo import run_demo  # draws with matplotlib, a second to import

        result = run_demo(self.out)
        if not result.values:
            say(f"stopped after step {result.outcome.step:,} and saved: the same command goes on from there.")
            return result.outcome.exit_code
        table = Table(box=box.SIMPLE_HEAD, show_header=False)
        for row in result.rows():
            table.add_row(*row)
        console = Console()
        console.print(table)
        for picture in result.pictures:
            console.print(
                f"{picture.path}\n    {picture.caption}", highlight=False, markup=False, soft_wrap=True
            )
        say(f"done in {result.seconds / 60:.1f} minutes: {self.out}")
        return 0
