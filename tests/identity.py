"""When are two states the same? Types, order of keys, bits, strides and shared memory included."""

import struct
from typing import Any

import torch
from torch import Tensor


def assert_identical(found: Any, expected: Any, where: str = "state") -> None:
    assert type(found) is type(expected), where
    if isinstance(expected, Tensor):
        assert_same_tensor(found, expected, where)
    elif isinstance(expected, dict):
        assert_identical(list(found), list(expected), f"keys of {where}")
        for key, value in expected.items():
            assert_identical(found[key], value, f"{where}[{key!r}]")
        assert getattr(found, "_metadata", None) == getattr(expected, "_metadata", None)
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected), where
        for i, pair in enumerate(zip(found, expected, strict=True)):
            assert_identical(*pair, f"{where}[{i}]")
    elif isinstance(expected, float):
        assert struct.pack("d", found) == struct.pack("d", expected), where
    else:
        assert found == expected, where


def assert_same_tensor(found: Tensor, expected: Tensor, where: str) -> None:
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape), where
    assert bits(found) == bits(expected), where
    if is_dense(expected):
        assert found.stride() == expected.stride(), where


def bits(tensor: Tensor) -> bytes:
    return (
        tensor.detach()
        .clone(memory_format=torch.contiguous_format)
        .flatten()
        .view(torch.uint8)
        .numpy()
        .tobytes()
    )


def is_dense(tensor: Tensor) -> bool:
    by_stride = sorted(range(tensor.ndim), key=tensor.stride, reverse=True)
    return tensor.numel() > 0 and tensor.permute(by_stride).is_contiguous()
