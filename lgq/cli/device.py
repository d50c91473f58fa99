"""The option `--device`, of every command that computes."""

from typing import Annotated

import tyro

Device = Annotated[
    str,
    tyro.conf.arg(
        metavar="{auto,cpu,cuda,cuda:N,mps}",
        help="Where to compute: CUDA, else MPS, else the CPU (auto), or the device of this name; "
        "cuda:N is a GPU by its number.",
    ),
]
