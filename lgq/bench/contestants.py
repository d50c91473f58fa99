"""Who is measured: our quantizers, the plain formulas, and a peer's implementations where installed."""

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from lgq.bench import dense
from lgq.quantizers import QUANTIZERS, build_quantizer
from lgq.quantizers.fsq import levels_for

PEER = "vector-quantize-pytorch"
DENSE: dict[str, Callable[[int, int], nn.Module]] = {
    "lgq": dense.DenseLGQ,
    "ibq": dense.DenseIBQ,
    "vq": dense.DenseVQ,
    "rotvq": partial(dense.DenseVQ, gradient="rotation", decay=0.8, commitment_weight=1.0),
    "lfq": dense.DenseLFQ,
    "simvq": dense.DenseSimVQ,
}
"""Plain formulas; FSQ has no matrix to be plain about."""
Step = Callable[[], object]


@dataclass(frozen=True)
class Contestant:
    quantizer: str
    implementation: str
    """`ours`, `dense` for the plain formula, or the peer's name."""
    matrices: int
    """How many n x k matrices a step needs at most; 0 where it needs none."""

    def step(self, tokens: int, dim: int, codebook_size: int, device: torch.device) -> Step:
        """A function that runs forward and backward once."""
        torch.manual_seed(0)
        z = torch.randn(tokens, dim, device=device, requires_grad=True)
        gradient = torch.randn(tokens, dim, device=device) / tokens
        with torch.device(device):
            module = self._module(dim, codebook_size)
        return lambda: _run(module, z, gradient)

    def _module(self, dim: int, codebook_size: int) -> nn.Module:
        if self.implementation == "ours":
            return build_quantizer(self.quantizer, dim, codebook_size)
        if self.implementation == "dense":
            return DENSE[self.quantizer](dim, codebook_size)
        return _peer(self.quantizer, dim, codebook_size)


def _run(module: nn.Module, z: Tensor, gradient: Tensor) -> None:
    module.zero_grad(set_to_none=True)
    z.grad = None
    quantized, _, loss = module(z)
    ((quantized * gradient).sum() + loss).backward()


class _PeerAdapter(nn.Module):
    """Its modules want a batch axis; some return no loss."""

    def __init__(self, module: nn.Module):
        super().__init__()
        self.module = module

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        quantized, indices, *loss = self.module(z[None])
        return quantized[0], indices, sum(loss, start=torch.zeros_like(z[0, 0]))


def _peer(quantizer: str, dim: int, codebook_size: int) -> nn.Module:
    import vector_quantize_pytorch as peer

    if quantizer in ("vq", "rotvq"):
        settings = {"decay": 0.8, "commitment_weight": 1.0} if quantizer == "rotvq" else {"decay": 0.99}
        rotation = quantizer == "rotvq"
        return _PeerAdapter(peer.VectorQuantize(dim, codebook_size, rotation_trick=rotation, **settings))
    if quantizer == "fsq":
        return _PeerAdapter(peer.FSQ(list(levels_for(codebook_size)), dim=dim))
    if quantizer == "lfq":
        return _PeerAdapter(peer.LFQ(dim=dim, codebook_size=codebook_size))
    transform = nn.Sequential(nn.Linear(dim, 2 * dim), nn.ReLU(), nn.Linear(2 * dim, dim))
    return _PeerAdapter(peer.SimVQ(dim, codebook_size, codebook_transform=transform, rotation_trick=False))


def contestants(quantizers: tuple[str, ...]) -> list[Contestant]:
    """All that can run here, our own first for each quantizer."""
    dense_matrices = {"lgq": 6, "ibq": 11, "vq": 3, "rotvq": 3, "lfq": 7, "simvq": 3}
    peer_matrices = {"vq": 4, "rotvq": 4, "fsq": 0, "lfq": 9, "simvq": 4}
    found = []
    for name in quantizers:
        if name not in QUANTIZERS:
            raise ValueError(f"unknown quantizer {name!r}: choose from {', '.join(QUANTIZERS)}.")
        found.append(Contestant(name, "ours", 0))
        if name in dense_matrices:
            found.append(Contestant(name, "dense", dense_matrices[name]))
        if name in peer_matrices and importlib.util.find_spec("vector_quantize_pytorch"):
            found.append(Contestant(name, PEER, peer_matrices[name]))
    return found
