"""Time, as ratios of contestants that take turns in one process: a noisy machine hits all alike."""

import time
from collections.abc import Callable, Mapping

import torch


class BenchmarkError(ValueError):
    """A measurement that cannot be taken; the message says why."""


def require_measurable(sizes: tuple[int, ...], device: str) -> None:
    if not sizes or min(sizes) < 1:
        raise BenchmarkError(
            f"sizes must be numbers of codes from 1 on, got {' '.join(map(str, sizes)) or 'none'}."
        )
    if device not in ("cpu", "cuda"):
        raise BenchmarkError(f"device must be cpu or cuda, got {device}.")
    if device == "cuda" and not torch.cuda.is_available():
        raise BenchmarkError("there is no CUDA device here: use --device cpu.")


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
