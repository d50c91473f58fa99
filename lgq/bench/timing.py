"""Time, as ratios of contestants that take turns in one process: a noisy machine hits all alike."""

import time
from collections.abc import Callable, Mapping

import torch


def interleaved(
    contestants: Mapping[str, Callable[[], object]], *, repeats: int, device: torch.device
) -> dict[str, float]:
    """Best time of each in milliseconds, over `repeats` rounds."""
    rounds = [{name: milliseconds(run, device) for name, run in contestants.items()} for _ in range(repeats)]
    return {name: min(times[name] for times in rounds) for name in contestants}


def milliseconds(run: Callable[[], object], device: torch.device) -> float:
    _wait(device)
    start = time.perf_counter()
    run()
    _wait(device)
    return (time.perf_counter() - start) * 1e3


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
