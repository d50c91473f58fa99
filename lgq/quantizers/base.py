"""The contract of every quantizer: latents in; codes, indices and a loss out, in any tensor layout.

n = vectors, k = codes, c = channels, i = input channels, o = output channels.
"""

import inspect
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Integer
from torch import Tensor, nn

from lgq.checks import (
    has_values,
    is_exported,
    require_at_least,
    require_channels,
    require_finite,
    require_indices,
    require_whole,
)
from lgq.errors import LGQError, LGQWarning
from lgq.ops.numerics import at_least_float32, outside_autocast
from lgq.ops.search import Score, nearest_codes
from lgq.quantizers.quantized import Quantized

_SCALE_CHECKS = (1, 10, 100)
"""Training batches whose scale is measured."""


class Quantizer(nn.Module, ABC):
    """Maps each latent vector to one of `codebook_size` codes.

    dim: number of channels of the latents.
    codebook_size: number of codes.
    channel_dim: axis of the channels in the input; -1 for (batch, ..., dim), 1 for BCHW, BCT or BCTHW.
    seed: seed of the initial codes; None draws one from torch's default generator, so that
        `torch.manual_seed` fixes it and no two quantizers start alike. The attribute `seed` has the number.
    """

    label: ClassVar[str]
    """Name in tables and figures."""
    learned_codes: ClassVar[bool] = True
    """Whether training moves the codes of `codebook`; False for a fixed grid, or without one codebook."""
    scale_defaults: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Options of the named runs of each scale that differ from the constructor's defaults."""
    score: Score = "l2"
    """Score by which `select` compares codes."""
    float32_buffers: ClassVar[tuple[str, ...]] = ()
    """Buffers that stay in float32 or better when the module is moved to half precision."""
    good_scale: tuple[float, float] | None = None
    """Root mean square of latents, from and to, for which the initial codes are made; None for any."""
    off_scale_advice: str = ""
    """What else to turn if the latents' root mean square is another."""
    dense_matrices: ClassVar[int | None] = None
    """Number of n x k matrices that `dense_forward` and its gradients hold at most; None without one."""

    _training_forwards = 0
    _scale_matters = True

    def __init__(self, dim: int, codebook_size: int, *, channel_dim: int = -1, seed: int | None = None):
        super().__init__()
        seed = draw_seed() if seed is None else seed
        require_whole(dim=dim, codebook_size=codebook_size, channel_dim=channel_dim, seed=seed)
        require_at_least(1, dim=dim, codebook_size=codebook_size)
        self.dim = dim
        self.codebook_size = codebook_size
        self.channel_dim = channel_dim
        self.seed = seed

    @abstractmethod
    def quantize_vectors(self, z: Float[Tensor, "n c"]) -> Quantized:
        """Compute `forward` for a matrix of vectors in float32 or better; called outside autocast."""

    def dense_forward(self, z: Float[Tensor, "n c"]) -> Quantized:
        """Compute the plain formulas with n x k matrices: the reference for tests and benchmarks.

        Optional: a quantizer that defines it also sets `dense_matrices`.
        """
        raise NotImplementedError(f"{type(self).__name__} has no dense reference.")

    @torch.no_grad()
    def select(self, z: Float[Tensor, "n c"]) -> Int[Tensor, "n ..."]:
        """Find the index of each vector's code, the best row of `codebook` by `score`; without gradients."""
        codebook: Any = self.codebook
        return nearest_codes(z, codebook, score=self.score).indices

    def lookup(self, indices: Int[Tensor, "n ..."]) -> Float[Tensor, "n c"]:
        """Return the code of each index: a row of `codebook`."""
        codebook: Any = self.codebook
        codes: Tensor = codebook[indices]
        return codes

    @abstractmethod
    def reset_parameters(self, seed: int) -> None:
        """Redraw the initial parameters and buffers from `seed`."""

    def anneal(self, progress: float) -> None:
        """Set what changes over training, at `progress` from 0 to 1; most quantizers have nothing to set."""
        if not isinstance(progress, int | float | Tensor) or not 0 <= progress <= 1:
            raise LGQError(f"progress runs from 0 to 1, got {progress!r}: pass step / total_steps.")

    def forward(self, z: Float[Tensor, "*shape"]) -> Quantized:
        vectors, tokens = self._to_vectors(z)
        if self.training and has_values(vectors):
            self.watch(vectors.detach())
        with outside_autocast(z):
            if self.training or (torch.is_grad_enabled() and not is_exported()):
                result = self.quantize_vectors(vectors)
            else:
                indices = self.select(vectors)
                result = Quantized(self.lookup(indices), indices, vectors.new_zeros(()))
        quantized = self._from_vectors(result.quantized.to(z.dtype), tokens)
        loss = result.loss if self.training else torch.zeros_like(result.loss)
        terms = {name: term.detach() for name, term in result.terms.items()}
        return Quantized(quantized, _unflatten(result.indices, tokens), loss, terms)

    @torch.no_grad()
    def encode(self, z: Float[Tensor, "*shape"]) -> Int[Tensor, "*tokens"]:
        """Return the index of each vector's code, without gradients, in the shape of `z` without channels."""
        vectors, tokens = self._to_vectors(z)
        with outside_autocast(z):
            return _unflatten(self.select(vectors), tokens)

    def decode(self, indices: Integer[Tensor, "*tokens"]) -> Float[Tensor, "*shape"]:
        """Return the code of each index, with the channels at `channel_dim`."""
        indices = require_indices(indices, self.codebook_size)
        with outside_autocast(indices):
            return self._from_vectors(self.lookup(indices.flatten()), indices.shape)

    def indices_to_codes(self, indices: Integer[Tensor, "*tokens"]) -> Float[Tensor, "*shape"]:
        """Call `decode`, by its name in vector-quantize-pytorch."""
        return self.decode(indices)

    def watch(self, z: Float[Tensor, "n c"]) -> None:
        """Warn, once, of training that will probably fail; called for each batch, except in compiled code."""
        self._training_forwards += 1
        # Few batches: the measurement waits for the device.
        early = self._training_forwards in _SCALE_CHECKS and self._scale_matters and len(z) > 0
        if self.good_scale is None or not early:
            return
        rms, (low, high) = float(z.square().mean().sqrt()), self.good_scale
        if not low <= rms <= high:
            self._scale_matters = False
            warnings.warn(
                f"the latents of {type(self).__name__} have a root mean square of {rms:.2g} per channel, "
                f"outside {low:g} to {high:g}, for which its initial codes are made: few may be used. "
                f"Put a GroupNorm or LayerNorm before the quantizer, or multiply the latents by "
                f"{1 / max(rms, 1e-6):.2g}{self.off_scale_advice}.",
                LGQWarning,
                stacklevel=2,
            )

    def _load_from_state_dict(self, *arguments: Any) -> None:
        super()._load_from_state_dict(*arguments)
        self._scale_matters = False  # loaded codes have found their latents

    def extra_repr(self) -> str:
        """Return the constructor's arguments, from the attributes of their names; torch adds modules."""
        shown = []
        for name in inspect.signature(type(self)).parameters:
            value = getattr(self, name, None)
            if isinstance(value, Tensor) and not value.is_meta:
                value = tuple(value.tolist())
            if hasattr(self, name) and not isinstance(value, nn.Module | Tensor):
                shown.append(f"{name}={value!r}")
        return ", ".join(shown)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Quantizer":
        before = {name: getattr(self, name) for name in self.float32_buffers}
        super()._apply(fn, recurse)
        for name, buffer in before.items():
            moved = getattr(self, name)
            if moved.dtype in (torch.float16, torch.bfloat16):
                setattr(self, name, at_least_float32(buffer).to(moved.device))
        return self

    def _to_vectors(self, z: Tensor) -> tuple[Tensor, torch.Size]:
        require_channels(z, self.dim, self.channel_dim)
        last = z.movedim(self.channel_dim % z.ndim, z.ndim - 1)  # ONNX knows no negative axes here
        vectors = at_least_float32(last.reshape(-1, self.dim))
        require_finite(vectors)
        return vectors, last.shape[:-1]

    def _from_vectors(self, vectors: Tensor, tokens: torch.Size) -> Tensor:
        last = vectors.reshape((*tokens, self.dim))
        return last.movedim(last.ndim - 1, self.channel_dim % last.ndim)


