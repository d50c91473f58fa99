"""Product quantization (Jégou et al. 2011): channels in groups, each with codes of its own.

n = vectors, g = groups, c = channels.
"""

import math
from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float, Int, Integer
from torch import Tensor, nn

from lgq.checks import is_jit_traced, require_at_least, require_whole
from lgq.errors import LGQError
from lgq.ops.numerics import mean
from lgq.quantizers.base import Quantizer
from lgq.quantizers.compositions.composition import (
    Composition,
    common_channel_dim,
    make_parts,
    make_seeds_differ,
    require_parts,
)
from lgq.quantizers.quantized import Quantized


class Grouped(Composition):
    """Each quantizer takes its share of the channels; indices have a trailing axis of groups.

    quantizers: one per group, in the order of the channels; together they have as many channels as the input.
        Untrained ones with equal seeds get different ones. The same quantizer several times is one codebook
        that all groups share, which learns from the vectors of all groups as one batch.
    channel_dim: axis of the channels in the input; None takes that of the quantizers.

    The loss is the mean over the groups, so that weights mean the same for any number of groups.
    """

    label = "Grouped"
    codebooks_at = "quantizers[i].codebook"

    def __init__(self, quantizers: Sequence[Quantizer], *, channel_dim: int | None = None):
        require_parts("Grouped", "quantizers", quantizers)
        sizes = [quantizer.codebook_size for quantizer in quantizers]
        channel_dim = common_channel_dim("quantizers", quantizers, channel_dim)
        self._dims = [quantizer.dim for quantizer in quantizers]
        super().__init__(sum(self._dims), math.prod(sizes), channel_dim=channel_dim, seed=quantizers[0].seed)
        self.quantizers = nn.ModuleList(quantizers)
        self.index_shape = (len(quantizers), *quantizers[0].index_shape)
        make_seeds_differ(quantizers)

    @classmethod
    def of(
        cls,
        make: Callable[[], Quantizer],
        groups: int,
        *,
        shared: bool = False,
        channel_dim: int | None = None,
    ) -> "Grouped":
        """Return `groups` times `make()`, whose `dim` is that of one group; `shared` makes one for all."""
        require_whole(groups=groups)
        require_at_least(1, groups=groups)
        made = make_parts(make, groups, shared=shared)
        return cls(made, channel_dim=channel_dim)

    @property
    def parts(self) -> list[Quantizer]:
        return list(self.quantizers)  # type: ignore[arg-type]

    @property
    def shared(self) -> bool:
        """Whether all groups use one quantizer."""
        return len(self.parts) > 1 and len(self._distinct_parts()) == 1

    def watch(self, z: Float[Tensor, "n c"]) -> None:
        if self.shared:
            self.parts[0].watch(self._as_one_batch(z))
        else:
            for part, channels in zip(self.parts, self._split(z), strict=True):
                before = part.scale_matters
                part.watch(channels)
                if before and not part.scale_matters:
                    self.scale_matters = False  # one group speaks for all

    def quantize_vectors(self, z: Float[Tensor, "n c"]) -> Quantized:
        if self.shared:
            result = self.parts[0].quantize(self._as_one_batch(z))
            codes, indices = self._from_one_batch(result.quantized), self._from_one_batch(result.indices)
            return Quantized(codes.flatten(1), indices, result.loss, result.terms)
        results = [part.quantize(channels) for part, channels in zip(self.parts, self._split(z), strict=True)]
        terms = {
            f"{name}/{i}": term for i, result in enumerate(results) for name, term in result.terms.items()
        }
        loss = mean(torch.stack([result.loss for result in results]))
        indices = torch.stack([result.indices for result in results], 1)
        return Quantized(torch.cat([result.quantized for result in results], 1), indices, loss, terms)

    def select(self, z: Float[Tensor, "n c"]) -> Int[Tensor, "n g ..."]:
        if self.shared:
            return self._from_one_batch(self.parts[0].assign(self._as_one_batch(z)))
        indices = [part.assign(channels) for part, channels in zip(self.parts, self._split(z), strict=True)]
        return torch.stack(indices, 1)

    def lookup(self, indices: Int[Tensor, "n g ..."]) -> Float[Tensor, "n c"]:
        return torch.cat([part.codes_of(indices[:, i]) for i, part in enumerate(self.parts)], 1)

    def checked_indices(self, indices: Integer[Tensor, "n g ..."]) -> Int[Tensor, "n g ..."]:
        given = indices.shape[1]
        if not (is_jit_traced() or given == len(self.quantizers)):
            raise LGQError(f"expected {len(self.quantizers)} indices per vector, one per group, got {given}.")
        checked = [part.checked_indices(indices[:, i]) for i, part in enumerate(self.parts)]
        return torch.stack(checked, 1)

    def _split(self, z: Float[Tensor, "n c"]) -> tuple[Tensor, ...]:
        return z.split(self._dims, 1)

    def _as_one_batch(self, z: Float[Tensor, "n c"]) -> Tensor:
        return z.reshape(-1, self._dims[0])

    def _from_one_batch(self, x: Float[Tensor, "m ..."] | Int[Tensor, "m ..."]) -> Tensor:
        return x.reshape(-1, len(self.quantizers), *x.shape[1:])
