"""Time and memory of a training step of every registered quantizer: ours, its dense reference, and a peer's.

Each row is measured in its own process, its time in turns with the floor: the six GEMMs of 2nkc operations
that soft assignment to all codes and its gradients need.
n = tokens, k = codes, c = channels.
"""

import importlib.util
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import nn

from lgq.bench.measure import (
    Call,
    available_bytes,
    interleaved_ms,
    milliseconds,
    peak_extra_bytes,
)
from lgq.checks import require_at_least
from lgq.distributed import resolve_device
from lgq.errors import LGQError
from lgq.ops.fused import KERNEL_VARIABLE
from lgq.quantizers import QUANTIZERS, Quantizer, require_quantizer
from lgq.quantizers.fsq import levels_for

PEER = "vector-quantize-pytorch"
KERNELS = "kernels"
PAPER_MS = {
    ("fsq", 16_384): 0.42, ("fsq", 65_536): 0.45, ("simvq", 16_384): 2.44, ("simvq", 65_536): 8.60,
    ("ibq", 16_384): 46.09, ("ibq", 65_536): 182.19, ("lgq", 4_096): 3.59, ("lgq", 16_384): 12.18,
    ("lgq", 65_536): 47.10, ("lgq", 262_144): 190.33,
}  # fmt: skip
"""Times of the paper by quantizer and number of codes: 8,192 tokens of 64 channels on an H100."""
_OF_THE_PEER = ("vq", "rotvq", "fsq", "lfq", "simvq", "bsq", "diveq")
_SLOW_MS = 10_000


@dataclass(frozen=True, kw_only=True)
class QuantizerBenchmark:
    """What to measure."""

    vectors: int = 8192
    """Vectors in a batch."""
    dim: int = 64
    """Channels of a vector."""
    sizes: tuple[int, ...] = (4_096, 16_384, 65_536, 262_144, 1_048_576)
    """Numbers of codes."""
    quantizers: tuple[str, ...] = field(default_factory=lambda: tuple(QUANTIZERS))
    """Names of the quantizers; by default, all that are registered."""
    repeats: int = 5
    """Rounds, of which the best counts; only one where a round takes over ten seconds."""
    device: str = "auto"
    """Where to measure: auto (CUDA, else MPS, else the CPU), cpu, cuda, cuda:N or mps."""


@dataclass(frozen=True, kw_only=True)
class QuantizerRow:
    quantizer: str
    implementation: str
    """`ours` for tiles of torch, `kernels` for fused kernels, `dense` for the dense reference, or the name of
    the peer."""
    codebook_size: int
    tokens: int
    ms: float | None = None
    """Best time of a forward and backward pass; None where it does not fit in memory."""
    floor_ms: float | None = None
    """Best time of the six GEMMs in the same run."""
    extra_bytes: int | None = None
    """Peak memory beyond that in use before the step, which includes the codebook and its gradient."""

    @property
    def over_floor(self) -> float | None:
        return None if self.ms is None or self.floor_ms is None else self.ms / self.floor_ms


def plan(settings: QuantizerBenchmark) -> list[QuantizerRow]:
    """Rows to be measured, by quantizer, size and implementation."""
    rows = []
    for name in settings.quantizers:
        require_quantizer(name)
        searches = QUANTIZERS[name].dense_matrices is not None
        on_cuda = resolve_device(settings.device).type == "cuda"
        implementations = ["ours", *[KERNELS] * (searches and on_cuda), *["dense"] * searches]
        if name in _OF_THE_PEER and importlib.util.find_spec("vector_quantize_pytorch"):
            implementations.append(PEER)
        rows += [
            QuantizerRow(quantizer=name, implementation=by, codebook_size=size, tokens=settings.vectors)
            for size in settings.sizes
            for by in implementations
        ]
    return rows


def run(settings: QuantizerBenchmark) -> Iterator[QuantizerRow]:
    require_at_least(1, vectors=settings.vectors, dim=settings.dim, repeats=settings.repeats)
    require_at_least(1, sizes=min(settings.sizes, default=0))
    device = resolve_device(settings.device)
    for row in plan(settings):
        dense = QUANTIZERS[row.quantizer].dense_matrices or 0
        # The peer keeps up to two n x k matrices more than the dense reference, if there are any.
        matrices = {"ours": 0, KERNELS: 0, "dense": dense}.get(row.implementation, dense and dense + 2)
        needed = matrices * row.tokens * row.codebook_size * 4
        fits = needed < 0.9 * available_bytes(device)
        yield _measure_in_new_process(row, settings) if fits else row


