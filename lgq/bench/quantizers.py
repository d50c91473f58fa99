"""The paper's cost table on this machine: time and memory of a forward and backward pass, per quantizer.

Each row is measured in a fresh process, its time in turns with the six GEMMs of 2nkc operations
that all-code soft assignment cannot do without: the floor.
"""

import dataclasses
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from lgq.bench.contestants import Contestant, contestants
from lgq.bench.memory import available_bytes, peak_extra_bytes
from lgq.bench.timing import BenchmarkError, interleaved, milliseconds, require_measurable
from lgq.checks import require_at_least
from lgq.quantizers import QUANTIZERS

_SLOW_MS = 10_000


@dataclass(frozen=True, kw_only=True)
class QuantizerBenchmark:
    """What to measure."""

    tokens: int = 8192
    """Vectors in a batch."""
    dim: int = 64
    """Channels of a vector."""
    sizes: tuple[int, ...] = (4_096, 16_384, 65_536, 262_144, 1_048_576)
    """Numbers of codes."""
    quantizers: tuple[str, ...] = tuple(QUANTIZERS)
    """Names of quantizers."""
    repeats: int = 5
    """Rounds of which the best counts; one round where it takes over ten seconds."""
    device: str = "cpu"
    """`cpu`, or `cuda`."""


@dataclass(frozen=True, kw_only=True)
class QuantizerRow:
    quantizer: str
    implementation: str
    codebook_size: int
    ms: float | None
    """Best time of forward and backward; None where the row does not fit in memory."""
    floor_ms: float | None
    """Best time of the six GEMMs in the same run."""
    extra_bytes: int | None
    """Peak memory beyond that in use before the step: the codebook and its gradient are there already."""
    tokens: int

    @property
    def fits(self) -> bool:
        return self.ms is not None

    @property
    def over_floor(self) -> float | None:
        return None if self.ms is None or self.floor_ms is None else self.ms / self.floor_ms

    @property
    def tokens_per_second(self) -> float | None:
        return None if self.ms is None else self.tokens / self.ms * 1e3


def run(settings: QuantizerBenchmark) -> Iterator[QuantizerRow]:
    """Rows as they come, ordered by quantizer, then size."""
    require_at_least(1, tokens=settings.tokens, dim=settings.dim, repeats=settings.repeats)
    require_measurable(settings.sizes, settings.device)
    for contestant, size in plan(settings):
        yield _measured_apart(contestant, size, settings)


def plan(settings: QuantizerBenchmark) -> list[tuple[Contestant, int]]:
    field = contestants(settings.quantizers)
    return [
        (contestant, size)
        for name in settings.quantizers
        for size in settings.sizes
        for contestant in field
        if contestant.quantizer == name
    ]


def _measured_apart(contestant: Contestant, size: int, settings: QuantizerBenchmark) -> QuantizerRow:
    needed = contestant.matrices * settings.tokens * size * 4
    if needed > 0.9 * available_bytes(torch.device(settings.device)):
        return _row(contestant, size, settings.tokens, None, None, None)
    task = json.dumps([dataclasses.asdict(contestant), size, dataclasses.asdict(settings)])
    command = [sys.executable, "-m", "lgq.bench.quantizers", task]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "it was killed"
        who = f"{contestant.quantizer} ({contestant.implementation})"
        raise BenchmarkError(f"measuring {who} with {size} codes failed: {reason}")
    return QuantizerRow(**json.loads(done.stdout.splitlines()[-1]))


def measure(contestant: Contestant, size: int, settings: QuantizerBenchmark) -> QuantizerRow:
    """One row, in this process."""
    device = torch.device(settings.device)
    step = contestant.step(settings.tokens, settings.dim, size, device)
    floor = six_gemms(settings.tokens, settings.dim, size, device)
    step()
    times: list[float] = []
    extra = peak_extra_bytes(lambda: times.append(milliseconds(step, device)), device)
    best = {"step": times[0], "floor": milliseconds(floor, device)}
    if max(best.values()) < _SLOW_MS:
        best = interleaved({"step": step, "floor": floor}, repeats=settings.repeats, device=device)
    return _row(contestant, size, settings.tokens, best["step"], best["floor"], extra)


def six_gemms(tokens: int, dim: int, size: int, device: torch.device) -> Callable[[], None]:
    """The products of a soft assignment and its gradients, in tiles of 64 MiB or more, and nothing else."""
    rows = min(tokens, max(64, 2**24 // size))
    z, codes = torch.randn(tokens, dim, device=device), torch.randn(size, dim, device=device)
    # A row length that is no power of two, or the rows of a column share one cache set.
    scores = torch.randn(rows, size + 16, device=device)[:, :size]
    gradient = torch.zeros_like(codes)

    def run() -> None:
        for start in range(0, tokens, rows):
            tile = z[start : start + rows]
            s = scores[: len(tile)]
            for _ in range(3):  # scores in both passes, and the gradient of the weights
                torch.mm(tile, codes.T, out=s)
            torch.mm(s, codes)
            for _ in range(2):  # the codebook's gradient, directly and through the scores
                gradient.addmm_(s.T, tile)

    return run


def _row(
    contestant: Contestant,
    size: int,
    tokens: int,
    ms: float | None,
    floor_ms: float | None,
    extra_bytes: int | None,
) -> QuantizerRow:
    return QuantizerRow(
        quantizer=contestant.quantizer,
        implementation=contestant.implementation,
        codebook_size=size,
        ms=ms,
        floor_ms=floor_ms,
        extra_bytes=extra_bytes,
        tokens=tokens,
    )


if __name__ == "__main__":
    named, codes, options = json.loads(sys.argv[1])
    print(json.dumps(dataclasses.asdict(measure(Contestant(**named), codes, QuantizerBenchmark(**options)))))
