"""Comparison of batches."""

from collections.abc import Sequence
from typing import Any

import torch


def assert_same(left: Sequence[Any], right: Sequence[Any], *, positions: bool = True) -> None:
    """Compare batches, which are named tuples, field by field and bit by bit."""
    assert len(left) == len(right)
    for a, b in zip(left, right, strict=True):
        for name in a._fields if positions else [name for name in a._fields if name != "position"]:
            x, y = getattr(a, name), getattr(b, name)
            assert torch.equal(x, y) if isinstance(x, torch.Tensor) else x == y, name
