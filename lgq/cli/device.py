"""The option `--device`, of every command that computes."""

from dataclasses import dataclass
from typing import Annotated

import tyro


@dataclass(frozen=True, kw_only=True)
class Computes:
    """Base of a command that computes."""

    device: Annotated[str, tyro.conf.arg(metavar="{auto,cpu,cuda,cuda:N,mps}")] = "auto"
    """Where to compute: CUDA, else MPS, else the CPU (auto), or the device of this name; cuda:N is a GPU by
    its number."""
