"""Memory that a call needs beyond what is there before it."""

import ctypes
import gc
from collections.abc import Callable
from pathlib import Path

import torch

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")


def peak_extra_bytes(run: Callable[[], object], device: torch.device) -> int | None:
    """High-water mark of a call less the memory in use before it; None where neither is known.

    Call it once before, so that libraries' own buffers are there already.
    """
    gc.collect()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        run()
        return torch.cuda.max_memory_allocated(device) - before
    if not _CLEAR.exists():
        return None
    # Freed memory that the allocator keeps would be used again unseen.
    ctypes.CDLL(None).malloc_trim(0)
    _CLEAR.write_text("5")
    before = _status_bytes("VmRSS")
    run()
    return _status_bytes("VmHWM") - before


def available_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    lines = Path("/proc/meminfo").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("MemAvailable")).split()[1]) * 1024


def _status_bytes(field: str) -> int:
    lines = _STATUS.read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field + ":")).split()[1]) * 1024
