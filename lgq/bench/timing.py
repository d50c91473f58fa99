"""Time, as ratios of contestants that take turns in one process: a noisy machine hits all alike."""

import time
from collections.abc import Callable, Mapping

import torch


def interleaved(
    contestants: Mapping[str, Callable[[], object]], *, repeats: int, device: torch.device
) -> dict[str, float]:
    """Best time of each in milliseconds, over `repeats` rounds after one to warm up."""
    best = dict.fromkeys(contestants, float("inf"))
    for round_number in range(repeats + 1):
        for name, run in contestants.items():
            elapsed = _milliseconds(run, device)
            if round_number:
                best[name] = min(best[name], elapsed)
    return best


def _milliseconds(run: Callable[[], object], device: torch.device) -> float:
    _wait(device)
    start = time.perf_counter()
    run()
    _wait(device)
    return (time.perf_counter() - start) * 1e3


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
