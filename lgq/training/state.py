"""The state of a run as plain data: named tensors, and a JSON skeleton that puts them in their places.

In the skeleton None, bool, int, str, finite floats and lists stand for themselves. All else is an
object: {"tuple": [...]}, {"dict": [[key, value], ...]}, {"ordered": [[key, value], ...],
"metadata": ...} for a module's state_dict, {"float": bits} for NaN and infinity, {"tensor": name}.
"""

import math
import random
import struct
from collections import OrderedDict
from collections.abc import Callable
from types import NoneType
from typing import Any, NamedTuple, NoReturn

import numpy as np
import torch
from jaxtyping import Shaped
from torch import Tensor

STORABLE_DTYPES = frozenset(
    {torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.bool}
    | {torch.int64, torch.int32, torch.int16, torch.int8}
    | {torch.uint64, torch.uint32, torch.uint16, torch.uint8}
    | {torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz}
)
_DEEPEST = 100
_MOST_BITS = 10_000  # Python reads no longer numbers back from text
_RESERVED = "__metadata__"  # by safetensors
_HINTS = {
    np.ndarray: "convert it with torch.from_numpy",
    np.generic: "convert it with .item()",
    bytes: "convert it to a uint8 tensor",
    tuple: "convert it with tuple()",
    dict: "convert it with dict()",
}

Stored = Shaped[Tensor, "..."]


class Flat(NamedTuple):
    skeleton: Any
    tensors: dict[str, Stored]
    """On the CPU, contiguous, no two in the same memory: as safetensors wants them."""


def flatten(state: Any) -> Flat:
    """Take nested dicts, lists and tuples apart; anything that `unflatten` could not restore is refused.

    One tensor in two places stays one tensor, and dense memory formats such as channels_last stay.
    Tensors lose their device and their gradient, as a state_dict's do when it is loaded.
    """
    flattener = _Flattener()
    return Flat(flattener.node(state, ()), flattener.tensors)


def unflatten(skeleton: Any, tensors: dict[str, Stored]) -> Any:
    """What `flatten` took apart, bit for bit."""
    unflattener = _Unflattener(tensors)
    state = unflattener.value(skeleton)
    if unused := tensors.keys() - unflattener.rebuilt.keys():
        raise ValueError(f"the skeleton has no place for tensor {min(unused)!r}: it is of another state.")
    return state


