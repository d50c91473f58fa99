"""Checkpoints of a run: each appears whole or not at all, and only a whole one is ever loaded.

    step-000123/   state.safetensors   tensors of rank 0              rank-0001.safetensors   of rank 1, ...
                   state.json          everything else of rank 0      rank-0001.json
                   manifest.json       format, step, world size; size and sha256 of every other file

`step-000123.partial` is being written and `.removed` is being deleted; neither counts. `.replaced` counts: it
is a whole checkpoint that was about to give way to another one of the same step.

A state (nested dicts, lists, tuples, tensors, numbers) is stored without pickle, as named tensors and a JSON
skeleton that puts them in their places. In the skeleton None, bool, int, str, finite floats and lists stand
for themselves. Everything else is an object: {"tuple": [...]}, {"dict": [[key, value], ...]},
{"ordered": [[key, value], ...], "metadata": ...} for a module's state_dict, {"float": bits} for NaN and
infinity, {"tensor": name}.
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
from typing import Any, NamedTuple

import numpy as np
import safetensors.torch
import torch
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
"""Dtypes that safetensors can hold."""

_CHECKPOINT = re.compile(r"step-(\d{6,})(\.replaced)?")
_LEFTOVER = re.compile(r"step-\d{6,}(\.replaced)?\.(partial|removed)")
_LARGEST_DEPTH = 100
_MOST_BITS = 10_000  # Python does not read longer integers back from text
_RESERVED_NAME = "__metadata__"  # by safetensors
_HINTS = {
    np.ndarray: "convert it with torch.from_numpy",
    np.generic: "convert it with .item()",
    bytes: "convert it to a uint8 tensor",
    tuple: "convert it with tuple()",
    dict: "convert it with dict()",
}
"""Ways out for values that are not stored, by their type."""

_log = logging.getLogger(__name__)


class Checkpoints:
    """The checkpoints in one directory, such as `RUN/checkpoints`; `save` keeps the newest `keep`.

    With several processes every rank calls `save` and `latest`, on a file system that all of them see.
    """

    def __init__(self, directory: str | Path, keep: int = 3):
        assert keep >= 1
        self.directory, self.keep = Path(directory), keep

    def save(self, step: int, state: Any) -> Path:
        """Write this rank's state; return once the states of all ranks are one durable checkpoint.

        Only then are old checkpoints removed; after a failure they are as they were. `load` gives each rank
        what it passed here, so ranks above 0 pass only what is theirs alone, such as random states.
        """
        final = self.directory / f"step-{step:06d}"
        partial = beside(final, "partial")
        own_files: dict[str, Fingerprint] = {}
        try:
            with removed_on_failure(partial) if rank() == 0 else nullcontext():
                _on_first_rank(lambda: self._make(partial))
                _on_every_rank(lambda: own_files.update(_write_state(partial, state)))
                _on_first_rank(lambda: self._publish(partial, final, own_files))
        except OSError as error:
            way_out = "earlier checkpoints are untouched; free space or make it writable, then resume"
            raise LGQError(f"cannot save {final}: {error.strerror or error}; {way_out}.") from error
        return final

    def latest(self) -> Path | None:
        """Return the newest whole checkpoint, the same on every rank; log what is wrong with newer ones."""
        path = next(filter(_is_whole, self.paths()), None) if rank() == 0 else None
        place = [_step(path), int(path.suffix != "")] if path else [-1, 0]
        step, replaced = broadcast_from_first(torch.tensor(place)).tolist()
        name = f"step-{step:06d}{'.replaced' if replaced else ''}"
        return None if step < 0 else self.directory / name

    def load(self, path: str | Path, rank: int = 0) -> Any:
        """Return the state that a rank saved, bit for bit, with all tensors on the CPU."""
        path = Path(path)
        manifest = read_manifest(path)
        if rank not in range(manifest.world_size):
            rule = f"holds the states of ranks 0 to {manifest.world_size - 1}, not of rank {rank}"
            raise LGQError(f"{path} {rule}: resume with as many ranks.")
        tensors, skeleton = (_read(path, name, manifest) for name in _files_of_rank(rank))
        try:
            return unflatten(json.loads(skeleton), safetensors.torch.load(tensors))
        except Exception as error:  # files that were forged, hashes included, fail in many ways
            reason = " ".join(str(error).split())
            raise LGQError(f"cannot load {path}: {reason:.300}") from error

    def paths(self) -> list[Path]:
        """Return everything with the name of a checkpoint, whole or damaged, newest first."""
        entries = self.directory.iterdir() if self.directory.is_dir() else ()
        named = [path for path in entries if _CHECKPOINT.fullmatch(path.name)]
        return sorted(named, key=lambda path: (_step(path), not path.suffix), reverse=True)

    def _make(self, partial: Path) -> None:
        make_directory(self.directory)
        for path in self.directory.iterdir():
            if _LEFTOVER.fullmatch(path.name):
                shutil.rmtree(path, ignore_errors=path != partial)
        os.mkdir(partial)

    def _publish(self, partial: Path, final: Path, own_files: dict[str, Fingerprint]) -> None:
        names = [name for rank in range(1, world_size()) for name in _files_of_rank(rank)]
        files = own_files | {name: Fingerprint.of_file(partial / name) for name in names}
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
            # Later steps come from before the run fell back to an earlier checkpoint.
            if path == saved or step > _step(saved):
                continue
            if step in kept or len(kept) == self.keep:
                remove_directory(path)
            elif _is_whole(path):
                kept.add(step)


def read_manifest(path: Path) -> Manifest:
    """Read the manifest of a checkpoint, whose step must be the one in its name."""
    manifest = Manifest.read(path)
    if _CHECKPOINT.match(path.name) and _step(path) != manifest.step:
        raise LGQError(f"{path} belongs to step {manifest.step}: its directory was renamed.")
    return manifest


def seed_random_state(seed: int) -> None:
    """Seed the generators of Python, NumPy and torch (all devices) with a seed of any size."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def capture_random_state() -> dict[str, Any]:
    """Return the states of the generators of Python, NumPy and torch (CPU, every CUDA device)."""
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
        raise LGQError(
            f"this random state belongs to {len(state['cuda'])} CUDA devices, and {devices} are here: "
            "resume where there are as many, or set its 'cuda' to [] for new random numbers."
        )
    numpy = state["numpy"]
    random.setstate(state["python"])
    np.random.set_state(numpy | {"state": numpy["state"] | {"key": numpy["state"]["key"].numpy()}})
    torch.set_rng_state(state["torch"])
    if state["cuda"]:
        torch.cuda.set_rng_state_all(state["cuda"])


