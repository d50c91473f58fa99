"""What goes wrong with weights, in words for the user.

Tensors out of pickles and TorchScript files, without running what such a file can hold.

A pickle is a program: it names functions and calls them. The reader here knows a handful of names, each
harmless, and refuses every other one. A TorchScript file is a zip archive: its pickle describes the
modules, its other members are the tensors' bytes, and its code stays unread.

From the published files' names and layouts to those of our own modules.
"""

import pickle
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from io import BytesIO
from typing import Any, ParamSpec
from zipfile import ZipFile

import numpy as np
import torch
from torch import Tensor

from lgq.errors import LGQError


class WeightsError(LGQError):
    """Weights that are absent, damaged, unknown or out of reach; the message says the way out."""


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


_STEM = {"1a_3x3": "conv", "2a_3x3": "conv_1", "2b_3x3": "conv_2", "3b_1x1": "conv_3", "4a_3x3": "conv_4"}
_MIXED = ("5b", "5c", "5d", "6a", "6b", "6c", "6d", "6e", "7a", "7b", "7c")
_NORM = {"conv.weight": "weight", "bn.bias": "beta", "bn.running_mean": "mean", "bn.running_var": "var"}
_TOWERS = {
    # by the kind of block, 5 to 7 for the resolution and a for the reducing ones: which branch is which tower
    "5": {"branch5x5": "tower", "branch3x3dbl": "tower_1", "branch_pool": "tower_2"},
    "6a": {"branch3x3dbl": "tower"},
    "6": {"branch7x7": "tower", "branch7x7dbl": "tower_1", "branch_pool": "tower_2"},
    "7a": {"branch3x3": "tower", "branch7x7x3": "tower_1"},
    "7": {"branch3x3": "tower", "branch3x3dbl": "tower_1", "branch_pool": "tower_2"},
}

Arguments = ParamSpec("Arguments")
Conversion = Callable[Arguments, dict[str, Tensor]]


def _refusing_damage(convert: Conversion[Arguments]) -> Conversion[Arguments]:
    """With a `WeightsError` in the place of whatever tensors of wrong names or shapes lead to."""

    @wraps(convert)
    def refusing(*args: Arguments.args, **kwargs: Arguments.kwargs) -> dict[str, Tensor]:
        try:
            with warnings.catch_warnings():  # of old pickles, which torch reads all the same
                warnings.simplefilter("ignore")
                return convert(*args, **kwargs)
        except WeightsError:
            raise
        except Exception as error:
            reason = " ".join(str(error).split())
            raise WeightsError(f"the file is damaged, or another network's: {reason:.300}") from error

    return refusing


@_refusing_damage
def lpips(data: bytes, *, network: str) -> dict[str, Tensor]:
    """Convolutions of VGG16 or AlexNet and the heads of LPIPS 0.1, as the JAX port pickles them."""
    return dict(_lpips_entry(name, tensor, network) for name, tensor in numpy_pickle(data).items())


def _lpips_entry(name: str, tensor: Tensor, network: str) -> tuple[str, Tensor]:
    if found := re.fullmatch(rf"{network}_0\.Conv_(\d+)\.kernel", name):
        return f"convolutions.{found[1]}.weight", tensor.permute(3, 2, 0, 1).contiguous()
    if found := re.fullmatch(rf"{network}_0\.Conv_(\d+)\.bias", name):
        return f"convolutions.{found[1]}.bias", tensor
    if found := re.fullmatch(r"NetLinLayer_(\d+)\.Conv_0\.kernel", name):
        return f"head_{found[1]}", tensor.flatten()
    raise _unknown(name)


@_refusing_damage
def inception_features(data: bytes) -> dict[str, Tensor]:
    """The FID network without its classifier, as a TorchScript module."""
    return {_graph_name(name): tensor for name, tensor in torchscript(data).items()}


def _graph_name(name: str) -> str:
    """`net.layers.mixed_9.tower_1_mixed_conv_1.beta` is `network.mixed_9.tower_1.split.conv_1.beta` here."""
    if not name.startswith("net.layers."):
        raise _unknown(name)
    name = name.replace("net.layers.", "network.").replace("_mixed_conv", ".split.conv")
    return re.sub(r"(tower(_\d)?)_conv", r"\1.conv", name)


@_refusing_damage
def inception_with_classifier(data: bytes) -> dict[str, Tensor]:
    """The whole FID network, as a state_dict with the names of torchvision's Inception."""
    state: dict[str, Tensor] = torch.load(BytesIO(data), map_location="cpu", weights_only=True)
    _require_no_scale(state)
    # Inception Score (Salimans et al. 2016) multiplies by the classifier's weight and adds no bias.
    tensors = {"classifier": state["fc.weight"]}
    for name, tensor in state.items():
        if name.endswith(tuple(_NORM)):
            tensors[_torchvision_name(name)] = tensor.contiguous()
    return tensors


def _require_no_scale(state: dict[str, Tensor]) -> None:
    for name, tensor in state.items():
        if name.endswith("bn.weight") and not torch.all(tensor == 1):
            raise WeightsError(f"{name} scales, and the FID network has no such scales: this is another one.")


def _torchvision_name(name: str) -> str:
    """`Mixed_7b.branch3x3dbl_3b.bn.bias` is `network.mixed_9.tower_1.split.conv_1.beta` here."""
    block, *branch, layer, kind = name.split(".")
    value = _NORM[f"{layer}.{kind}"]
    if block.startswith("Conv2d_"):
        return f"network.{_STEM[block.removeprefix('Conv2d_')]}.{value}"
    place = block.removeprefix("Mixed_")
    mixed = _counted("mixed", _MIXED.index(place))
    return f"network.{mixed}.{_branch_name(place, branch[0])}.{value}"


def _branch_name(place: str, branch: str) -> str:
    towers = _TOWERS.get(place) or _TOWERS[place[0]]
    stem, _, step = branch.partition("_") if branch != "branch_pool" else (branch, "", "")
    if stem not in towers:
        return "conv"
    if step[1:]:  # 2a and 2b, or 3a and 3b: two layers side by side end the tower
        return f"{towers[stem]}.split.{_counted('conv', 'ab'.index(step[1]))}"
    return f"{towers[stem]}.{_counted('conv', int(step or 1) - 1)}"


def _counted(name: str, index: int) -> str:
    return f"{name}_{index}" if index else name


def _unknown(name: str) -> WeightsError:
    return WeightsError(
        f"the file holds {name:.100}, which the network does not have: it is another network's."
    )
