"""Tensors out of pickles and TorchScript files, without running what such a file can hold.

A pickle is a program: it names functions and calls them. The reader here knows a handful of names, each
harmless, and refuses every other one. A TorchScript file is a zip archive: its pickle describes the
modules, its other members are the tensors' bytes, and its code stays unread.
"""

import pickle
from collections.abc import Callable, Iterator, Mapping
from io import BytesIO
from typing import Any
from zipfile import ZipFile

import numpy as np
import torch
from torch import Tensor

from lgq.weights.errors import WeightsError

Names = Mapping[tuple[str, str], Any]

_LARGEST = 2**30  # bytes of an archive's members; the published one has a tenth of it


def numpy_pickle(data: bytes) -> dict[str, Tensor]:
    """A pickled tree of dicts of float32 arrays, flat: `{"a": {"b": x}}` becomes `{"a.b": x}`."""
    return _plain(lambda: _Reader(BytesIO(data), _NUMPY_NAMES).load())


def torchscript(data: bytes) -> dict[str, Tensor]:
    """The float32 parameters and buffers of a TorchScript module, by their state_dict names."""
    return _plain(lambda: _TorchScriptReader(ZipFile(BytesIO(data))).load())


class _Reader(pickle.Unpickler):
    def __init__(self, file: BytesIO, names: Names):
        super().__init__(file)
        self.names = names

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.names:
            raise WeightsError(
                f"the file asks for {module:.60}.{name:.60}, and weights need no such thing: refused."
            )
        return self.names[module, name]


class _TorchScriptReader(_Reader):
    def __init__(self, archive: ZipFile):
        if sum(member.file_size for member in archive.infolist()) > _LARGEST:
            raise WeightsError(
                f"the archive unpacks to over {_LARGEST:,} bytes, and weights do not: refused."
            )
        top = [name for name in archive.namelist() if name.count("/") == 1]
        (pickled,) = [name for name in top if name.endswith("/data.pkl")]
        super().__init__(BytesIO(archive.read(pickled)), _TORCH_NAMES)
        self.archive = archive
        self.root = pickled.removesuffix("data.pkl")

    def find_class(self, module: str, name: str) -> Any:
        # The module's own classes: only what their instances hold matters.
        return _Module if module.startswith("__torch__") else super().find_class(module, name)

    def persistent_load(self, reference: Any) -> Tensor:
        _, _, key, _, count = reference
        member = self.archive.getinfo(f"{self.root}data/{key}")
        if member.file_size != 4 * count:
            raise WeightsError(f"{member.filename} has {member.file_size} bytes instead of {4 * count}.")
        return torch.frombuffer(bytearray(self.archive.read(member)), dtype=torch.float32)


class _Module(dict[str, Any]):
    """What a pickled module holds."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.update(state)


def _tensor(storage: Tensor, offset: int, size: tuple[int, ...], stride: tuple[int, ...], *_: Any) -> Tensor:
    return storage.as_strided(size, stride, offset)


_NUMPY_NAMES: Names = {
    # numpy 2 moved `_reconstruct`; this asks the installed one for its own.
    ("numpy.core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
    ("numpy._core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
}
_TORCH_NAMES: Names = {
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
    ("torch", "FloatStorage"): torch.float32,
    ("torch.jit._pickle", "build_intlist"): tuple,
    ("collections", "OrderedDict"): dict,
}


def _plain(read: Callable[[], Any]) -> dict[str, Tensor]:
    try:
        return dict(_flat(read()))
    except WeightsError:
        raise
    except Exception as error:  # a damaged pickle or zip fails with nearly any exception
        raise WeightsError(f"the file is damaged, or no file of weights: {error!s:.300}") from error


def _flat(tree: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        elif isinstance(value, Tensor | np.ndarray):
            yield prefix + name, _float32(torch.as_tensor(value), prefix + name)


def _float32(tensor: Tensor, name: str) -> Tensor:
    if tensor.dtype != torch.float32:
        raise WeightsError(f"{name} holds {tensor.dtype}, and weights are expected in torch.float32.")
    return tensor.contiguous()
