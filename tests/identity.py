"""Comparison of states to the last bit: types, order of keys, bits and strides."""

import struct
from typing import Any

import torch
from torch import Tensor


def assert_identical(actual: Any, expected: Any, where: str = "state") -> None:
    assert type(actual) is type(expected), where
    if isinstance(expected, Tensor):
        assert_same_tensor(actual, expected, where)
    elif isinstance(expected, dict):
        assert_identical(list(actual), list(expected), f"keys of {where}")
        for key, value in expected.items():
            assert_identical(actual[key], value, f"{where}[{key!r}]")
        assert getattr(actual, "_metadata", None) == getattr(expected, "_metadata", None)
    elif isinstance(expected, list | tuple):
        assert len(actual) == len(expected), where
        for i, pair in enumerate(zip(actual, expected, strict=True)):
            assert_identical(*pair, f"{where}[{i}]")
    elif isinstance(expected, float):
        assert struct.pack("d", actual) == struct.pack("d", expected), where
    else:
        assert actual == expected, where


def assert_same_tensor(actual: Tensor, expected: Tensor, where: str) -> None:
    assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape), where
    assert bits(actual) == bits(expected), where
    if is_dense(expected):
        assert actual.stride() == expected.stride(), where


def bits(tensor: Tensor) -> bytes:
    flat = tensor.detach().clone(memory_format=torch.contiguous_format).flatten()
    return flat.view(torch.uint8).numpy().tobytes()


def is_dense(tensor: Tensor) -> bool:
    by_stride = sorted(range(tensor.ndim), key=tensor.stride, reverse=True)
    return tensor.numel() > 0 and tensor.permute(by_stride).is_contiguous()
