"""Time and memory of a call."""

import ctypes
import gc
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

Call = Callable[[], object]

_WHILE_MS = 50.0  # short calls run several times, because the first ones after another call are slow
_LEAST_MS = 0.05
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt in malloc.h
_OWN_PAGES, _KEPT_PAGES = 2**16, 2**25  # the latter is as far as glibc raises them by itself


def now(device: torch.device) -> float:
    """Time in seconds, when all work on the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
    return time.perf_counter()


def milliseconds(call: Call, device: torch.device) -> float:
    """Time of a call; on CUDA by its own clock, which does not count the time to start the work."""
    if device.type == "cuda":
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        torch.cuda.synchronize(device)
        return start.elapsed_time(end)
    started = now(device)
    call()
    return (now(device) - started) * 1e3


def interleaved_ms(calls: Mapping[str, Call], *, repeats: int, device: torch.device) -> dict[str, float]:
    """Best time of each call in milliseconds, over `repeats` rounds in which each runs for a while."""
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(repeats):
        for name, call in calls.items():
            spent = 0.0
            while spent < _WHILE_MS:
                took = milliseconds(call, device)
                best[name] = min(best[name], took)
                spent += max(took, _LEAST_MS)
    return best


def peak_extra_bytes(call: Call, device: torch.device) -> int | None:
    """Peak memory of a call beyond the memory in use before it; None where the system does not tell.

    Runs the call twice: the first time, libraries make buffers that they keep.
    """
    if device.type == "cuda":
        call()
        gc.collect()
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        call()
        return torch.cuda.max_memory_allocated(device) - before
    reset = Path("/proc/self/clear_refs")
    if device.type != "cpu" or not reset.exists():
        call()
        call()
        return None
    allocator = ctypes.CDLL(None)
    # Tensors get pages of their own, which go back to the system with them, from the first call on: freed
    # memory that the allocator keeps would count sometimes, and sometimes not.
    allocator.mallopt(_MMAP_THRESHOLD, _OWN_PAGES)
    call()
    gc.collect()
    allocator.malloc_trim(0)
    reset.write_text("5")
    before = _kibibytes("/proc/self/status", "VmRSS")
    call()
    peak = _kibibytes("/proc/self/status", "VmHWM") - before
    allocator.mallopt(_MMAP_THRESHOLD, _KEPT_PAGES)  # new pages for every tensor would take time
    allocator.mallopt(_TRIM_THRESHOLD, _KEPT_PAGES)
    return peak * 1024


def available_bytes(device: torch.device) -> int:
    """Return the free memory of a device; all memory of the machine where the system does not tell."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    if not Path("/proc/meminfo").exists():
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return _kibibytes("/proc/meminfo", "MemAvailable") * 1024


def _kibibytes(file: str, field: str) -> int:
    lines = Path(file).read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field + ":")).split()[1])
