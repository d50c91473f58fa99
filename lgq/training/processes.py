"""Devices and processes of a training, as torchrun starts them or alone."""

import os

import torch
import torch.distributed as dist
from accelerate import Accelerator  # type: ignore[import-untyped]

from lgq.training.directory import RunError


def join_processes() -> Accelerator:
    """The process group, if there is one; refuses to train alone what was started as one of several."""
    expected = int(os.environ.get("WORLD_SIZE", "1"))
    cpu = not torch.accelerator.is_available()
    if expected > 1 and not dist.is_initialized():
        # Counts and metrics meet on the CPU, gradients on the device.
        dist.init_process_group("gloo" if cpu else "cpu:gloo,cuda:nccl")
    # Under torchrun without a GPU, each rank would otherwise believe that it is alone.
    accelerator = Accelerator(cpu=cpu)
    if accelerator.num_processes != expected:
        raise RunError(
            f"started as one of {expected} processes (WORLD_SIZE), but accelerate sees "
            f"{accelerator.num_processes}: start with torchrun, or unset WORLD_SIZE."
        )
    return accelerator
