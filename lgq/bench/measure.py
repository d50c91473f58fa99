"""Times, memory, and the parts of a training step.

best = interleaved_ms({"ours": ours, "reference": reference}, repeats=5, device=device)
extra = peak_extra_bytes(ours, device)
"""

import ctypes
import gc
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lgq.errors import LGQError
from lgq.training.tokenizer_trainer import TokenizerTrainer

Call = Callable[[], object]

PARTS = ("data", "encoder", "quantizer", "decoder", "losses", "optimizer")
"""Parts of a training step; a discriminator's own step counts as `optimizer`."""


class BenchmarkError(LGQError):
    """A measurement cannot be taken; the message says why."""


def require_measurable(*, device: str, sizes: tuple[int, ...] = (1,)) -> None:
    if not sizes or min(sizes) < 1:
        given = " ".join(map(str, sizes)) or "none"
        raise BenchmarkError(f"sizes must be numbers of codes of at least 1, got {given}.")
    if device not in ("cpu", "cuda"):
        raise BenchmarkError(f"device must be cpu or cuda, got {device}.")
    if device == "cuda" and not torch.cuda.is_available():
        raise BenchmarkError("there is no CUDA device here: use --device cpu.")


def milliseconds(call: Call, device: torch.device) -> float:
    started = _now(device)
    call()
    return (_now(device) - started) * 1e3


def interleaved_ms(calls: Mapping[str, Call], *, repeats: int, device: torch.device) -> dict[str, float]:
    """Best time of each call in milliseconds, over `repeats` rounds in which each runs once."""
    rounds = [{name: milliseconds(call, device) for name, call in calls.items()} for _ in range(repeats)]
    return {name: min(times[name] for times in rounds) for name in calls}


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def peak_extra_bytes(call: Call, device: torch.device) -> int | None:
    """Peak memory of a call beyond the memory in use before it; None where the system does not tell.

    Run the call once before, so that the buffers of libraries exist already.
    """
    gc.collect()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        call()
        return torch.cuda.max_memory_allocated(device) - before
    reset = Path("/proc/self/clear_refs")
    if not reset.exists():
        return None
    # Otherwise the call would reuse freed memory that the allocator keeps, and it would not count.
    ctypes.CDLL(None).malloc_trim(0)
    reset.write_text("5")
    before = _kibibytes("/proc/self/status", "VmRSS")
    call()
    return (_kibibytes("/proc/self/status", "VmHWM") - before) * 1024


def available_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return _kibibytes("/proc/meminfo", "MemAvailable") * 1024


def _kibibytes(file: str, field: str) -> int:
    lines = Path(file).read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field + ":")).split()[1])


def seconds_by_part(trainer: TokenizerTrainer, steps: int) -> dict[str, float]:
    """Seconds of each part, forward and backward, summed over `steps` training steps."""
    tokenizer, seconds, last = trainer.tokenizer, dict.fromkeys(PARTS, 0.0), 0.0

    def mark(part: str) -> None:
        """Give the time since the last mark to a part."""
        nonlocal last
        now = _now(trainer.device)
        seconds[part] += now - last
        last = now

    def after(part: str, next_part: str) -> Any:
        """A hook that ends a part; in the backward pass, it ends the next one, whose work is done then."""

        def hook(_module: object, _inputs: object, output: Any) -> None:
            mark(part)
            result: Tensor = output if isinstance(output, Tensor) else output.quantized
            result.register_hook(lambda _: mark(next_part))

        return hook

    handles = [
        tokenizer.encoder.register_forward_pre_hook(lambda *_: mark("data")),
        tokenizer.encoder.register_forward_hook(after("encoder", "quantizer")),
        tokenizer.quantizer.register_forward_hook(after("quantizer", "decoder")),
        tokenizer.decoder.register_forward_hook(after("decoder", "losses")),
        # The stem is the last layer to get its gradient.
        tokenizer.encoder.stem.weight.register_post_accumulate_grad_hook(lambda _: mark("encoder")),
    ]
    last = _now(trainer.device)
    for step in range(steps):
        trainer.train_step(step)
        mark("optimizer")
    for handle in handles:
        handle.remove()
    return seconds
