"""Processes of a distributed run: rank, world size, sums and broadcasts. On one process all are no-ops."""

import os
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from lgq.errors import LGQError


def join_processes() -> torch.device:
    """Join the processes that torchrun started, if any, and return the device of this process.

    A process group whose size differs from WORLD_SIZE is an error: each process would do all the work alone.
    """
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is not None and accelerator.type == "mps":
        accelerator = None  # it has no float64, which metrics need
    expected = int(os.environ.get("WORLD_SIZE", "1"))
    if expected > 1 and not dist.is_initialized():
        # Counts and metrics are reduced on the CPU, gradients on the device.
        backend = "gloo" if accelerator is None else "cpu:gloo,cuda:nccl"
        # The first process computes some things alone, while the others wait.
        dist.init_process_group(backend, timeout=timedelta(days=1))
    if world_size() != expected:
        raise LGQError(
            f"WORLD_SIZE is {expected}, but the process group has {world_size()} processes: start all "
            "processes with torchrun, which sets both."
        )
    if accelerator is None:
        return torch.device("cpu")
    device = torch.device(accelerator.type, int(os.environ.get("LOCAL_RANK", "0")))
    torch.accelerator.set_device_index(device.index)
    return device


def leave_processes() -> None:
    """Leave the process group, after waiting for all: launchers stop all processes if one ends early."""
    if dist.is_available() and dist.is_initialized():
        wait_for_all()
        dist.destroy_process_group()


def wait_for_all() -> None:
    """Wait until every process has reached this call."""
    if world_size() > 1:
        dist.barrier()


def world_size() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    return dist.get_rank() if world_size() > 1 else 0


def sum_over_ranks(x: Tensor) -> Tensor:
    """Sum over processes, differentiably: the gradient of each rank's term is the sum of all gradients."""
    return x if world_size() == 1 else _Sum.apply(x)


def stack_over_ranks(x: Tensor) -> Tensor:
    """Stack the values of all processes, which have equal shapes, in the order of ranks."""
    stacked = x.new_zeros(world_size(), *x.shape)
    stacked[rank()] = x  # a sum with zeros changes no value
    return sum_over_ranks(stacked)


def broadcast_from_first(x: Tensor) -> Tensor:
    """Return the values of rank 0 on every process."""
    if world_size() == 1:
        return x
    shared = x.to(_reduction_device(x)).contiguous()
    dist.broadcast(shared, src=0)
    return shared.to(x.device)


def _reduction_device(x: Tensor) -> torch.device:
    """Device on which processes exchange `x`: NCCL cannot send tensors on the CPU."""
    return torch.device("cuda") if dist.get_backend() == "nccl" else x.device


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        total = x.to(_reduction_device(x), copy=True, memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total.to(x.device)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return sum_over_ranks(gradient)
