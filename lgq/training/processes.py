"""Devices and processes of a training, as torchrun starts them or alone."""

import os

from accelerate import Accelerator  # type: ignore[import-untyped]

from lgq.distributed import join_processes
from lgq.training.directory import RunError


def prepare_accelerator() -> Accelerator:
    """The process group, if there is one; refuses to train alone what was started as one of several."""
    device = join_processes()
    expected = int(os.environ.get("WORLD_SIZE", "1"))
    # Under torchrun without a GPU, each rank would otherwise believe that it is alone.
    accelerator = Accelerator(cpu=device.type == "cpu")
    if accelerator.num_processes != expected:
        raise RunError(
            f"started as one of {expected} processes (WORLD_SIZE), but accelerate sees "
            f"{accelerator.num_processes}: start with torchrun, or unset WORLD_SIZE."
        )
    return accelerator
