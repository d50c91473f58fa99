"""The result of a quantizer: a tuple of three with names, and the terms of its loss beside them."""

from collections.abc import Iterable
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor
from torch.utils import _pytree as pytree


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