def draw_seed() -> int:
    """Draw a seed from torch's default generator, also where tensors have no values (`meta`)."""
    return int(torch.randint(2**31, (), device="cpu"))


def _unflatten(indices: Tensor, tokens: torch.Size) -> Tensor:
    return indices.reshape((*tokens, *indices.shape[1:]))


class Projection(nn.Module):
    """Linear layer of a fixed seed that computes in float32 or better, whatever its weights are.

    Rounding to bf16 would move vectors across the border between two codes.
    """

    def __init__(self, inputs: int, outputs: int, *, bias: bool = True, seed: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        self.bias = nn.Parameter(torch.empty(outputs)) if bias else None
        self.reset_parameters(seed)

    @torch.no_grad()
    def reset_parameters(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        bound = self.weight.shape[1] ** -0.5
        for parameter in self.parameters():
            initial = torch.empty(parameter.shape, device=generator.device)
            parameter.copy_(initial.uniform_(-bound, bound, generator=generator))

    def extra_repr(self) -> str:
        outputs, inputs = self.weight.shape
        return f"{inputs}, {outputs}, bias={self.bias is not None}"

    def forward(self, x: Float[Tensor, "n i"]) -> Float[Tensor, "n o"]:
        dtype = torch.promote_types(at_least_float32(x).dtype, self.weight.dtype)
        bias = None if self.bias is None else self.bias.to(dtype)
        return F.linear(x.to(dtype), self.weight.to(dtype), bias)
