"""The state of a run as plain data: named tensors, and a JSON skeleton that puts them in their places.

In the skeleton None, bool, int, str, finite floats and lists stand for themselves. All else is an
object: {"tuple": [...]}, {"dict": [[key, value], ...]}, {"ordered": [[key, value], ...],
"metadata": ...} for a module's state_dict, {"float": bits} for NaN and infinity, {"tensor": name}.

Checkpoints of a run: each appears whole or not at all, and only a whole one is ever loaded.

    step-000123/   state.safetensors   tensors of rank 0      rank-0001.safetensors   of rank 1, ...
                   state.json          all else of rank 0     rank-0001.json
                   manifest.json       format, step, world size; size and sha256 of every other file

A name with an ending is no checkpoint: `.partial` is being written, `.removed` is being deleted. Only
`.replaced` still counts: a checkpoint that was about to give way to another one of the same step.
"""

import json
import logging
import math
import os
import random
import re
import shutil
import struct
from collections import OrderedDict
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import NoneType
from typing import Any, NamedTuple, NoReturn

import numpy as np
import safetensors.torch
import torch
import torch.distributed as dist
from jaxtyping import Shaped
from torch import Tensor

from lgq.distributed import broadcast_from_first, rank, sum_over_ranks, world_size
from lgq.errors import LGQError
from lgq.files import (
    MANIFEST_FORMAT,
    DamagedFileError,
    Fingerprint,
    Manifest,
    beside,
    damage_named,
    json_bytes,
    make_directory,
    publish_directory,
    remove_directory,
    removed_on_failure,
    write_new_file,
)

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
        raise LGQError(f"the skeleton has no place for tensor {min(unused)!r}: it is of another state.")
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
        raise LGQError(f"{captured}, here are {devices}: set its 'cuda' to [] to start those anew.")
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
        raise LGQError(f"the skeleton holds {node!r:.80}, which this version of lgq does not know.")

    def _ordered(self, pairs: list[Any], metadata: Any) -> OrderedDict[Any, Any]:
        mapping = OrderedDict((self.value(key), self.value(value)) for key, value in pairs)
        if metadata is not None:
            mapping._metadata = self.value(metadata)  # type: ignore[attr-defined]
        return mapping

    def _tensor(self, name: str, node: dict[str, Any]) -> Stored:
        if name not in self.tensors:
            raise LGQError(f"the skeleton wants tensor {name!r}, which is not there.")
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
    raise LGQError(f"cannot store {place}, which {why} ({rule}).")


_CHECKPOINT = re.compile(r"step-(\d{6,})(\.replaced)?")
_LEFTOVER = re.compile(r"step-\d{6,}(\.replaced)?\.(partial|removed)")

_log = logging.getLogger(__name__)


