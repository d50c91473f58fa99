"""A device without float64, as MPS is, on any machine: tensors on the CPU that only this mode can touch.

    with Float32Device() as device:
        tokenizer.to(device).encode(images.to(device))

On it, a float64 tensor is an error, and so is an operation that mixes its tensors with those of the CPU. Its
name is `lazy`, a device of torch that no machine has, and on which autograd works without a driver.
"""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch._library.custom_ops import OPDEFS
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter, tree_map

DEVICE = torch.device("lazy")
_BETWEEN_DEVICES = (
    "aten::_to_copy",
    "aten::copy_",
    "aten::index",
    "aten::index_put_",
    "aten::_index_put_impl_",
)


class Remote(Tensor):
    """A tensor on the device; `held` are its values."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> "Remote":
        if held.dtype == torch.float64:
            raise TypeError("this device has no float64")
        remote: Remote = Tensor._make_wrapper_subclass(
            cls, held.shape, held.stride(), held.storage_offset(), dtype=held.dtype, device=DEVICE
        )
        remote.held = held
        return remote

    def tolist(self) -> Any:
        return self.held.tolist()

    def data_ptr(self) -> int:
        return self.held.data_ptr()

    @classmethod
    def __torch_dispatch__(cls, operator: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(operator, args, kwargs or {})


class Float32Device:
    """Context in which the device exists."""

    def __enter__(self) -> torch.device:
        self._stack = ExitStack()
        self._stack.enter_context(patch.object(torch, "Generator", _Generator))
        self._stack.enter_context(_Constructors())
        self._stack.enter_context(_Operators())
        return DEVICE

    def __exit__(self, *error: Any) -> None:
        self._stack.close()


class _Operators(TorchDispatchMode):
    def __torch_dispatch__(self, operator: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(operator, args, kwargs or {})


class _Constructors(TorchFunctionMode):
    """Lets `torch.tensor` copy from the CPU: it asks the device for memory without an operator."""

    def __torch_function__(self, function: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        device = kwargs.get("device")
        if function in (torch.tensor, torch.as_tensor) and device is not None:
            return function(*args, **(kwargs | {"device": "cpu"})).to(device)
        return function(*args, **kwargs)


class _Generator(torch.Generator):
    """The device draws with the generator of the CPU."""

    def __new__(cls, _device: Any = "cpu") -> "_Generator":
        return super().__new__(cls, "cpu")


def _run(operator: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    name, given = operator._schema.name, [x for x in tree_iter((args, kwargs)) if isinstance(x, Tensor)]
    remote = [x for x in given if isinstance(x, Remote)]
    if name in OPDEFS and remote:
        with _Operators():  # an operator that is written in Python calls others
            return OPDEFS[name]._init_fn(*args, **kwargs)
    if name not in _BETWEEN_DEVICES and remote and any(x.ndim for x in given if not isinstance(x, Remote)):
        raise RuntimeError(f"{name} got tensors on {DEVICE} and on the CPU")
    target = kwargs.get("device")
    stays = (remote and (name != "aten::copy_" or isinstance(args[0], Remote))) if target is None else None
    on_device = bool(stays) if target is None else torch.device(target).type == DEVICE.type
    owners = {id(x.held): x for x in remote}
    held: Callable[[Any], Any] = lambda x: x.held if isinstance(x, Remote) else x  # noqa: E731
    if target is not None:
        kwargs = kwargs | {"device": torch.device("cpu")}
    results = operator(*tree_map(held, args), **tree_map(held, kwargs))
    if not on_device:
        return results

    def wrapped(x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x
        return owners[id(x)] if id(x) in owners else Remote(x)

    return tree_map(wrapped, results)
