"""Write docs/cli.md, the help of every command: python scripts/write_cli_reference.py"""

import contextlib
import io
import os
from pathlib import Path

from lgq.cli import COMMANDS, main

PAGE = Path(__file__).parent.parent / "docs" / "cli.md"
GROUPS = {
    "weights": ("status", "fetch", "import"),
    "bench": ("quantizers", "encode", "train", "evaluate", "sample"),
}
HEAD = """\
# Commands

Written by `scripts/write_cli_reference.py`; on the screen it is `lgq COMMAND --help`. A run's options
show the values of the run that is named before `--help`, here `pocket-lgq`, and `pocket` of a generator.
"""


def reference() -> str:
    lines = [[name] for name in COMMANDS if name not in GROUPS]
    lines += [[group, name] for group, names in GROUPS.items() for name in names]
    return "\n".join([HEAD, *(f"## lgq {' '.join(line)}\n\n```text\n{_help(line)}\n```\n" for line in lines)])


def _help(command: list[str]) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        main([*command, "--help"])
    return "\n".join(line.rstrip() for line in printed.getvalue().strip().splitlines())


os.environ |= {"COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"}

if __name__ == "__main__":
    PAGE.write_text(reference())