def _is_whole(path: Path) -> bool:
    try:
        read_manifest(path).verify(path)
    except LGQError as error:
        _log.warning("skipped a checkpoint: %s", error)
        return False
    return True


def _read(path: Path, name: str, manifest: Manifest) -> bytes:
    # Hash and content come from one reading, so that nothing can change between them.
    with damage_named(path, name):
        data = (path / name).read_bytes()
        if name not in manifest.files:
            raise DamagedFileError("is not among the files that were saved")
        manifest.files[name].require(Fingerprint.of(data))
    return data


def _write_state(partial: Path, state: Any) -> dict[str, Fingerprint]:
    """Write this rank's files and read them back; returns their fingerprints by name."""
    flat, files = flatten(state), {}
    contents = (safetensors.torch.save(flat.tensors), json_bytes(flat.skeleton))
    for name, data in zip(_files_of_rank(rank()), contents, strict=True):
        write_new_file(partial / name, data)
        files[name] = Fingerprint.of(data)
        with damage_named(partial, name):
            files[name].require(Fingerprint.of_file(partial / name))
    return files


def _files_of_rank(rank: int) -> tuple[str, str]:
    name = f"rank-{rank:04d}" if rank else "state"
    return f"{name}.safetensors", f"{name}.json"


def _step(path: Path) -> int:
    match = _CHECKPOINT.match(path.name)
    assert match is not None
    return int(match[1])


