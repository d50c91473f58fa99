"""Published files of weights to the tensors of our modules, without running code in the files.

A pickle is a program: it names functions and calls them. The reader here allows a few harmless names and
refuses all others. A TorchScript file is a zip archive: its pickle describes the modules, other members are
the bytes of tensors, and its code is not read.
"""

import pickle
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import BytesIO
from typing import Any
from zipfile import ZipFile

import numpy as np
import torch
from torch import Tensor

from lgq.errors import LGQError


class WeightsError(LGQError):
    """Weights that are absent, damaged, unknown or out of reach."""


_MAX_BYTES = 2**30  # of the members of an archive; the published one has a tenth of it


@contextmanager
def _damage_reported() -> Iterator[None]:
    """Raise `WeightsError` for any error: damaged pickles, archives and tensors fail in every way."""
    try:
        with warnings.catch_warnings():  # torch warns about old pickles
            warnings.simplefilter("ignore")
            yield
    except WeightsError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split())
        raise WeightsError(f"the file is damaged, or holds other weights: {reason:.300}") from error


@_damage_reported()
def numpy_pickle(data: bytes) -> dict[str, Tensor]:
    """Read a pickled tree of dicts of float32 arrays: `{"a": {"b": x}}` becomes `{"a.b": x}`."""
    return dict(_flat(_Reader(BytesIO(data), _NUMPY_NAMES).load()))


@_damage_reported()
def torchscript(data: bytes) -> dict[str, Tensor]:
    """Read the float32 parameters and buffers of a TorchScript module, by their state_dict names."""
    return dict(_flat(_TorchScriptReader(ZipFile(BytesIO(data))).load()))


class _Reader(pickle.Unpickler):
    def __init__(self, file: BytesIO, names: Mapping[tuple[str, str], Any]):
        super().__init__(file)
        self.names = names

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.names:
            raise WeightsError(f"the file calls {module:.60}.{name:.60}, which weights do not need: refused.")
        return self.names[module, name]


class _TorchScriptReader(_Reader):
    def __init__(self, archive: ZipFile):
        if sum(member.file_size for member in archive.infolist()) > _MAX_BYTES:
            raise WeightsError(
                f"the archive unpacks to over {_MAX_BYTES:,} bytes, more than any weights: refused."
            )
        top = [name for name in archive.namelist() if name.count("/") == 1]
        (pickled,) = [name for name in top if name.endswith("/data.pkl")]
        super().__init__(BytesIO(archive.read(pickled)), _TORCH_NAMES)
        self.archive = archive
        self.root = pickled.removesuffix("data.pkl")

    def find_class(self, module: str, name: str) -> Any:
        # Classes of the module itself: only the attributes of their instances matter.
        return _Module if module.startswith("__torch__") else super().find_class(module, name)

    def persistent_load(self, reference: Any) -> Tensor:
        _, _, key, _, count = reference
        member = self.archive.getinfo(f"{self.root}data/{key}")
        if member.file_size != 4 * count:
            raise WeightsError(f"{member.filename} has {member.file_size} bytes instead of {4 * count}.")
        return torch.frombuffer(bytearray(self.archive.read(member)), dtype=torch.float32)