class Checkpoints:
    """The checkpoints in one directory, such as `RUN/checkpoints`, of which `save` keeps the newest.

    With several processes every rank calls `save` and `latest`, on a file system that all of them see.
    """

    def __init__(self, directory: str | Path, keep: int = 3):
        if keep < 1:
            raise LGQError(f"keep must be at least 1 checkpoint, got {keep}.")
        self.directory, self.keep = Path(directory), keep

    def save(self, step: int, state: Any) -> Path:
        """Write this rank's state; return once the parts of all ranks are one durable checkpoint.

        Only then do old checkpoints go, and after a failure they are as they were. `load` gives each rank
        what it passed here, so further ranks pass only what is theirs alone, such as random states.
        """
        if step < 0:
            raise LGQError(f"step must be 0 or more, got {step}.")
        final = self.directory / f"step-{step:06d}"
        try:
            self._save(final, state)
        except OSError as error:
            way_out = "earlier checkpoints are untouched; free space or make it writable, then resume"
            raise LGQError(f"cannot save {final}: {error.strerror or error}; {way_out}.") from error
        return final

    def latest(self) -> Path | None:
        """The newest checkpoint that verifies, the same on every rank; logs what is wrong with newer ones."""
        whole = (path for path in self.paths() if _is_whole(path))
        return self._as_on_first_rank(next(whole, None) if rank() == 0 else None)

    def load(self, path: str | Path, rank: int = 0) -> Any:
        """The state that a rank saved, bit for bit, with all tensors on the CPU."""
        path = Path(path)
        manifest = read_manifest(path)
        if rank not in range(manifest.world_size):
            rule = f"holds the states of ranks 0 to {manifest.world_size - 1}, not of rank {rank}"
            raise LGQError(f"{path} {rule}: resume with as many ranks, or start this one's anew.")
        tensors, skeleton = (_read(path, name, manifest) for name in _part(rank))
        try:
            return unflatten(json.loads(skeleton), safetensors.torch.load(tensors))
        except Exception as error:  # what was forged, hashes and all, fails with nearly any exception
            reason = " ".join(str(error).split())
            raise LGQError(f"cannot load {path}: {reason:.300}") from error

    def paths(self) -> list[Path]:
        """All that have the name of a checkpoint, whole or damaged, newest first."""
        found = self.directory.iterdir() if self.directory.is_dir() else ()
        named = [path for path in found if _CHECKPOINT.fullmatch(path.name)]
        return sorted(named, key=lambda path: (_step(path), not path.suffix), reverse=True)

    def _save(self, final: Path, state: Any) -> None:
        partial = beside(final, "partial")
        own: dict[str, Fingerprint] = {}
        with removed_on_failure(partial) if rank() == 0 else nullcontext():
            _on_first_rank(lambda: self._begin(partial))
            _on_every_rank(lambda: own.update(_write_part(partial, state)))
            _on_first_rank(lambda: self._commit(partial, final, own))

    def _begin(self, partial: Path) -> None:
        make_directory(self.directory)
        for path in self.directory.iterdir():
            if _LEFTOVER.fullmatch(path.name):
                shutil.rmtree(path, ignore_errors=path != partial)
        os.mkdir(partial)

    def _commit(self, partial: Path, final: Path, own: dict[str, Fingerprint]) -> None:
        others = [name for rank in range(1, world_size()) for name in _part(rank)]
        files = own | {name: Fingerprint.of_file(partial / name) for name in others}
        Manifest(MANIFEST_FORMAT, _step(final), world_size(), files).write(partial)
        publish_directory(partial, final)
        try:
            self._prune(final)
        except OSError as error:
            _log.warning("cannot remove old checkpoints in %s: %s", self.directory, error)

    def _prune(self, saved: Path) -> None:
        kept = {_step(saved)}
        for path in self.paths():
            step = _step(path)
            # A later step is of a future that this run left, when it resumed from an earlier checkpoint.
            if path == saved or step > _step(saved):
                continue
            if step in kept or len(kept) == self.keep:
                remove_directory(path)
            elif _is_whole(path):
                kept.add(step)

    def _as_on_first_rank(self, path: Path | None) -> Path | None:
        if world_size() == 1:
            return path
        place = [_step(path), int(path.suffix != "")] if path else [-1, 0]
        step, replaced = broadcast_from_first(torch.tensor(place, device=_meeting_device())).tolist()
        name = f"step-{step:06d}{'.replaced' if replaced else ''}"
        return None if step < 0 else self.directory / name


def read_manifest(path: Path) -> Manifest:
    """Read the manifest of a checkpoint, whose step must be the one in its name."""
    manifest = Manifest.read(path)
    if _CHECKPOINT.match(path.name) and _step(path) != manifest.step:
        raise LGQError(f"{path} belongs to step {manifest.step}: its directory was renamed.")
    return manifest


def verify(path: Path) -> Manifest:
    """Read every byte of a checkpoint; an error names what is wrong."""
    manifest = read_manifest(path)
    manifest.verify(path)
    return manifest


def _is_whole(path: Path) -> bool:
    try:
        verify(path)
    except LGQError as error:
        _log.warning("skipped a checkpoint: %s", error)
        return False
    return True


def _read(path: Path, name: str, manifest: Manifest) -> bytes:
    # Hash and content from one reading: nothing can come between them.
    with damage_named(path, name):
        data = (path / name).read_bytes()
        if name not in manifest.files:
            raise DamagedFileError("is not among the files that were saved")
        manifest.files[name].require(Fingerprint.of(data))
    return data


def _write_part(partial: Path, state: Any) -> dict[str, Fingerprint]:
    flat = flatten(state)
    contents = (safetensors.torch.save(flat.tensors), json_bytes(flat.skeleton))
    named = zip(_part(rank()), contents, strict=True)
    return {name: _write_checked(partial / name, data) for name, data in named}


def _write_checked(path: Path, data: bytes) -> Fingerprint:
    write_new_file(path, data)
    fingerprint = Fingerprint.of(data)
    with damage_named(path.parent, path.name):
        fingerprint.require(Fingerprint.of_file(path))
    return fingerprint


def _part(rank: int) -> tuple[str, str]:
    name = f"rank-{rank:04d}" if rank else "state"
    return f"{name}.safetensors", f"{name}.json"


def _step(path: Path) -> int:
    match = _CHECKPOINT.match(path.name)
    assert match is not None
    return int(match[1])


def _on_first_rank(action: Callable[[], None]) -> None:
    _on_every_rank(action if rank() == 0 else lambda: None)


def _on_every_rank(action: Callable[[], None]) -> None:
    """What fails on one rank fails on all: none goes on without the others, or waits for them."""
    failure = None
    try:
        action()
    except Exception as error:
        failure = error
    failures = int(sum_over_ranks(torch.tensor(int(failure is not None), device=_meeting_device())))
    if failure is not None:
        raise failure
    if failures:
        raise LGQError(f"{failures} other rank(s) could not save; their own message says why.")


def _meeting_device() -> torch.device:
    return torch.device("cuda" if world_size() > 1 and dist.get_backend() == "nccl" else "cpu")
