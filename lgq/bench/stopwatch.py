"""Where the time of a training step goes: marks between its parts, forward and backward."""

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from lgq.training.tokenizer_trainer import TokenizerTraining

PARTS = ("data", "encoder", "quantizer", "decoder", "losses", "optimizer")
"""A discriminator's own step counts with the optimizer."""


def timed_by_part(training: TokenizerTraining, steps: int) -> dict[str, float]:
    """Seconds of each part over some steps."""
    with _marks(training) as watch:
        watch.start()
        for step in range(steps):
            training.train_step(step)
            watch.mark("optimizer")
    return {part: watch.seconds[part] for part in PARTS}


class _Stopwatch:
    def __init__(self, device: torch.device):
        self.device, self.last = device, 0.0
        self.seconds: defaultdict[str, float] = defaultdict(float)

    def start(self) -> None:
        self.last = self._now()

    def mark(self, part: str) -> None:
        """The time since the last mark was this part's."""
        now = self._now()
        self.seconds[part] += now - self.last
        self.last = now

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()


@contextmanager
def _marks(training: TokenizerTraining) -> Iterator[_Stopwatch]:
    """A part's backward ends where the gradient of its input is there."""
    watch, tokenizer = _Stopwatch(training.device), training.tokenizer

    def after(part: str, before: str) -> Any:
        def hook(_module: object, _inputs: object, output: Any) -> None:
            watch.mark(part)
            result: Tensor = output if isinstance(output, Tensor) else output.quantized
            result.register_hook(lambda _: watch.mark(before))

        return hook

    handles = [
        tokenizer.encoder.register_forward_pre_hook(lambda *_: watch.mark("data")),
        tokenizer.encoder.register_forward_hook(after("encoder", "quantizer")),
        tokenizer.quantizer.register_forward_hook(after("quantizer", "decoder")),
        tokenizer.decoder.register_forward_hook(after("decoder", "losses")),
        # The stem is the last to get its gradient.
        tokenizer.encoder.stem.weight.register_post_accumulate_grad_hook(lambda _: watch.mark("encoder")),
    ]
    try:
        yield watch
    finally:
        for handle in handles:
            handle.remove()
