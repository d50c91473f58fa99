"""Where codes begin: a normal of fixed seed, latents of the first batch, or their k-means centres.

n = vectors, k = codes, c = channels.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from lgq.distributed import broadcast_from_first, rank
from lgq.ops.search import nearest
from lgq.quantizers.base import Quantizer

_JITTER = 0.01


def normal_codes(
    codebook_size: int, dim: int, *, seed: int, std: float | None = None
) -> Float[Tensor, "k c"]:
    """Normal codes; by default of unit norm on average (std = dim^-1/2)."""
    generator = torch.Generator().manual_seed(seed)
    codes = torch.empty(codebook_size, dim, device=generator.device)
    codes.normal_(std=dim**-0.5 if std is None else std, generator=generator)
    return codes.to(torch.get_default_device())


def latent_codes(z: Float[Tensor, "n c"], codebook_size: int, *, seed: int) -> Float[Tensor, "k c"]:
    """Latents in random order; repeats, if there are too few, move a little.

    Equal codes would receive equal gradients for ever.
    """
    generator = torch.Generator().manual_seed(seed)
    device = generator.device
    order = torch.randperm(len(z), generator=generator, device=device)
    order = order.repeat(-(-codebook_size // len(z)))[:codebook_size].to(z.device)
    noise = torch.randn(codebook_size, z.shape[1], generator=generator, device=device).to(z)
    noise[: len(z)] = 0
    return z[order] + noise * z.std(correction=0) * _JITTER


def kmeans_codes(
    z: Float[Tensor, "n c"], codebook_size: int, *, seed: int, iterations: int = 10
) -> Float[Tensor, "k c"]:
    """Centres of Lloyd's algorithm on one batch; a centre without vectors stays where it is."""
    if codebook_size >= len(z):
        return latent_codes(z, codebook_size, seed=seed)
    codes = _spread_latents(z, codebook_size, seed=seed)
    for _ in range(iterations):
        indices = nearest(z, codes)
        counts = torch.bincount(indices, minlength=codebook_size)[:, None]
        sums = torch.zeros_like(codes).index_add_(0, indices, z)
        codes = torch.where(counts > 0, sums / counts.clamp_min(1), codes)
    return codes


def _spread_latents(z: Float[Tensor, "n c"], codebook_size: int, *, seed: int) -> Float[Tensor, "k c"]:
    """k-means++ (Arthur & Vassilvitskii 2007): draw each in proportion to its squared distance
    from those drawn before, so that no cluster is left out."""
    generator = torch.Generator().manual_seed(seed)
    draws = torch.rand(codebook_size, generator=generator, dtype=torch.float64, device=generator.device)
    distances = torch.ones(len(z), dtype=torch.float64, device=z.device)
    chosen: list[Tensor] = []
    for draw in draws.to(z.device):
        cumulated = distances.cumsum(0)
        index = torch.searchsorted(cumulated, draw * cumulated[-1], right=True).clamp_max(len(z) - 1)
        chosen.append(z[index])
        to_this = (z - chosen[-1]).square().sum(1).double()
        distances = torch.minimum(distances, to_this) if len(chosen) > 1 else to_this
    return torch.stack(chosen)


class StartsFromData(Quantizer):
    """A quantizer whose codes may wait for the first training batch to begin from."""

    awaits_data = False

    def codes_from(self, z: Float[Tensor, "n c"]) -> Float[Tensor, "k c"]:
        """The start that the first training batch gives."""
        raise NotImplementedError

    def begin(self, codes: Float[Tensor, "k c"]) -> None:
        """Set the codebook to its start."""
        raise NotImplementedError

    def restart(self, seed: int) -> None:
        self.seed = seed
        self.begin(normal_codes(self.codebook_size, self.dim, seed=seed))

    @torch.no_grad()
    def start_if_awaited(self, z: Float[Tensor, "n c"]) -> None:
        """From the first process's first batch that is not empty, on every process alike."""
        if not (self.awaits_data and self.training):
            return
        if torch.compiler.is_compiling():
            raise RuntimeError("codes that start from data need one training batch before torch.compile.")
        if int(broadcast_from_first(torch.tensor(len(z), device=z.device))) == 0:
            return
        codes = self.codes_from(z) if rank() == 0 else z.new_empty(self.codebook_size, self.dim)
        self.begin(broadcast_from_first(codes))
        self.awaits_data = False

    def get_extra_state(self) -> Tensor:
        return torch.tensor(self.awaits_data, device="cpu")

    def set_extra_state(self, state: Tensor) -> None:
        self.awaits_data = bool(state)
