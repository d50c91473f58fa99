"""Initial codes: normal of a fixed seed, latents of the first batch, or k-means centres of it.

n = vectors, k = codes, c = channels.
"""

from typing import Any, Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lgq.checks import has_values, require_one_of, require_tensor
from lgq.distributed import broadcast_from_first, rank
from lgq.errors import LGQError, warn
from lgq.ops.search import nearest_codes
from lgq.quantizers.base import Quantizer

Init = Literal["normal", "data", "kmeans"]
"""Start of the codes: normal, latents of the first training batch, or k-means centres of it."""

_JITTER = 0.01
_APART = 0.2
"""Noise on the copies of a code that is split, in standard deviations of the codes."""


class DataInitQuantizer(Quantizer):
    """A quantizer with a codebook that can be initialized from the first training batch."""

    init: Init = "normal"
    """How the codes start."""
    init_std: float | None = None
    """Standard deviation of normal codes; None for unit norm on average."""
    needs_data_init = False
    """Whether the next training batch initializes the codebook."""
    _warned_of_no_start = False
    _loads = False

    def __setattr__(self, name: str, value: Any) -> None:
        """Take a tensor that is assigned to `codebook` as `set_codebook` does.

        Otherwise running means would move the codes back. Loaded states and copies of DataParallel, which
        torch assigns too, have running means of their own.
        """
        held = name == "codebook" and (name in self._buffers or name in self._parameters)
        assigned = isinstance(value, Tensor) and not isinstance(value, nn.Parameter)
        if held and assigned and not self._loads and not hasattr(self, "_is_replica"):
            self.set_codebook(value)
        else:
            super().__setattr__(name, value)

    def start_codes(self, init: Init) -> None:
        """Check and remember the start of the codes."""
        require_one_of(get_args(Init), init=init)
        self.init = init
        self.needs_data_init = self.codes_are_given = init != "normal"

    def data_init_codes(self, z: Float[Tensor, "n c"]) -> Float[Tensor, "k c"]:
        """Return the initial codes for a first batch `z`."""
        start = kmeans_codes if self.init == "kmeans" else latent_codes
        return start(z, self.codebook_size, seed=self.seed)

    def write_codes(self, codes: Float[Tensor, "k c"]) -> None:
        """Copy codes into the codebook, and set all running statistics as if training began with them."""
        raise NotImplementedError

    @torch.no_grad()
    def set_codebook(self, codes: Float[Tensor, "k c"]) -> None:
        """Begin training with these codes, in units of the latents, whatever `init` says."""
        require_tensor("codes", codes)
        if codes.shape != (self.codebook_size, self.code_dim):
            raise LGQError(
                f"the codes must have shape {(self.codebook_size, self.code_dim)}, got {tuple(codes.shape)}: "
                "one row per code."
            )
        if has_values(codes) and not torch.isfinite(codes).all():
            raise LGQError("the codes contain NaN or infinity: take those of a sound training.")
        self.begin_with(self.given_codes(codes))

    def given_codes(self, codes: Float[Tensor, "k c"]) -> Float[Tensor, "k c"]:
        """Return codes in units of the latents as `write_codes` takes them."""
        return codes

    @torch.no_grad()
    def begin_with(self, codes: Float[Tensor, "k c"]) -> None:
        """Begin training with these codes, as `codebook` holds them."""
        self.write_codes(codes)
        self.needs_data_init, self.codes_are_given = False, True

    @torch.no_grad()
    def reset_parameters(self, seed: int) -> None:
        self.seed = seed
        self._reset_projections(seed)
        self.write_codes(normal_codes(self.codebook_size, self.code_dim, seed=seed, std=self.init_std))
        self.start_codes(self.init)

    @torch.no_grad()
    def init_from_data(self, z: Float[Tensor, "n c"]) -> None:
        """Set the codebook if it needs data: on all ranks, from rank 0's first batch that is not empty."""
        if not (self.needs_data_init and self.training):
            return
        if self.frozen:
            self._warn_of_no_start()
            return
        if torch.compiler.is_compiling():
            raise RuntimeError(
                "codes that start from data need one training batch, or set_codebook, before torch.compile."
            )
        if int(broadcast_from_first(torch.tensor(len(z), device=z.device))) == 0:
            return
        if rank() == 0:
            self._watch_start(z)
            codes = self.data_init_codes(z)
        else:
            codes = z.new_empty(self.codebook_size, self.code_dim)
        self.begin_with(broadcast_from_first(codes))
        self.begin_batch()  # again, as the codes are others now

    def watch_evaluation(self) -> None:
        super().watch_evaluation()
        self._warn_of_no_start()

    def _warn_of_no_start(self) -> None:
        if self.needs_data_init and not self._warned_of_no_start:
            self._warned_of_no_start = True
            warn(
                f'the codes of {type(self).__name__}(init="{self.init}") are still random numbers, as they '
                "start from the first training batch that finds them unfrozen: train first, load a trained "
                "state, or call q.set_codebook(codes)."
            )

    def _watch_start(self, z: Float[Tensor, "n c"]) -> None:
        """Warn of a first batch whose latents are all equal, and so are the codes that come from them."""
        if not has_values(z) or (len(z) > 1 and (z != z[0]).any()):
            return
        warn(
            f'the first training batch of {type(self).__name__}(init="{self.init}") holds equal latents '
            "only, so codes start nearly equal: begin with a larger batch of varied data, or with "
            "q.set_codebook(codes).",
        )

    def get_extra_state(self) -> Tensor:
        return torch.tensor(self.needs_data_init, device="cpu")

    def set_extra_state(self, state: Tensor) -> None:
        self.needs_data_init = bool(state)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *arguments: Any) -> None:
        # Codes from before there was such a start have begun.
        state_dict.setdefault(f"{prefix}_extra_state", torch.tensor(False))
        self._loads = True
        try:
            super()._load_from_state_dict(state_dict, prefix, *arguments)
        finally:
            self._loads = False


