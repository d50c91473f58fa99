"""Who am I among the processes, and sums over all of them; inert on one process."""

import os
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from lgq.errors import LGQError


def join_processes() -> torch.device:
    """Join the processes that torchrun started, if any; returns the device of this one.

    Refuses a process group whose size differs from WORLD_SIZE: each process would do all the work alone.
    """
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is not None and accelerator.type == "mps":
        accelerator = None  # it has no float64, in which metrics are summed
    expected = int(os.environ.get("WORLD_SIZE", "1"))
    if expected > 1 and not dist.is_initialized():
        # Counts and metrics meet on the CPU, gradients on the device.
        backend = "gloo" if accelerator is None else "cpu:gloo,cuda:nccl"
        # The first process computes some things alone, while the others wait.
        dist.init_process_group(backend, timeout=timedelta(days=1))
    if world_size() != expected:
        raise LGQError(
            f"WORLD_SIZE is {expected}, but the process group has {world_size()} processes: start with "
            "torchrun, or unset WORLD_SIZE."
        )
    if accelerator is None:
        return torch.device("cpu")
    device = torch.device(accelerator.type, int(os.environ.get("LOCAL_RANK", "0")))
    torch.accelerator.set_device_index(device.index)
    return device


def leave_processes() -> None:
    """After all work, together: launchers stop the others where one process ends early."""
    if dist.is_available() and dist.is_initialized():
        wait_for_all()
        dist.destroy_process_group()


def wait_for_all() -> None:
    """Until every process is here."""
    if world_size() > 1:
        dist.barrier()


def world_size() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    return dist.get_rank() if world_size() > 1 else 0


def sum_over_ranks(x: Tensor) -> Tensor:
    """Sum over processes, differentiable: each rank's share receives the sum of all gradients."""
    return x if world_size() == 1 else _Sum.apply(x)


def stack_over_ranks(x: Tensor) -> Tensor:
    """All processes' values of one shape, first process first; a sum with zeros changes no value."""
    every = x.new_zeros(world_size(), *x.shape)
    every[rank()] = x
    return sum_over_ranks(every)


def broadcast_from_first(x: Tensor) -> Tensor:
    """Rank 0's values everywhere."""
    if world_size() == 1:
        return x
    shared = x.to(_meeting_device(x)).contiguous()
    dist.broadcast(shared, src=0)
    return shared.to(x.device)


def _meeting_device(x: Tensor) -> torch.device:
    """NCCL moves nothing that lies on a CPU."""
    return torch.device("cuda") if dist.get_backend() == "nccl" else x.device


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        total = x.to(_meeting_device(x), copy=True, memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total.to(x.device)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return sum_over_ranks(gradient)