def _on_first_rank(action: Callable[[], None]) -> None:
    _on_every_rank(action if rank() == 0 else lambda: None)


def _on_every_rank(action: Callable[[], None]) -> None:
    """Fail on all ranks if one fails: none continues without the others, or waits for them."""
    failure = None
    try:
        action()
    except Exception as error:
        failure = error
    failures = int(sum_over_ranks(torch.tensor(int(failure is not None))))
    if failure is not None:
        raise failure
    if failures:
        raise LGQError(f"{failures} other rank(s) could not save; their own message says why.")


Stored = Shaped[Tensor, "..."]
KeyPath = tuple[Any, ...]
"""Keys from the state down to a value."""


class Flat(NamedTuple):
    """A state as plain data."""

    skeleton: Any
    tensors: dict[str, Stored]
    """On the CPU, contiguous, no two in the same memory, as safetensors requires."""


def flatten(state: Any) -> Flat:
    """Take nested dicts, lists and tuples apart; refuses what `unflatten` could not restore.

    A tensor that occurs twice stays one tensor, and dense memory formats such as channels_last are kept.
    Tensors lose their device and their gradient, as those of a state_dict do when it is loaded.
    """
    flattener = _Flattener()
    return Flat(flattener.node(state, ()), flattener.tensors)


def unflatten(skeleton: Any, tensors: dict[str, Stored]) -> Any:
    """Restore what `flatten` took apart, bit for bit."""
    unflattener = _Unflattener(tensors)
    state = unflattener.value(skeleton)
    if unused := tensors.keys() - unflattener.rebuilt.keys():
        raise LGQError(f"the skeleton has no place for tensor {min(unused)!r}: it belongs to another state.")
    return state


class _Flattener:
    def __init__(self) -> None:
        self.tensors: dict[str, Stored] = {}
        self._nodes: dict[KeyPath, dict[str, Any]] = {}
        self._memory: set[int] = set()

    def node(self, value: Any, path: KeyPath) -> Any:
        """Return the skeleton of a value."""
        if len(path) > _LARGEST_DEPTH:
            raise _refusal(path[:5], f"is nested over {_LARGEST_DEPTH} deep, or contains itself")
        # By exact type: a subclass would come back as something else.
        kind = type(value)
        if kind in (NoneType, bool, str):
            return value
        if kind is int:
            if value.bit_length() > _MOST_BITS:
                raise _refusal(path, f"is an integer of {value.bit_length():,} bits, over {_MOST_BITS:,}")
            return value
        if kind is float:
            return value if math.isfinite(value) else {"float": struct.pack(">d", value).hex()}
        if kind in (list, tuple):
            items = [self.node(item, (*path, i)) for i, item in enumerate(value)]
            return items if kind is list else {"tuple": items}
        if kind is dict:
            return {"dict": self._pairs(value, path)}
        if kind is OrderedDict:
            # Modules look up there which version of their class wrote a state_dict.
            metadata = self.node(getattr(value, "_metadata", None), (*path, "_metadata"))
            return {"ordered": self._pairs(value, path), "metadata": metadata}
        if kind in (Tensor, torch.nn.Parameter):
            return self._tensor(value, path)
        hint = next((hint for base, hint in _HINTS.items() if isinstance(value, base)), "leave it out")
        raise _refusal(path, f"is a {kind.__module__}.{kind.__qualname__}: {hint}")

    def _pairs(self, mapping: dict[Any, Any], path: KeyPath) -> list[list[Any]]:
        for key in mapping:
            if type(key) not in (NoneType, bool, int, float, str):
                raise _refusal(path, f"has the key {key!r}: keys must be strings, numbers or None")
        return [[self.node(key, path), self.node(value, (*path, key))] for key, value in mapping.items()]

    def _tensor(self, tensor: Stored, path: KeyPath) -> dict[str, Any]:
        if tensor.is_meta:
            raise _refusal(path, "is a meta tensor, without values")
        if tensor.layout != torch.strided:
            raise _refusal(path, f"is a tensor of layout {tensor.layout}: convert it with .to_dense()")
        if tensor.dtype not in STORABLE_DTYPES:
            raise _refusal(path, f"is a tensor of {tensor.dtype}, which safetensors cannot hold: convert it")
        place = (tensor.device, tensor.data_ptr(), tensor.is_conj(), tensor.is_neg())
        view = (*place, tensor.dtype, tensor.shape, tensor.stride())
        if tensor.numel() == 0 or view not in self._nodes:
            self._nodes[view] = self._new_tensor(tensor.detach(), path)
        return self._nodes[view]

    def _new_tensor(self, tensor: Stored, path: KeyPath) -> dict[str, Any]:
        tensor = tensor.resolve_conj().resolve_neg().cpu()
        stored = _contiguous(tensor)
        # Names are for people only: keys may hold a slash, and the skeleton knows the places.
        name = "/".join(map(str, path)).encode("utf-8", "backslashreplace").decode()
        while name in self.tensors or name == _RESERVED_NAME:
            name += "'"
        node = {"tensor": name, **_layout(tensor, stored)}
        if stored.untyped_storage().data_ptr() in self._memory:
            stored = stored.clone(memory_format=torch.contiguous_format)
        self._memory.add(stored.untyped_storage().data_ptr())
        self.tensors[name] = stored
        return node


