"""Processes of a run and their devices: rank, sums and broadcasts, which are no-ops on one process."""

import os
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from lgq.errors import LGQError


def join_processes(device: str | torch.device = "auto") -> torch.device:
    """Join the processes that torchrun started, if any, and return the device of this process.

    device: what `resolve_device` takes.

    A process group whose size differs from WORLD_SIZE is an error: each process would do all the work alone.
    """
    resolved, expected = resolve_device(device), _expected_processes()
    if expected > 1 and not dist.is_initialized():
        # Counts and metrics are reduced on the CPU, gradients on the device.
        backend = "cpu:gloo,cuda:nccl" if resolved.type == "cuda" else "gloo"
        # The first process computes some things alone, while the others wait.
        dist.init_process_group(backend, timeout=timedelta(days=1))
    if world_size() != expected:
        raise LGQError(
            f"WORLD_SIZE is {expected}, but the process group has {world_size()} processes: start all "
            "processes with torchrun, which sets both."
        )
    if resolved.type == "cuda":
        torch.cuda.set_device(resolved)
    return resolved


def resolve_device(device: str | torch.device = "auto") -> torch.device:
    """Return the device that a word of `--device` means here; a device that is not here is an error.

    auto: CUDA where there is one, else MPS where it works, else the CPU.
    cuda: the first GPU, or under torchrun the one whose number is LOCAL_RANK.
    cuda:1, ...: that GPU, in a process of its own.
    mps: the GPU of a Mac, in a process of its own.
    """
    processes = _expected_processes()
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "mps" if _mps_works() else "cpu"
        if device == "mps" and processes > 1:  # which cannot exchange gradients there
            device = "cpu"
    try:
        asked = torch.device(device)
    except RuntimeError:
        asked = None
    if asked is None or asked.type not in ("cpu", "cuda", "mps"):
        raise _no_device(device, "a device is auto, cpu, cuda, cuda:N or mps")
    if asked.type == "cpu":
        return torch.device("cpu")
    if asked.type == "mps":
        if not _mps_works():
            raise _no_device(device, "it needs a Mac with a GPU that torch can use")
        if processes > 1:
            raise _no_device(device, f"it serves one process, and torchrun started {processes}")
        return torch.device("mps")
    own, gpus = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if not torch.cuda.is_available():
        raise _no_device(device, "it needs an NVIDIA or AMD GPU, and a torch that is built for it")
    # A device, unlike a word of the command line, may be what this function returned before.
    if processes > 1 and asked.index is not None and (isinstance(device, str) or asked.index != own):
        raise _no_device(device, "under torchrun each process has a GPU of its own, so write cuda")
    index = own if asked.index is None else asked.index
    if index >= gpus:
        per_process = ", and each process of torchrun needs one" if asked.index is None else ""
        raise _no_device(f"cuda:{index}", f"the GPUs of this machine are 0 to {gpus - 1}{per_process}")
    return torch.device("cuda", index)


def _expected_processes() -> int:
    return int(os.environ.get("WORLD_SIZE", "1"))


def _mps_works() -> bool:
    """Whether torch can use the GPU of this Mac; in a virtual machine it may be present, and fail."""
    if not torch.backends.mps.is_available():
        return False
    try:
        torch.zeros(1, device="mps")
    except RuntimeError:
        return False
    return True


def _no_device(device: str | torch.device, rule: str) -> LGQError:
    gpus = [f"cuda:{i}" for i in range(torch.cuda.device_count() if torch.cuda.is_available() else 0)]
    here = ", ".join(["cpu", *gpus, *["mps"] * _mps_works()])
    return LGQError(f"`device` {str(device)!r} cannot be used: {rule}; available here: {here}.")


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
