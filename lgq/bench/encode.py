"""Nearest-code search beside faiss's exact flat index, in turns in one process."""

import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from lgq.bench.measure import Call, interleaved_ms
from lgq.checks import require_at_least
from lgq.distributed import resolve_device
from lgq.ops.search import nearest_codes


@dataclass(frozen=True, kw_only=True)
class EncodeBenchmark:
    """What to measure."""

    vectors: int = 8192
    """Vectors in a batch."""
    dim: int = 64
    """Channels of a vector."""
    sizes: tuple[int, ...] = (1_024, 4_096, 16_384, 65_536, 262_144)
    """Numbers of codes."""
    repeats: int = 16
    """Rounds, of which the best counts."""
    device: str = "auto"
    """Where to measure: auto (CUDA, else MPS, else the CPU), cpu, cuda, cuda:N or mps. faiss is
    measured on the CPU only."""


@dataclass(frozen=True, kw_only=True)
class EncodeRow:
    codebook_size: int
    ms: float
    gemm_ms: float
    """Time of the one product that an exact search needs, and nothing else."""
    faiss_ms: float | None
    agreement: float | None
    """Share of the vectors for which faiss finds the same code."""
    tokens: int


def plan(settings: EncodeBenchmark) -> tuple[int, ...]:
    return settings.sizes


def run(settings: EncodeBenchmark) -> Iterator[EncodeRow]:
    require_at_least(1, vectors=settings.vectors, dim=settings.dim, repeats=settings.repeats)
    require_at_least(1, sizes=min(settings.sizes, default=0))
    device, generator = resolve_device(settings.device), torch.Generator().manual_seed(0)
    z = torch.randn(settings.vectors, settings.dim, generator=generator).to(device)
    for size in plan(settings):
        codes = torch.randn(size, settings.dim, generator=generator).to(device) * settings.dim**-0.5
        calls: dict[str, Call] = {"ours": partial(nearest_codes, z, codes), "gemm": _gemm(z, codes)}
        agreement = None
        if device.type == "cpu" and importlib.util.find_spec("faiss"):
            import faiss

            index = faiss.IndexFlatL2(settings.dim)
            index.add(codes.numpy())
            calls["faiss"] = partial(index.search, z.numpy(), 1)
            indices = torch.from_numpy(index.search(z.numpy(), 1)[1][:, 0])
            agreement = float((indices == nearest_codes(z, codes).indices).float().mean())
        best = interleaved_ms(calls, repeats=settings.repeats, device=device)
        yield EncodeRow(
            codebook_size=size,
            ms=best["ours"],
            gemm_ms=best["gemm"],
            faiss_ms=best.get("faiss"),
            agreement=agreement,
            tokens=settings.vectors,
        )


def _gemm(z: Tensor, codes: Tensor) -> Call:
    block = codes[:4096]
    scores = z.new_empty(len(z[:512]), len(block) + 16)[:, : len(block)]

    def run() -> None:
        for part in codes.split(len(block)):
            for tile in z.split(len(scores)):
                torch.mm(tile, part.T, out=scores[: len(tile), : len(part)])

    return run
