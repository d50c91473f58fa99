"""Write docs/cli.md, the help of every command: python scripts/write_cli_reference.py"""

import contextlib
import io
import os
from pathlib import Path

from lgq.cli import COMMANDS, main

PAGE = Path(__file__).parent.parent / "docs" / "cli.md"
HEAD = """\
# Commands

The help of every command, as `lgq COMMAND --help` prints it; this page is written by
`scripts/write_cli_reference.py`. Defaults of `train` and `train-generator` are those of the named run, here
`pocket-lgq` and `pocket`: `lgq train imagenet256-fsq --help` shows others.
"""


def reference() -> str:
    parts = [f"## lgq {name}\n\n```text\n{_help(name.split())}\n```\n" for name in COMMANDS]
    return "\n".join([HEAD, *parts])


def _help(command: list[str]) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        main([*command, "--help"])
    return "\n".join(line.rstrip() for line in printed.getvalue().strip().splitlines())


os.environ |= {"COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"}

if __name__ == "__main__":
    PAGE.write_text(reference())