def seed_random_state(seed: int) -> None:
    """Begin the generators of Python, NumPy and torch (all devices) at a seed of any size."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def capture_random_state() -> dict[str, Any]:
    """Where the generators of Python, NumPy and torch (CPU, every CUDA device) stand."""
    numpy = np.random.get_state(legacy=False)
    assert isinstance(numpy, dict)
    return {
        "python": random.getstate(),
        "numpy": numpy | {"state": numpy["state"] | {"key": torch.from_numpy(numpy["state"]["key"].copy())}},
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def restore_random_state(state: dict[str, Any]) -> None:
    """Continue as if nothing had been drawn since `capture_random_state`."""
    devices = torch.cuda.device_count()
    if len(state["cuda"]) not in (0, devices):
        captured = f"this random state is of {len(state['cuda'])} CUDA devices"
        raise ValueError(f"{captured}, here are {devices}: set its 'cuda' to [] to start those anew.")
    numpy = state["numpy"]
    random.setstate(state["python"])
    np.random.set_state(numpy | {"state": numpy["state"] | {"key": numpy["state"]["key"].numpy()}})
    torch.set_rng_state(state["torch"])
    if state["cuda"]:
        torch.cuda.set_rng_state_all(state["cuda"])


class _Flattener:
    def __init__(self) -> None:
        self.tensors: dict[str, Stored] = {}
        self._nodes: dict[tuple[Any, ...], dict[str, Any]] = {}
        self._memory: set[int] = set()
        # By exact type: a subclass would come back as something else.
        self._of_type: dict[type, Callable[[Any, tuple[Any, ...]], Any]] = {
            **dict.fromkeys((NoneType, bool, str), lambda value, where: value),
            **dict.fromkeys((Tensor, torch.nn.Parameter), self._tensor),
            int: self._int,
            float: lambda value, where: value if math.isfinite(value) else {"float": _bits(value)},
            list: lambda value, where: self._items(value, where),
            tuple: lambda value, where: {"tuple": self._items(value, where)},
            dict: lambda value, where: {"dict": self._pairs(value, where)},
            OrderedDict: self._ordered,
        }

    def node(self, value: Any, where: tuple[Any, ...]) -> Any:
        if len(where) > _DEEPEST:
            _refuse(where[:5], f"is nested over {_DEEPEST} deep, or holds itself")
        if type(value) not in self._of_type:
            hint = next((hint for kind, hint in _HINTS.items() if isinstance(value, kind)), "leave it out")
            _refuse(where, f"is a {type(value).__module__}.{type(value).__qualname__}: {hint}")
        return self._of_type[type(value)](value, where)

    def _int(self, value: int, where: tuple[Any, ...]) -> int:
        if value.bit_length() > _MOST_BITS:
            _refuse(where, f"is a number of {value.bit_length():,} bits, over {_MOST_BITS:,}")
        return value

    def _items(self, values: list[Any] | tuple[Any, ...], where: tuple[Any, ...]) -> list[Any]:
        return [self.node(value, (*where, i)) for i, value in enumerate(values)]

    def _pairs(self, mapping: dict[Any, Any], where: tuple[Any, ...]) -> list[list[Any]]:
        for key in mapping:
            if type(key) not in (NoneType, bool, int, float, str):
                _refuse(where, f"has the key {key!r}: keys must be strings, numbers or None")
        return [[self.node(key, where), self.node(value, (*where, key))] for key, value in mapping.items()]

    def _ordered(self, mapping: OrderedDict[Any, Any], where: tuple[Any, ...]) -> dict[str, Any]:
        # Modules look up there which version of their class wrote a state_dict.
        metadata = self.node(getattr(mapping, "_metadata", None), (*where, "_metadata"))
        return {"ordered": self._pairs(mapping, where), "metadata": metadata}

    def _tensor(self, tensor: Stored, where: tuple[Any, ...]) -> dict[str, Any]:
        _require_storable(tensor, where)
        place = (tensor.device, tensor.data_ptr(), tensor.is_conj(), tensor.is_neg())
        view = (*place, tensor.dtype, tensor.shape, tensor.stride())
        if tensor.numel() == 0 or view not in self._nodes:
            self._nodes[view] = self._new_tensor(tensor.detach(), where)
        return self._nodes[view]

    def _new_tensor(self, tensor: Stored, where: tuple[Any, ...]) -> dict[str, Any]:
        tensor = tensor.resolve_conj().resolve_neg().cpu()
        stored = _in_order_of_memory(tensor)
        name = self._unused_name(where)
        self.tensors[name] = self._alone_in_memory(stored)
        return {"tensor": name, **_layout(tensor, stored)}

    def _unused_name(self, where: tuple[Any, ...]) -> str:
        # For people only: keys may hold a slash, and it is the skeleton that knows the places.
        name = "/".join(map(str, where)).encode("utf-8", "backslashreplace").decode()
        while name in self.tensors or name == _RESERVED:
            name += "'"
        return name

    def _alone_in_memory(self, stored: Stored) -> Stored:
        if stored.untyped_storage().data_ptr() in self._memory:
            stored = stored.clone(memory_format=torch.contiguous_format)
        self._memory.add(stored.untyped_storage().data_ptr())
        return stored


class _Unflattener:
    def __init__(self, tensors: dict[str, Stored]):
        self.tensors = tensors
        self.rebuilt: dict[str, Stored] = {}

    def value(self, node: Any) -> Any:
        match node:
            case None | bool() | int() | float() | str():
                return node
            case list():
                return [self.value(item) for item in node]
            case {"tuple": items}:
                return tuple(self.value(item) for item in items)
            case {"dict": pairs}:
                return {self.value(key): self.value(value) for key, value in pairs}
            case {"ordered": pairs, "metadata": metadata}:
                return self._ordered(pairs, metadata)
            case {"float": bits}:
                return struct.unpack(">d", bytes.fromhex(bits))[0]
            case {"tensor": name}:
                return self._tensor(name, node)
        raise ValueError(f"the skeleton holds {node!r:.80}, which this version of lgq does not know.")

    def _ordered(self, pairs: list[Any], metadata: Any) -> OrderedDict[Any, Any]:
        mapping = OrderedDict((self.value(key), self.value(value)) for key, value in pairs)
        if metadata is not None:
            mapping._metadata = self.value(metadata)  # type: ignore[attr-defined]
        return mapping

    def _tensor(self, name: str, node: dict[str, Any]) -> Stored:
        if name not in self.tensors:
            raise ValueError(f"the skeleton wants tensor {name!r}, which is not there.")
        if name not in self.rebuilt:
            # The bytes of a file lie anywhere; torch's own memory is aligned, and stays when they go.
            tensor = self.tensors[name].clone()
            shaped = "shape" in node
            self.rebuilt[name] = tensor.as_strided(node["shape"], node["stride"]) if shaped else tensor
        return self.rebuilt[name]


def _bits(value: float) -> str:
    return struct.pack(">d", value).hex()


def _in_order_of_memory(tensor: Stored) -> Stored:
    """The same elements, contiguous: by reordering the dimensions if they are dense, else by copying."""
    by_stride = sorted(range(tensor.ndim), key=tensor.stride, reverse=True)
    reordered = tensor.permute(by_stride)
    return reordered if reordered.is_contiguous() and not tensor.is_contiguous() else tensor.contiguous()


def _layout(tensor: Stored, stored: Stored) -> dict[str, list[int]]:
    """How to see `stored` as `tensor`, where that is not obvious and the memory is the same."""
    usual = torch.empty(tensor.shape, device="meta").stride()
    if tensor.stride() == usual or tensor.data_ptr() != stored.data_ptr():
        return {}
    return {"shape": list(tensor.shape), "stride": list(tensor.stride())}


def _require_storable(tensor: Stored, where: tuple[Any, ...]) -> None:
    if tensor.layout != torch.strided or tensor.is_meta:
        kind = "meta, without values" if tensor.is_meta else f"{tensor.layout}: convert it with .to_dense()"
        _refuse(where, f"is a tensor of a kind that cannot be stored ({kind})")
    if tensor.dtype not in STORABLE_DTYPES:
        _refuse(where, f"is a tensor of {tensor.dtype}, which safetensors cannot hold: convert it")


def _refuse(where: tuple[Any, ...], why: str) -> NoReturn:
    place = "state" + "".join(f"[{key!r}]" for key in where)
    rule = "a checkpoint holds tensors, numbers, strings, None, lists, tuples and dicts"
    raise ValueError(f"cannot store {place}, which {why} ({rule}).")
