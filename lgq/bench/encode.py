"""Nearest-code search against faiss's exact flat index, in turns in one process."""

import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from lgq.bench.timing import interleaved, require_measurable
from lgq.checks import require_at_least
from lgq.ops.search import nearest_codes


@dataclass(frozen=True, kw_only=True)
class EncodeBenchmark:
    """What to measure."""

    tokens: int = 8192
    """Vectors in a batch."""
    dim: int = 64
    """Channels of a vector."""
    sizes: tuple[int, ...] = (1_024, 4_096, 16_384, 65_536, 262_144)
    """Numbers of codes."""
    repeats: int = 16
    """Rounds of which the best counts."""
    device: str = "cpu"
    """`cpu`, or `cuda` (where faiss does not take part)."""


@dataclass(frozen=True, kw_only=True)
class EncodeRow:
    codebook_size: int
    ms: float
    gemm_ms: float
    """The one product that the search needs, and nothing else."""
    faiss_ms: float | None
    agreement: float | None
    """Share of the vectors for which faiss finds the same code."""
    tokens: int


def run(settings: EncodeBenchmark) -> Iterator[EncodeRow]:
    require_at_least(1, tokens=settings.tokens, dim=settings.dim, repeats=settings.repeats)
    require_measurable(settings.sizes, settings.device)
    for size in settings.sizes:
        yield _row(settings, size)


def _row(settings: EncodeBenchmark, size: int) -> EncodeRow:
    device = torch.device(settings.device)
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(settings.tokens, settings.dim, generator=generator).to(device)
    codes = torch.randn(size, settings.dim, generator=generator).to(device) * settings.dim**-0.5
    faiss_search = _faiss(z, codes) if device.type == "cpu" and importlib.util.find_spec("faiss") else None
    field: dict[str, Callable[[], object]] = {
        "ours": lambda: nearest_codes(z, codes),
        "gemm": _gemm(z, codes),
    }
    if faiss_search:
        field["faiss"] = faiss_search
    best = interleaved(field, repeats=settings.repeats, device=device)
    agreement = (
        float((faiss_search() == nearest_codes(z, codes).indices).float().mean()) if faiss_search else None
    )
    return EncodeRow(
        codebook_size=size,
        ms=best["ours"],
        gemm_ms=best["gemm"],
        faiss_ms=best.get("faiss"),
        agreement=agreement,
        tokens=settings.tokens,
    )


def _gemm(z: Tensor, codes: Tensor) -> Callable[[], None]:
    block = codes[:4096]
    scores = z.new_empty(len(z[:512]), len(block) + 16)[:, : len(block)]

    def run() -> None:
        for first in range(0, len(codes), len(block)):
            part = codes[first : first + len(block)]
            for start in range(0, len(z), len(scores)):
                tile = z[start : start + len(scores)]
                torch.mm(tile, part.T, out=scores[: len(tile), : len(part)])

    return run


def _faiss(z: Tensor, codes: Tensor) -> Callable[[], Tensor]:
    import faiss

    index = faiss.IndexFlatL2(codes.shape[1])
    index.add(codes.numpy())
    return lambda: torch.from_numpy(index.search(z.numpy(), 1)[1][:, 0])