class _Unflattener:
    def __init__(self, tensors: dict[str, Stored]):
        self.tensors = tensors
        self.rebuilt: dict[str, Stored] = {}

    def value(self, node: Any) -> Any:
        """Return the value of a skeleton."""
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
                mapping = OrderedDict((self.value(key), self.value(value)) for key, value in pairs)
                if metadata is not None:
                    mapping._metadata = self.value(metadata)  # type: ignore[attr-defined]
                return mapping
            case {"float": bits}:
                return struct.unpack(">d", bytes.fromhex(bits))[0]
            case {"tensor": name}:
                return self._tensor(name, node)
        raise LGQError(f"the skeleton holds {node!r:.80}, which this version of lgq does not know.")

    def _tensor(self, name: str, node: dict[str, Any]) -> Stored:
        if name not in self.tensors:
            raise LGQError(f"the skeleton needs tensor {name!r}, which is missing.")
        if name not in self.rebuilt:
            # A copy: bytes of a file have any alignment, and go with the file's buffer.
            tensor = self.tensors[name].clone()
            shaped = "shape" in node
            self.rebuilt[name] = tensor.as_strided(node["shape"], node["stride"]) if shaped else tensor
        return self.rebuilt[name]


def _contiguous(tensor: Stored) -> Stored:
    """Return the elements contiguously: by reordering the dimensions if they are dense, else by copying."""
    by_stride = sorted(range(tensor.ndim), key=tensor.stride, reverse=True)
    reordered = tensor.permute(by_stride)
    return reordered if reordered.is_contiguous() and not tensor.is_contiguous() else tensor.contiguous()


def _layout(tensor: Stored, stored: Stored) -> dict[str, list[int]]:
    """Return how to view `stored` as `tensor`, if its memory format is unusual and was kept."""
    usual = torch.empty(tensor.shape, device="meta").stride()
    if tensor.stride() == usual or tensor.data_ptr() != stored.data_ptr():
        return {}
    return {"shape": list(tensor.shape), "stride": list(tensor.stride())}


def _refusal(path: KeyPath, reason: str) -> LGQError:
    place = "state" + "".join(f"[{key!r}]" for key in path)
    rule = "a checkpoint holds tensors, numbers, strings, None, lists, tuples and dicts"
    return LGQError(f"cannot store {place}, which {reason} ({rule}).")
