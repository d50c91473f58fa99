"""What all compositions share: parts with codes of their own, which start, anneal and update together.

n = vectors, c = channels.
"""

import copy
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from lgq.checks import MOST_CODES
from lgq.errors import LGQError
from lgq.quantizers.base import NO_CODE, Quantizer


class Composition(Quantizer):
    """A quantizer whose vectors have several indices, one for each of its parts."""

    learned_codes = False  # each part has a codebook of its own
    codebooks_at: ClassVar[str]
    """Where the codebooks are, such as `stages[i].codebook`."""
    takes_vectors: ClassVar[bool] = True
    """Whether it quantizes single vectors, as the parts of a composition must; False for grids."""

    @property
    @abstractmethod
    def parts(self) -> list[Quantizer]:
        """Quantizers in the order of their indices; a shared one comes several times."""

    @property
    def scale_matters(self) -> bool:
        """Whether all parts still watch the scale of their latents."""
        return all(part.scale_matters for part in self._distinct_parts())

    @scale_matters.setter
    def scale_matters(self, matters: bool) -> None:
        for part in self._distinct_parts():
            part.scale_matters = matters

    def anneal(self, progress: float) -> None:
        for part in self._distinct_parts():
            part.anneal(progress)

    def begin_batch(self) -> None:
        for part in self._distinct_parts():
            part.begin_batch()

    def watch_evaluation(self) -> None:
        for part in self._distinct_parts():
            part.watch_evaluation()

    def codes_of(self, indices: Int[Tensor, "n ..."]) -> Float[Tensor, "n c"]:
        return self.lookup(indices)

    def reset_parameters(self, seed: int) -> None:
        self.seed = seed
        self._reset_projections(seed)
        for i, part in enumerate(self._distinct_parts()):
            part.reset_parameters(seed + i)

    def joint_indices(self, indices: Int[Tensor, "*indices"]) -> Int[Tensor, "*tokens"]:
        """Return one index below `codebook_size` for all indices of a vector; -1 where one of them is -1.

        The index of the first part varies fastest. It is for statistics of the combinations, such as
        `CodeUsage.empty(q.codebook_size).update(q.joint_indices(indices))`. `CodeUsage.of(q)` counts
        the codes of each part.
        """
        if self.codebook_size > MOST_CODES:
            raise LGQError(
                f"{self.codebook_size:.1e} combinations of codes have no int64 index: count each part alone."
            )
        axis, stride = indices.ndim - len(self.index_shape), 1
        joint = torch.zeros(indices.shape[:axis], dtype=torch.int64, device=indices.device)
        exists = joint == 0
        for part, index in zip(self.parts, indices.unbind(axis), strict=True):
            if isinstance(part, Composition):
                index = part.joint_indices(index)
            joint, exists = joint + index * stride, exists & (index >= 0)
            stride *= part.codebook_size
        return joint.where(exists, NO_CODE)

    def _distinct_parts(self) -> list[Quantizer]:
        return list(dict.fromkeys(self.parts))

    def __getattr__(self, name: str) -> Any:
        # An AttributeError: torch.jit.trace asks for every attribute that `dir` names.
        if name == "codebook":
            word = self.codebooks_at.partition("[")[0].removesuffix("s")
            kind = self.label.lower()
            raise AttributeError(f"a {kind} quantizer has one codebook per {word}: use {self.codebooks_at}.")
        return super().__getattr__(name)


def require_parts(kind: str, argument: str, parts: Sequence[Quantizer]) -> None:
    """Refuse what is no list of quantizers whose vectors have indices of one shape."""
    if isinstance(parts, nn.Module):
        raise LGQError(f"{argument} must be a list of quantizers, got one: write {kind}([...]).")
    if not parts:
        word = argument.removesuffix("s")
        raise LGQError(f"a {kind.lower()} quantizer needs at least one {word}, got none.")
    for part in parts:
        if not isinstance(part, Quantizer):
            raise LGQError(f"{argument} must be quantizers of lgq, got {type(part).__name__}.")
        if isinstance(part, Composition) and not part.takes_vectors:
            raise LGQError(
                f"{argument} must quantize single vectors, and {part.label} quantizes grids: "
                f"take a plain quantizer or a {kind} of them."
            )
    shapes = {part.index_shape for part in parts}
    if len(shapes) > 1:
        raise LGQError(f"the {argument} must have equal numbers of indices per vector, got {sorted(shapes)}.")


def make_parts(make: Callable[[], Quantizer], number: int, *, shared: bool) -> list[Quantizer]:
    """Return `number` times `make()`, or one for all."""
    if isinstance(make, nn.Module) or not callable(make):
        made = (
            f"{type(make).__name__}({make.dim}, {make.codebook_size})" if isinstance(make, Quantizer) else ""
        )
        raise LGQError(
            f"`make` must be a function that makes a quantizer, got {made or type(make).__name__}: "
            f"pass lambda: {made or 'VQ(8, 64)'}."
        )
    return [make()] * number if shared else [make() for _ in range(number)]


def common_channel_dim(argument: str, parts: Sequence[Quantizer], channel_dim: int | None) -> int:
    """Return the given axis of the channels, or else that of all parts."""
    if channel_dim is not None:
        return channel_dim
    axes = sorted({part.channel_dim for part in parts})
    if len(axes) > 1:
        raise LGQError(f"the {argument} have their channels at axes {axes}: give `channel_dim`.")
    return axes[0]


def make_seeds_differ(parts: Sequence[Quantizer]) -> None:
    """Redraw untrained parts whose seed an earlier part has, since they would have the same codes."""
    for i, part in enumerate(parts):
        taken = {earlier.seed for earlier in parts[:i] if earlier is not part}
        if part not in parts[:i] and part.seed in taken and _is_untrained(part):
            part.reset_parameters(max(taken) + 1)


def _is_untrained(part: Quantizer) -> bool:
    initial = copy.deepcopy(part)
    initial.reset_parameters(part.seed)
    state, initial_state = part.state_dict(), initial.state_dict()
    if any(tensor.is_meta for tensor in state.values()):
        return True
    return all(torch.equal(state[name], initial_state[name]) for name in state)
