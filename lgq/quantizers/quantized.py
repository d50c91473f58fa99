"""The result of a quantizer, a tuple of three with names, the terms of its loss beside them; its rules."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils import _pytree as pytree

from lgq.errors import LGQError, warn

if TYPE_CHECKING:
    from lgq.quantizers.base import Quantizer

_ROUNDING = 1e-3
"""Largest difference, relative to the largest code, that counts as none."""


class Quantized(tuple[Tensor, Tensor, Tensor]):
    """Result of a quantizer: the tuple (quantized, indices, loss), whose parts also have names.

    quantized: codes in the shape and dtype of the input, with the quantizer's gradient with respect to it.
    indices: index of each code, in the shape of the input without the channels.
    loss: weighted sum that a trainer adds to its own loss; 0 in eval mode.
    terms: detached, unweighted parts of the loss, for logs; empty in eval mode without gradients. In eval
        mode, `LFQ` and `BSQ` compute no entropies. Terms are no element of the tuple, but a part of the
        pytree, so that torch's transformations keep them.
    """

    # For code that rebuilds named tuples, such as DataParallel and the collation of a DataLoader. As a tuple
    # of names, it would make torch's pytree take this class for a NamedTuple and drop `terms`.
    _fields = ["quantized", "indices", "loss"]  # noqa: RUF012
    terms: dict[str, Tensor]

    def __new__(
        cls,
        quantized: Float[Tensor, "*shape"],
        indices: Int[Tensor, "*tokens"],
        loss: Float[Tensor, ""],
        terms: dict[str, Tensor] | None = None,
    ) -> "Quantized":
        self = tuple.__new__(cls, (quantized, indices, loss))
        self.terms = {} if terms is None else terms
        return self

    @classmethod
    def _make(cls, parts: Iterable[Any]) -> "Quantized":
        """Return a result without terms, of parts that need not be single tensors."""
        self = tuple.__new__(cls, parts)
        self.terms = {}
        return self

    @property
    def quantized(self) -> Tensor:
        return self[0]

    @property
    def indices(self) -> Tensor:
        return self[1]

    @property
    def loss(self) -> Tensor:
        return self[2]

    def _asdict(self) -> dict[str, Any]:
        return dict(zip(self._fields, self, strict=True))

    def __getnewargs__(self) -> tuple[Any, ...]:
        return (*self, self.terms)

    def __repr__(self) -> str:
        parts = self._asdict() | {"terms": self.terms}
        return f"Quantized({', '.join(f'{name}={part!r}' for name, part in parts.items())})"


@torch.no_grad()
def require_contract(quantizer: "Quantizer", z: Float[Tensor, "n c"], result: Quantized) -> None:
    """Refuse a result of `quantize_vectors` that breaks the contract of a quantizer.

    Warn where `select`, by which `encode` chooses, chooses otherwise, as a class may draw codes on purpose,
    and where `lookup`, by which `decode` goes, has other values.
    """
    name, (codes, indices, loss) = type(quantizer).__name__, result
    index_shape = (len(z), *quantizer.index_shape)
    rules = {
        f"codes of shape {tuple(z.shape)}, got {tuple(codes.shape)}": codes.shape == z.shape,
        f"indices of shape {index_shape} in int64, got {tuple(indices.shape)} in {indices.dtype}": (
            indices.shape == index_shape and indices.dtype == torch.int64
        ),
        f"a loss of shape (), got {tuple(loss.shape)}": loss.shape == (),
    }
    for rule, is_kept in rules.items():
        if not is_kept:
            raise LGQError(f"quantize_vectors of {name} must return {rule}.")
    quantizer.checked_indices(indices)
    differs = (quantizer.select(z) != indices).float().mean().item() if len(z) else 0.0
    if differs:
        warn(
            f"quantize_vectors of {name} chose other codes than its `select` for {differs:.0%} of the "
            "vectors: `encode` and evaluation choose by `select`, so put the choice there, and call it."
        )
    decoded = quantizer.lookup(indices)
    if len(z) and (codes - decoded).abs().max() > _ROUNDING * decoded.abs().max():
        warn(
            f"quantize_vectors of {name} returned other values than `lookup` of its indices: `decode` "
            "and evaluation take those of `lookup`, so tokens decode to something else than training saw."
        )


def _flatten(result: Quantized) -> tuple[list[Any], None]:
    return [*result, result.terms], None


def _flatten_with_keys(result: Quantized) -> tuple[list[tuple[Any, Any]], None]:
    names, (parts, _) = [*Quantized._fields, "terms"], _flatten(result)
    return [(pytree.GetAttrKey(name), part) for name, part in zip(names, parts, strict=True)], None


def _unflatten(parts: Iterable[Any], _: None) -> Quantized:
    # Any parts: a transformation may put sizes, names or None in the place of tensors.
    *three, terms = parts
    result = Quantized._make(three)
    result.terms = terms
    return result


pytree.register_pytree_node(
    Quantized,
    _flatten,
    _unflatten,
    serialized_type_name="lgq.Quantized",
    flatten_with_keys_fn=_flatten_with_keys,
)
