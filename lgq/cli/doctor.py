"""`lgq doctor`: one page about this installation, to paste into an issue."""

from dataclasses import dataclass, field
from typing import Annotated

import tyro

from lgq.bench.doctor import Examination, examine
from lgq.cli.console import show


@dataclass(frozen=True, kw_only=True)
class Doctor:
    """Print versions, devices, weights, disk and speed, and which kernels to choose, on one page."""

    settings: Annotated[Examination, tyro.conf.arg(name="")] = field(default_factory=Examination)

    def run(self) -> int:
        for line in examine(self.settings):
            show(line)
        return 0