def _measure_in_new_process(row: QuantizerRow, settings: QuantizerBenchmark) -> QuantizerRow:
    # The class itself, and the path to its module: the other process has its own registry.
    task = pickle.dumps((QUANTIZERS[row.quantizer], row, settings))
    command = [sys.executable, "-m", "lgq.bench.quantizers"]
    kernel = "triton" if row.implementation == KERNELS else "torch"
    done = subprocess.run(
        command,
        input=pickle.dumps((sys.path, task)),
        env=os.environ | {KERNEL_VARIABLE: kernel},
        capture_output=True,
        check=False,
    )
    if done.returncode < 0:
        name = f"{row.quantizer} ({row.implementation}) with {row.codebook_size} codes"
        raise LGQError(f"the process that measured {name} was killed: try fewer codes or vectors.")
    if done.returncode:
        raise RuntimeError(done.stderr.decode(errors="replace"))
    result: QuantizerRow | LGQError = pickle.loads(done.stdout)
    if isinstance(result, LGQError):
        raise result
    return result


def measure(quantizer: type[Quantizer], row: QuantizerRow, settings: QuantizerBenchmark) -> QuantizerRow:
    """Measure a row in this process."""
    device = resolve_device(settings.device)
    step = training_step(quantizer, row, settings.dim, device)
    floor = six_gemms(row.tokens, settings.dim, row.codebook_size, device)
    step()
    times: list[float] = []
    extra = peak_extra_bytes(lambda: times.append(milliseconds(step, device)), device)
    best = {"step": times[0], "floor": milliseconds(floor, device)}
    if max(best.values()) < _SLOW_MS:
        best = interleaved_ms({"step": step, "floor": floor}, repeats=settings.repeats, device=device)
    return replace(row, ms=best["step"], floor_ms=best["floor"], extra_bytes=extra)


def training_step(quantizer: type[Quantizer], row: QuantizerRow, dim: int, device: torch.device) -> Call:
    """A function that runs forward and backward once."""
    torch.manual_seed(0)
    z = torch.randn(row.tokens, dim, device=device, requires_grad=True)
    gradient = torch.randn(row.tokens, dim, device=device) / row.tokens
    make = partial(_peer, row.quantizer) if row.implementation == PEER else quantizer
    with torch.device(device):
        module: Any = make(dim, row.codebook_size)

    def step() -> None:
        module.zero_grad(set_to_none=True)
        z.grad = None
        if row.implementation == PEER:  # its modules expect a batch axis, and some return no loss
            quantized, _, *losses = module(z[None])
        else:
            quantized, _, *losses = module.dense_forward(z) if row.implementation == "dense" else module(z)
        ((quantized.view_as(z) * gradient).sum() + sum(losses)).backward()

    return step


def _peer(quantizer: str, dim: int, codebook_size: int) -> nn.Module:
    import vector_quantize_pytorch as peer

    if quantizer == "fsq":
        return peer.FSQ(list(levels_for(codebook_size)), dim=dim)
    if quantizer in ("lfq", "bsq"):
        return peer.LFQ(dim=dim, codebook_size=codebook_size, spherical=quantizer == "bsq")
    if quantizer == "diveq":
        return peer.VectorQuantize(
            dim, codebook_size, directional_reparam=True, threshold_ema_dead_code=1, decay=0.99
        )
    if quantizer == "simvq":
        mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.ReLU(), nn.Linear(2 * dim, dim))
        return peer.SimVQ(dim, codebook_size, codebook_transform=mlp, rotation_trick=False)
    options = {"decay": 0.8, "commitment_weight": 1.0} if quantizer == "rotvq" else {"decay": 0.99}
    return peer.VectorQuantize(dim, codebook_size, rotation_trick=quantizer == "rotvq", **options)


def six_gemms(tokens: int, dim: int, size: int, device: torch.device) -> Call:
    """The products of a soft assignment and its gradients, in tiles of at least 64 MiB, and nothing else."""
    rows = min(tokens, max(64, 2**24 // size))
    z, codes = torch.randn(tokens, dim, device=device), torch.randn(size, dim, device=device)
    # The row length is not a power of two: otherwise the rows of a column share one cache set.
    scores = torch.randn(rows, size + 16, device=device)[:, :size]
    gradient = torch.zeros_like(codes)

    def run() -> None:
        for start in range(0, tokens, rows):
            tile = z[start : start + rows]
            s = scores[: len(tile)]
            for _ in range(3):  # scores in both passes, and the gradient of the weights
                torch.mm(tile, codes.T, out=s)
            torch.mm(s, codes)
            for _ in range(2):  # the gradient of the codebook, directly and through the scores
                gradient.addmm_(s.T, tile)

    return run


if __name__ == "__main__":
    sys.path[:], task = pickle.load(sys.stdin.buffer)
    try:
        result: QuantizerRow | LGQError = measure(*pickle.loads(task))
    except LGQError as error:
        result = error
    sys.stdout.buffer.write(pickle.dumps(result))
