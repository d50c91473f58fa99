"""Time and memory of a training step of every registered quantizer: ours, its dense reference, and a peer's.

Each row is measured in its own process, its time in turns with the floor: the six GEMMs of 2nkc operations
that soft assignment to all codes and its gradients need. A peer's is measured in turns with ours, too.
n = tokens, k = codes, c = channels.
"""

import importlib.util
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
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
from lgq.quantizers import (
    LFQ,
    QUANTIZERS,
    VQ,
    Grouped,
    Quantizer,
    Residual,
    ResidualFSQ,
    SimVQ,
    require_quantizer,
)
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
_STAGES, _GROUPS = 4, 2
VARIANTS: dict[str, Callable[[int, int], Quantizer]] = {
    "vq-cosine": partial(VQ, score="cosine"),
    "vq-gradient": partial(VQ, learning="gradient"),
    "vq-heads": lambda dim, k: Grouped.of(lambda: VQ(dim // _GROUPS, k), _GROUPS),
    "residual-vq": lambda dim, k: Residual.of(lambda: VQ(dim, k), _STAGES),
    "residual-fsq": lambda dim, k: ResidualFSQ(dim, k, _STAGES),
    "residual-lfq": lambda dim, k: Residual.of(lambda: LFQ(dim, k), _STAGES),
    "residual-simvq": lambda dim, k: Residual.of(lambda: SimVQ(dim, k), _STAGES),
    "grouped-residual-vq": lambda dim, k: Grouped.of(
        lambda: Residual.of(lambda: VQ(dim // _GROUPS, k), _STAGES), _GROUPS
    ),
}
"""Further forms that the peer has as classes or options: compositions of 4 stages, and of 2 groups."""
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
    """Names of the quantizers; by default, all that are registered. Forms of them that the peer has too:
    vq-cosine, vq-gradient, vq-heads, residual-vq, residual-fsq, residual-lfq, residual-simvq,
    grouped-residual-vq."""
    dense: bool = True
    """Measure the dense formulas too, which take long for many codes."""
    repeats: int = 5
    """Rounds, of which the best time counts; only one where a round takes over ten seconds."""
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
    ours_ms: float | None = None
    """Best time of our own step in turns with a peer's; None for all other rows."""
    extra_bytes: int | None = None
    """Peak memory beyond that in use before the step, which includes the codebook and its gradient."""

    @property
    def over_floor(self) -> float | None:
        return None if self.ms is None or self.floor_ms is None else self.ms / self.floor_ms


def plan(settings: QuantizerBenchmark) -> list[QuantizerRow]:
    """Rows to be measured, by quantizer, size and implementation."""
    rows = []
    for name in settings.quantizers:
        if name not in VARIANTS:
            require_quantizer(name)
        searches = name not in VARIANTS and QUANTIZERS[name].dense_matrices is not None
        on_cuda = resolve_device(settings.device).type == "cuda"
        implementations = [
            "ours",
            *[KERNELS] * (searches and on_cuda),
            *["dense"] * (searches and settings.dense),
        ]
        if name in (*_OF_THE_PEER, *VARIANTS) and importlib.util.find_spec("vector_quantize_pytorch"):
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
        dense = _dense_matrices(row.quantizer)
        # The peer keeps up to two n x k matrices more than the dense reference, if there are any.
        matrices = {"ours": 0, KERNELS: 0, "dense": dense}.get(row.implementation, dense and dense + 2)
        needed = matrices * row.tokens * row.codebook_size * 4
        fits = needed < 0.9 * available_bytes(device)
        yield _measure_in_new_process(row, settings) if fits else row


def _dense_matrices(name: str) -> int:
    """Return how many n x k matrices the dense formulas of a step hold at most, 0 if they need none."""
    if name not in VARIANTS:
        return QUANTIZERS[name].dense_matrices or 0
    parts = (_STAGES if "residual" in name else 1) * (_GROUPS if "grouped" in name else 1)
    return {"fsq": 0, "lfq": 7}.get(name.split("-")[-1], 5) * parts


def _measure_in_new_process(row: QuantizerRow, settings: QuantizerBenchmark) -> QuantizerRow:
    # The class itself, and the path to its module: the other process has its own registry.
    quantizer = None if row.quantizer in VARIANTS else QUANTIZERS[row.quantizer]
    task = pickle.dumps((quantizer, row, settings))
    command = [sys.executable, "-m", "lgq.bench.quantizers"]
    kernel = "triton" if row.implementation == KERNELS else "torch"
    done = subprocess.run(
        command,
        input=pickle.dumps((sys.path, task)),
        env=os.environ | {KERNEL_VARIABLE: kernel},
        capture_output=True,
        check=False,
    )
    if -done.returncode in (signal.SIGINT, signal.SIGTERM):
        raise KeyboardInterrupt  # the group of processes was told to stop, and this one will be too
    if done.returncode < 0:
        name = f"{row.quantizer} ({row.implementation}) with {row.codebook_size} codes"
        raise LGQError(f"the process that measured {name} was killed: try fewer codes or vectors.")
    if done.returncode:
        raise RuntimeError(done.stderr.decode(errors="replace"))
    result: QuantizerRow | LGQError = pickle.loads(done.stdout)
    if isinstance(result, LGQError):
        raise result
    return result


def measure(
    quantizer: type[Quantizer] | None, row: QuantizerRow, settings: QuantizerBenchmark
) -> QuantizerRow:
    """Measure a row in this process; `quantizer` is None for one of `VARIANTS`."""
    device = resolve_device(settings.device)
    step = training_step(quantizer, row, settings.dim, device)
    times: list[float] = []
    extra = peak_extra_bytes(lambda: times.append(milliseconds(step, device)), device)
    calls = {"step": step, "floor": six_gemms(row.tokens, settings.dim, row.codebook_size, device)}
    if row.implementation == PEER:
        calls["ours"] = training_step(quantizer, replace(row, implementation="ours"), settings.dim, device)
        calls["ours"]()
    best = {"step": times[-1]} | {name: milliseconds(calls[name], device) for name in calls if name != "step"}
    if max(best.values()) < _SLOW_MS:
        best = interleaved_ms(calls, repeats=settings.repeats, device=device)
    return replace(row, ms=best["step"], floor_ms=best["floor"], ours_ms=best.get("ours"), extra_bytes=extra)


def training_step(
    quantizer: type[Quantizer] | None, row: QuantizerRow, dim: int, device: torch.device
) -> Call:
    """A function that runs forward and backward once; `quantizer` is None for one of `VARIANTS`."""
    torch.manual_seed(0)
    z = torch.randn(row.tokens, dim, device=device, requires_grad=True)
    gradient = torch.randn(row.tokens, dim, device=device) / row.tokens
    ours = VARIANTS[row.quantizer] if quantizer is None else quantizer
    make = partial(_peer, row.quantizer) if row.implementation == PEER else ours
    with torch.device(device):
        module: Any = make(dim, row.codebook_size)

    def step() -> None:
        module.zero_grad(set_to_none=True)
        z.grad = None
        if row.implementation == PEER:  # its modules expect a batch axis, and some return no loss
            quantized, _, *losses = module(z[None])
        else:
            quantized, _, *losses = module.dense_forward(z) if row.implementation == "dense" else module(z)
        ((quantized.view_as(z) * gradient).sum() + sum(loss.sum() for loss in losses)).backward()

    return step


def _peer(quantizer: str, dim: int, codebook_size: int) -> nn.Module:
    import vector_quantize_pytorch as peer

    levels, stages = list(levels_for(codebook_size)), {"dim": dim, "num_quantizers": _STAGES}
    vq = {"codebook_size": codebook_size, "decay": 0.99, "rotation_trick": False}
    rotvq = {"codebook_size": codebook_size, "decay": 0.8, "rotation_trick": True}
    simvq = {"codebook_size": codebook_size, "rotation_trick": False}
    reviving = {"directional_reparam": True, "threshold_ema_dead_code": 1}
    learning = {"learnable_codebook": True, "ema_update": False}
    heads = {"heads": _GROUPS, "codebook_dim": dim // _GROUPS, "separate_codebook_per_head": True}
    make: dict[str, Callable[[], nn.Module]] = {
        "vq": lambda: peer.VectorQuantize(dim, **vq),
        "rotvq": lambda: peer.VectorQuantize(dim, **rotvq, commitment_weight=1.0),
        "diveq": lambda: peer.VectorQuantize(dim, codebook_size, decay=0.99, **reviving),
        "vq-cosine": lambda: peer.VectorQuantize(dim, **vq, use_cosine_sim=True),
        "vq-gradient": lambda: peer.VectorQuantize(dim, **vq, **learning),
        "vq-heads": lambda: peer.VectorQuantize(dim, **vq, **heads),
        "fsq": lambda: peer.FSQ(levels, dim=dim),
        "lfq": lambda: peer.LFQ(dim=dim, codebook_size=codebook_size),
        "bsq": lambda: peer.LFQ(dim=dim, codebook_size=codebook_size, spherical=True),
        "simvq": lambda: peer.SimVQ(dim, **simvq, codebook_transform=_mlp(dim)),
        "residual-vq": lambda: peer.ResidualVQ(**stages, **vq),
        "residual-fsq": lambda: peer.ResidualFSQ(levels=levels, **stages),
        "residual-lfq": lambda: peer.ResidualLFQ(codebook_size=codebook_size, **stages),
        "residual-simvq": lambda: peer.ResidualSimVQ(**stages, **simvq, codebook_transform=_mlp(dim)),
        "grouped-residual-vq": lambda: peer.GroupedResidualVQ(groups=_GROUPS, **stages, **vq),
    }
    return make[quantizer]()


def _mlp(dim: int) -> nn.Module:
    return nn.Sequential(nn.Linear(dim, 2 * dim), nn.ReLU(), nn.Linear(2 * dim, dim))


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
