"""Residual quantization (Zeghidour et al. 2021, Lee et al. 2022): each stage quantizes the rest of the last.

n = vectors, s = stages, c = channels.
"""

import copy
import math
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int, Integer
from torch import Tensor, nn

from lgq.checks import is_jit_traced, require_between, require_indices, require_tensor
from lgq.errors import LGQError
from lgq.ops.numerics import outside_autocast
from lgq.quantizers.base import Quantizer
from lgq.quantizers.quantized import Quantized

SKIPPED = -1


class Residual(Quantizer):
    """A sum of codes, one per stage; indices have a trailing axis of stages.

    stages: quantizers of equal `dim`. Untrained stages with equal seeds get different ones.
    channel_dim: axis of the channels in the input; None takes that of the stages.
    dropout: probability that a training batch uses only its first stages, at least one and not all, so that
        the decoder also works with fewer; the indices of the others are then -1. Every stage still sees its
        residual and updates its moving averages from it.

    The gradient is that of the sum of the stages' outputs: nothing is detached between stages.
    """

    label = "Residual"
    learned_codes = False  # each stage has a codebook of its own

    def __init__(self, stages: Sequence[Quantizer], *, channel_dim: int | None = None, dropout: float = 0.0):
        if isinstance(stages, nn.Module):
            raise LGQError("stages must be a list of quantizers, got one: write Residual([...]).")
        if not stages:
            raise LGQError("a residual quantizer needs at least one stage, got none.")
        if any(isinstance(stage, Residual) for stage in stages):
            raise LGQError("a stage cannot be a Residual itself: pass its stages instead.")
        dims = [stage.dim for stage in stages]
        if len(set(dims)) > 1:
            raise LGQError(f"the stages of a residual quantizer must share one dim, got {dims}.")
        if channel_dim is None:
            axes = sorted({stage.channel_dim for stage in stages})
            if len(axes) > 1:
                raise LGQError(f"the stages have their channels at axes {axes}: give `channel_dim`.")
            (channel_dim,) = axes
        require_between(0, 1, dropout=dropout)
        sizes = [stage.codebook_size for stage in stages]
        super().__init__(dims[0], math.prod(sizes), channel_dim=channel_dim, seed=stages[0].seed)
        self.stages = nn.ModuleList(stages)
        self.dropout = dropout
        _make_seeds_differ(stages)

    def anneal(self, progress: float) -> None:
        for stage in self._stages():
            stage.anneal(progress)

    def watch(self, z: Float[Tensor, "n c"]) -> None:
        for stage in self._stages():
            stage.watch(z)
            z = z[:0]  # the residuals of later stages are smaller by design

    def quantize_vectors(self, z: Float[Tensor, "n c"]) -> Quantized:
        kept = self._kept(z.device)
        total, loss = torch.zeros_like(z), z.new_zeros(())
        indices: list[Tensor] = []
        terms: dict[str, Tensor] = {}
        for i, stage in enumerate(self._stages()):
            result = stage.quantize_vectors(z)
            z = z - result.quantized
            total = total + kept[i] * result.quantized
            loss = loss + kept[i] * result.loss
            indices.append(torch.where(kept[i], result.indices, SKIPPED))
            terms |= {f"{name}/{i}": term for name, term in result.terms.items()}
        return Quantized(total, torch.stack(indices, 1), loss, terms)

    def select(self, z: Float[Tensor, "n c"]) -> Int[Tensor, "n s"]:
        indices = []
        for stage in self._stages():
            indices.append(stage.select(z))
            z = z - stage.lookup(indices[-1])
        return torch.stack(indices, 1)

    def decode(self, indices: Integer[Tensor, "*tokens s"]) -> Float[Tensor, "*shape"]:
        """Sum the codes of the stages; indices of only the first stages give a coarser result."""
        require_tensor("indices", indices)
        fits = indices.ndim > 0 and (is_jit_traced() or 1 <= indices.shape[-1] <= len(self.stages))
        if not fits:
            raise LGQError(
                f"expected a last axis of 1 to {len(self.stages)} stages, got shape {tuple(indices.shape)}."
            )
        parts = [
            require_indices(indices[..., i], stage.codebook_size, lowest=SKIPPED).flatten()
            for i, stage in enumerate(self._stages()[: indices.shape[-1]])
        ]
        with outside_autocast(indices):
            return self._from_vectors(self.lookup(torch.stack(parts, 1)), indices.shape[:-1])

    def lookup(self, indices: Int[Tensor, "n s"]) -> Float[Tensor, "n c"]:
        used = indices != SKIPPED
        codes = [
            used[:, i, None] * stage.lookup(indices[:, i].clamp_min(0))
            for i, stage in enumerate(self._stages()[: indices.shape[1]])
        ]
        return torch.stack(codes).sum(0)

    def reset_parameters(self, seed: int) -> None:
        self.seed = seed
        for i, stage in enumerate(self._stages()):
            stage.reset_parameters(seed + i)

    def _stages(self) -> list[Quantizer]:
        return list(self.stages)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        # An AttributeError: torch.jit.trace asks for every attribute that `dir` names.
        if name == "codebook":
            raise AttributeError("a residual quantizer has one codebook per stage: use stages[i].codebook.")
        return super().__getattr__(name)

    def _kept(self, device: torch.device) -> Tensor:
        stage = torch.arange(len(self.stages), device=device)
        if not self.training or not self.dropout or len(stage) == 1:
            return stage >= 0
        fewer = torch.randint(1, len(stage), (), device=device)
        return (stage < fewer) | (torch.rand((), device=device) >= self.dropout)


def _make_seeds_differ(stages: Sequence[Quantizer]) -> None:
    """Redraw untrained stages whose seed an earlier stage has, since they would have the same codes."""
    for i, stage in enumerate(stages):
        taken = {earlier.seed for earlier in stages[:i] if earlier is not stage}
        if stage.seed in taken and _is_untrained(stage):
            stage.reset_parameters(max(taken) + 1)


def _is_untrained(stage: Quantizer) -> bool:
    initial = copy.deepcopy(stage)
    initial.reset_parameters(stage.seed)
    state, initial_state = stage.state_dict(), initial.state_dict()
    if any(tensor.is_meta for tensor in state.values()):
        return True
    return all(torch.equal(state[name], initial_state[name]) for name in state)