def normal_codes(
    codebook_size: int, dim: int, *, seed: int, std: float | None = None
) -> Float[Tensor, "k c"]:
    """Draw normal codes, by default of unit norm on average (std = dim^-1/2)."""
    generator = torch.Generator().manual_seed(seed)
    codes = torch.empty(codebook_size, dim, device=generator.device)
    codes.normal_(std=dim**-0.5 if std is None else std, generator=generator)
    return codes.to(torch.get_default_device())


def latent_codes(z: Float[Tensor, "n c"], codebook_size: int, *, seed: int) -> Float[Tensor, "k c"]:
    """Take latents in random order as codes, with noise on repeats if there are more codes than latents.

    Equal codes would receive equal gradients forever.
    """
    generator = torch.Generator().manual_seed(seed)
    device = generator.device
    order = torch.randperm(len(z), generator=generator, device=device)
    order = order.repeat(-(-codebook_size // len(z)))[:codebook_size].to(z.device)
    noise = torch.randn(codebook_size, z.shape[1], generator=generator, device=device).to(z)
    noise[: len(z)] = 0
    return z[order] + noise * z.std(correction=0) * _JITTER


def split_codes(codes: Float[Tensor, "m c"], codebook_size: int, *, seed: int) -> Float[Tensor, "k c"]:
    """Make more codes of few: each old one, and copies of them at a small distance."""
    generator = torch.Generator().manual_seed(seed)
    m, device = len(codes), generator.device
    copies = codes.repeat(-(-codebook_size // m), 1)[:codebook_size]
    noise = torch.randn(copies.shape, generator=generator, device=device).to(copies)
    noise[:m] = 0
    return copies + noise * codes.std(correction=0) * _APART


def kmeans_codes(
    z: Float[Tensor, "n c"], codebook_size: int, *, seed: int, iterations: int = 10
) -> Float[Tensor, "k c"]:
    """Run Lloyd's algorithm on one batch; a centre without vectors stays where it is."""
    if codebook_size >= len(z):
        return latent_codes(z, codebook_size, seed=seed)
    codes = _kmeans_plus_plus(z, codebook_size, seed=seed)
    for _ in range(iterations):
        indices = nearest_codes(z, codes).indices
        counts = torch.bincount(indices, minlength=codebook_size)[:, None]
        sums = torch.zeros_like(codes).index_add_(0, indices, z)
        codes = torch.where(counts > 0, sums / counts.clamp_min(1), codes)
    return codes


def _kmeans_plus_plus(z: Float[Tensor, "n c"], codebook_size: int, *, seed: int) -> Float[Tensor, "k c"]:
    """Draw initial centres (k-means++, Arthur & Vassilvitskii 2007).

    Each latent is drawn in proportion to its squared distance from the centres before it, so that no cluster
    is left out.
    """
    generator = torch.Generator().manual_seed(seed)
    draws = torch.rand(codebook_size, generator=generator, dtype=torch.float64)
    distances = torch.ones(len(z), dtype=torch.float64)
    centres: list[Tensor] = []
    for draw in draws:
        cumulated = distances.cumsum(0)
        index = torch.searchsorted(cumulated, draw * cumulated[-1], right=True).clamp_max(len(z) - 1)
        centres.append(z[index])
        to_centre = (z - centres[-1]).square().sum(1).cpu().double()
        distances = torch.minimum(distances, to_centre) if len(centres) > 1 else to_centre
    return torch.stack(centres)
