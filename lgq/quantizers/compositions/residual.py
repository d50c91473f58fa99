"""Residual quantization (Zeghidour et al. 2021, Lee et al. 2022): each stage quantizes the rest of the last.

n = vectors, s = stages, c = channels, d = channels of codes.
"""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from jaxtyping import Float, Int, Integer
from torch import Tensor, nn

from lgq.checks import is_jit_traced, require_at_least, require_between, require_whole
from lgq.errors import LGQError
from lgq.ops.numerics import outside_autocast
from lgq.quantizers.base import NO_CODE, Quantizer
from lgq.quantizers.compositions.composition import (
    Composition,
    common_channel_dim,
    make_parts,
    make_seeds_differ,
    require_parts,
)
from lgq.quantizers.quantized import Quantized


class Residual(Composition):
    """A sum of codes, one per stage; indices have a trailing axis of stages.

    stages: quantizers of equal `dim`. Untrained stages with equal seeds get different ones. The same
        quantizer several times is one codebook that the stages share.
    dim: number of channels of the latents, for which one linear map leads to the stages and one back; None
        for those of the stages, without a map.
    channel_dim: axis of the channels in the input; None takes that of the stages.
    dropout: probability that a training batch uses only its first stages, at least one and not all, so that
        the decoder also works with fewer; the indices of the others are then -1. Every stage still sees its
        residual and updates its moving averages from it.

    The gradient is that of the sum of the stages' outputs: nothing is detached between stages.
    """

    label = "Residual"
    codebooks_at = "stages[i].codebook"

    def __init__(
        self,
        stages: Sequence[Quantizer],
        *,
        dim: int | None = None,
        channel_dim: int | None = None,
        dropout: float = 0.0,
    ):
        require_parts("Residual", "stages", stages)
        if any(isinstance(stage, Residual) for stage in stages):
            raise LGQError("a stage cannot be a Residual itself: pass its stages instead.")
        dims = [stage.dim for stage in stages]
        if len(set(dims)) > 1:
            raise LGQError(f"the stages of a residual quantizer must share one dim, got {dims}.")
        require_between(0, 1, dropout=dropout)
        sizes = [stage.codebook_size for stage in stages]
        channel_dim = common_channel_dim("stages", stages, channel_dim)
        super().__init__(
            dims[0] if dim is None else dim,
            math.prod(sizes),
            channel_dim=channel_dim,
            codebook_dim=None if dim is None else dims[0],
            seed=stages[0].seed,
        )
        self.stages = nn.ModuleList(stages)
        self.index_shape = (len(stages), *stages[0].index_shape)
        self.dropout = dropout
        make_seeds_differ(stages)

    @staticmethod
    def of(
        make: Callable[[], Quantizer],
        stages: int,
        *,
        shared: bool = False,
        dim: int | None = None,
        channel_dim: int | None = None,
        dropout: float = 0.0,
    ) -> "Residual":
        """Return a residual quantizer of `stages` times `make()`; `shared` makes one that all stages use."""
        require_whole(stages=stages)
        require_at_least(1, stages=stages)
        made = make_parts(make, stages, shared=shared)
        return Residual(made, dim=dim, channel_dim=channel_dim, dropout=dropout)

    @property
    def parts(self) -> list[Quantizer]:
        return list(self.stages)  # type: ignore[arg-type]

    def watch(self, z: Float[Tensor, "n c"]) -> None:
        if self.codebook_dim is not None and any(stage.good_scale for stage in self.parts):
            z = self.project_in(z).detach()
        for stage in self._distinct_parts():
            stage.watch(z)
            z = z[:0]  # the residuals of later stages are smaller by design

    def quantize_vectors(self, z: Float[Tensor, "n c"]) -> Quantized:
        kept = self._kept(z.device)
        total, loss = torch.zeros_like(z), z.new_zeros(())
        indices: list[Tensor] = []
        terms: dict[str, Tensor] = {}
        for i, stage in enumerate(self.parts):
            result = stage.quantize(z)
            z = z - result.quantized
            total = total + kept[i] * result.quantized
            loss = loss + kept[i] * result.loss
            indices.append(torch.where(kept[i], result.indices, NO_CODE))
            terms |= {f"{name}/{i}": term for name, term in result.terms.items()}
        return Quantized(total, torch.stack(indices, 1), loss, terms)

    def select(self, z: Float[Tensor, "n c"]) -> Int[Tensor, "n s ..."]:
        indices = []
        for stage in self.parts:
            indices.append(stage.assign(z))
            z = z - stage.codes_of(indices[-1])
        return torch.stack(indices, 1)

    def decode(self, indices: Integer[Tensor, "*indices"]) -> Float[Tensor, "*shape"]:
        """Sum the codes of the stages; indices of only the first stages give a coarser result."""
        return super().decode(indices)

    def stage_codes(self, indices: Integer[Tensor, "*indices"]) -> Float[Tensor, "s *shape"]:
        """Return the codes of each stage, stacked in front; `decode` returns their sum.

        `stage_codes(indices).cumsum(0)` holds the results of the first stage, the first two, and so on.
        """
        tokens = indices.shape[: indices.ndim - len(self.index_shape)]
        checked = self.checked_indices(indices.reshape(-1, *indices.shape[len(tokens) :]))
        with outside_autocast(indices):
            codes = self._codes(checked)
            if self.codebook_dim is not None:
                sums = torch.stack(codes).cumsum(0)
                results = [self._project_out(total, checked) for total in sums]
                codes = [results[0], *(after - before for before, after in pairwise(results))]
            return torch.stack([self._from_vectors(code, tokens) for code in codes])

    def checked_indices(self, indices: Integer[Tensor, "n s ..."]) -> Int[Tensor, "n s ..."]:
        given = indices.shape[1]
        if not (is_jit_traced() or 1 <= given <= len(self.stages)):
            raise LGQError(
                f"expected a last axis of 1 to {len(self.stages)} stages, got {given} indices per vector."
            )
        checked = [
            stage.checked_indices(indices[:, i]) for i, stage in enumerate(self.parts[: indices.shape[1]])
        ]
        return torch.stack(checked, 1)

    def lookup(self, indices: Int[Tensor, "n s ..."]) -> Float[Tensor, "n c"]:
        return torch.stack(self._codes(indices)).sum(0)

    def codes_of(self, indices: Int[Tensor, "n s ..."]) -> Float[Tensor, "n c"]:
        codes = self.lookup(indices)
        return codes if self.codebook_dim is None else self._project_out(codes, indices)

    def _project_out(
        self, codes: Float[Tensor, "n d"], indices: Int[Tensor, "n s ..."]
    ) -> Float[Tensor, "n c"]:
        """Map codes to the channels of the latents; vectors without any index, which are masked, to zero."""
        masked = (indices < 0).flatten(1).all(1)
        return self.project_out(codes).masked_fill(masked[:, None], 0)

    def _codes(self, indices: Int[Tensor, "n s ..."]) -> list[Float[Tensor, "n c"]]:
        return [stage.codes_of(indices[:, i]) for i, stage in enumerate(self.parts[: indices.shape[1]])]

    def _kept(self, device: torch.device) -> Tensor:
        stage = torch.arange(len(self.stages), device=device)
        if not self.training or not self.dropout or len(stage) == 1:
            return stage >= 0
        fewer = torch.randint(1, len(stage), (), device=device)
        return (stage < fewer) | (torch.rand((), device=device) >= self.dropout)
