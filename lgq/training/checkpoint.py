"""Checkpoints of a run: each appears whole or not at all, and only a whole one is ever loaded.

    step-000123/   state.safetensors   tensors of rank 0      rank-0001.safetensors   of rank 1, ...
                   state.json          all else of rank 0     rank-0001.json
                   manifest.json       format, step, world size; size and sha256 of every other file

A name with an ending is no checkpoint: `.partial` is being written, `.removed` is being deleted. Only
`.replaced` still counts: a checkpoint that was about to give way to another one of the same step.
"""

import json
import logging
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
import torch.distributed as dist

from lgq.config import ConfigError, from_json
from lgq.distributed import broadcast_from_first, rank, sum_over_ranks, world_size
from lgq.files import (
    DamagedFileError,
    Fingerprint,
    beside,
    json_bytes,
    make_directory,
    publish_directory,
    remove_directory,
    removed_on_failure,
    sealed_json,
    unsealed_json,
    write_new_file,
)
from lgq.training.state import flatten, unflatten

FORMAT_VERSION = 1
MANIFEST = "manifest.json"
_CHECKPOINT = re.compile(r"step-(\d{6,})(\.replaced)?")
_LEFTOVER = re.compile(r"step-\d{6,}(\.replaced)?\.(partial|removed)")

_log = logging.getLogger(__name__)


class CheckpointError(ValueError):
    """A checkpoint that could not be written, or must not be read; the message says why."""


class Checkpoints:
    """The checkpoints in one directory, such as `RUN/checkpoints`, of which `save` keeps the newest.

    With several processes every rank calls `save` and `latest`, on a file system that all of them see.
    """

    def __init__(self, directory: str | Path, keep: int = 3):
        if keep < 1:
            raise ValueError(f"keep must be at least 1 checkpoint, got {keep}.")
        self.directory, self.keep = Path(directory), keep

    def save(self, step: int, state: Any) -> Path:
        """Write this rank's state; return once the parts of all ranks are one durable checkpoint.

        Only then do old checkpoints go, and after a failure they are as they were. `load` gives each rank
        what it passed here, so further ranks pass only what is theirs alone, such as random states.
        """
        if step < 0:
            raise ValueError(f"step must be 0 or more, got {step}.")
        final = self.directory / f"step-{step:06d}"
        try:
            self._save(final, state)
        except OSError as error:
            way_out = "earlier checkpoints are untouched; free space or make it writable, then resume"
            raise CheckpointError(f"cannot save {final}: {error.strerror or error}; {way_out}.") from error
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
            raise CheckpointError(f"{path} {rule}: resume with as many ranks, or start this one's anew.")
        tensors, skeleton = (_read(path, name, manifest) for name in _part(rank))
        try:
            return unflatten(json.loads(skeleton), safetensors.torch.load(tensors))
        except Exception as error:  # what was forged, hashes and all, fails with nearly any exception
            reason = " ".join(str(error).split())
            raise CheckpointError(f"cannot load {path}: {reason:.300}") from error

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
        manifest = Manifest(FORMAT_VERSION, _step(final), world_size(), files)
        _write_checked(partial / MANIFEST, sealed_json(asdict(manifest)))
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


@dataclass(frozen=True)
class Manifest:
    """What a checkpoint consists of."""

    format_version: int
    step: int
    world_size: int
    files: dict[str, Fingerprint]


def seal(directory: Path, step: int) -> None:
    """Give published weights a manifest, by which `verify` knows them."""
    files = [path for path in sorted(directory.rglob("*")) if path.is_file()]
    prints = {path.relative_to(directory).as_posix(): Fingerprint.of_file(path) for path in files}
    manifest = Manifest(FORMAT_VERSION, step, world_size(), prints)
    write_new_file(directory / MANIFEST, sealed_json(asdict(manifest)))


def verify(path: Path) -> Manifest:
    """Read every byte of a checkpoint, or of what was sealed; a `CheckpointError` names what is wrong."""
    manifest = read_manifest(path)
    for name, fingerprint in manifest.files.items():
        with _damage_named(path, name):
            fingerprint.require(Fingerprint.of_file(path / name))
    return manifest


def read_manifest(path: Path) -> Manifest:
    """What the checkpoint at `path` consists of; refuses a manifest with a single wrong bit."""
    with _damage_named(path, MANIFEST):
        content = unsealed_json((path / MANIFEST).read_bytes())
    version = content.get("format_version")
    if version != FORMAT_VERSION:
        rule = f"this lgq reads format {FORMAT_VERSION}"
        raise CheckpointError(f"{path} has format {version!r:.40}, {rule}: use the lgq that wrote it.")
    manifest = _manifest(path, content)
    if _CHECKPOINT.match(path.name) and _step(path) != manifest.step:
        raise CheckpointError(f"{path} is in truth of step {manifest.step}: somebody renamed it.")
    return manifest


def _manifest(path: Path, content: dict[str, Any]) -> Manifest:
    """With fields of the right types, and files that are within the directory."""
    try:
        files = content.get("files")
        if isinstance(files, dict):
            files = {name: from_json(Fingerprint, fields) for name, fields in files.items()}
        manifest = from_json(Manifest, content | {"files": files})
    except ConfigError as error:
        raise CheckpointError(f"{path} is damaged: {MANIFEST} is none ({error}).") from error
    numbers = (manifest.step, manifest.world_size, *(each.size for each in manifest.files.values()))
    if min(numbers) < 0 or max(numbers) >= 2**63:
        raise CheckpointError(f"{path} is damaged: {MANIFEST} has a number that cannot be.")
    for name in manifest.files:
        if Path(name).is_absolute() or ".." in Path(name).parts or "\0" in name:
            raise CheckpointError(f"{path} is damaged: {name!r:.100} is no file within it.")
    return manifest


def _is_whole(path: Path) -> bool:
    try:
        verify(path)
    except CheckpointError as error:
        _log.warning("skipped a checkpoint: %s", error)
        return False
    return True


def _read(path: Path, name: str, manifest: Manifest) -> bytes:
    # Hash and content from one reading: nothing can come between them.
    with _damage_named(path, name):
        data = (path / name).read_bytes()
        if name not in manifest.files:
            raise DamagedFileError("is not among the files that were saved")
        manifest.files[name].require(Fingerprint.of(data))
    return data


@contextmanager
def _damage_named(path: Path, name: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CheckpointError(f"{path} is damaged: {name:.100} cannot be read ({error.strerror}).") from error
    except DamagedFileError as error:
        raise CheckpointError(f"{path} is damaged: {name:.100} {error}.") from error


def _write_part(partial: Path, state: Any) -> dict[str, Fingerprint]:
    flat = flatten(state)
    contents = (safetensors.torch.save(flat.tensors), json_bytes(flat.skeleton))
    named = zip(_part(rank()), contents, strict=True)
    return {name: _write_checked(partial / name, data) for name, data in named}


def _write_checked(path: Path, data: bytes) -> Fingerprint:
    write_new_file(path, data)
    fingerprint = Fingerprint.of(data)
    with _damage_named(path.parent, path.name):
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
        raise CheckpointError(f"{failures} other rank(s) could not save; their own message says why.")


def _meeting_device() -> torch.device:
    return torch.device("cuda" if world_size() > 1 and dist.get_backend() == "nccl" else "cpu")