class _Module(dict[str, Any]):
    """Attributes of a pickled module."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.update(state)


def _tensor(storage: Tensor, offset: int, size: tuple[int, ...], stride: tuple[int, ...], *_: Any) -> Tensor:
    return storage.as_strided(size, stride, offset)


_NUMPY_NAMES = {
    # numpy 2 moved `_reconstruct`; this is the one of the installed version.
    ("numpy.core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
    ("numpy._core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
}
_TORCH_NAMES = {
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
    ("torch", "FloatStorage"): torch.float32,
    ("torch.jit._pickle", "build_intlist"): tuple,
    ("collections", "OrderedDict"): dict,
}


def _flat(tree: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        elif isinstance(value, Tensor | np.ndarray):
            tensor = torch.as_tensor(value)
            if tensor.dtype != torch.float32:
                raise WeightsError(f"{prefix}{name} has dtype {tensor.dtype} instead of torch.float32.")
            yield prefix + name, tensor.contiguous()


_STEM = {"1a_3x3": "conv", "2a_3x3": "conv_1", "2b_3x3": "conv_2", "3b_1x1": "conv_3", "4a_3x3": "conv_4"}
_MIXED = ("5b", "5c", "5d", "6a", "6b", "6c", "6d", "6e", "7a", "7b", "7c")
_NORM = {"conv.weight": "weight", "bn.bias": "beta", "bn.running_mean": "mean", "bn.running_var": "var"}
_TOWERS = {
    # Tower of each branch, by block: 5 to 7 is the resolution, a marks the blocks that reduce it.
    "5": {"branch5x5": "tower", "branch3x3dbl": "tower_1", "branch_pool": "tower_2"},
    "6a": {"branch3x3dbl": "tower"},
    "6": {"branch7x7": "tower", "branch7x7dbl": "tower_1", "branch_pool": "tower_2"},
    "7a": {"branch3x3": "tower", "branch7x7x3": "tower_1"},
    "7": {"branch3x3": "tower", "branch3x3dbl": "tower_1", "branch_pool": "tower_2"},
}


@_damage_reported()
def lpips(data: bytes, *, network: str) -> dict[str, Tensor]:
    """Convert convolutions of VGG16 or AlexNet and heads of LPIPS 0.1, as the JAX port pickles them."""
    tensors = {}
    for name, tensor in numpy_pickle(data).items():
        if match := re.fullmatch(rf"{network}_0\.Conv_(\d+)\.kernel", name):
            tensors[f"convolutions.{match[1]}.weight"] = tensor.permute(3, 2, 0, 1).contiguous()
        elif match := re.fullmatch(rf"{network}_0\.Conv_(\d+)\.bias", name):
            tensors[f"convolutions.{match[1]}.bias"] = tensor
        elif match := re.fullmatch(r"NetLinLayer_(\d+)\.Conv_0\.kernel", name):
            tensors[f"head_{match[1]}"] = tensor.flatten()
        else:
            raise _unknown(name)
    return tensors


@_damage_reported()
def inception_features(data: bytes) -> dict[str, Tensor]:
    """Convert the FID network without its classifier, a TorchScript module."""
    return {_graph_name(name): tensor for name, tensor in torchscript(data).items()}


def _graph_name(name: str) -> str:
    """Map `net.layers.mixed_9.tower_1_mixed_conv_1.beta` to `network.mixed_9.tower_1.split.conv_1.beta`."""
    if not name.startswith("net.layers."):
        raise _unknown(name)
    name = name.replace("net.layers.", "network.").replace("_mixed_conv", ".split.conv")
    return re.sub(r"(tower(_\d)?)_conv", r"\1.conv", name)


@_damage_reported()
def inception_with_classifier(data: bytes) -> dict[str, Tensor]:
    """Convert the whole FID network, a state_dict with the names of torchvision's Inception."""
    state: dict[str, Tensor] = torch.load(BytesIO(data), map_location="cpu", weights_only=True)
    for name, tensor in state.items():
        if name.endswith("bn.weight") and not torch.all(tensor == 1):
            raise WeightsError(f"{name} is not 1, but the FID network has no such scales: another network.")
    # Inception Score (Salimans et al. 2016) multiplies by the classifier's weight and adds no bias.
    tensors = {"classifier": state["fc.weight"]}
    for name, tensor in state.items():
        if name.endswith(tuple(_NORM)):
            tensors[_torchvision_name(name)] = tensor.contiguous()
    return tensors


def _torchvision_name(name: str) -> str:
    """Map `Mixed_7b.branch3x3dbl_3b.bn.bias` to `network.mixed_9.tower_1.split.conv_1.beta`."""
    block, *branch, layer, kind = name.split(".")
    value = _NORM[f"{layer}.{kind}"]
    if block.startswith("Conv2d_"):
        return f"network.{_STEM[block.removeprefix('Conv2d_')]}.{value}"
    position = block.removeprefix("Mixed_")
    mixed = _numbered("mixed", _MIXED.index(position))
    return f"network.{mixed}.{_branch_name(position, branch[0])}.{value}"


def _branch_name(position: str, branch: str) -> str:
    towers = _TOWERS.get(position) or _TOWERS[position[0]]
    stem, _, step = branch.partition("_") if branch != "branch_pool" else (branch, "", "")
    if stem not in towers:
        return "conv"
    if step[1:]:  # 2a and 2b, or 3a and 3b: two parallel layers end the tower
        return f"{towers[stem]}.split.{_numbered('conv', 'ab'.index(step[1]))}"
    return f"{towers[stem]}.{_numbered('conv', int(step or 1) - 1)}"


def _numbered(name: str, index: int) -> str:
    return f"{name}_{index}" if index else name


def _unknown(name: str) -> WeightsError:
    return WeightsError(
        f"the file has {name:.100}, which the network does not have: it is of another network."
    )
