"""The disk under a run directory fails, or the process is gone, at a chosen system call of a real process.

What is opened through `io` counts too: the journal, and the settings that published weights carry.
"""

import io
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from faulty_disk import CALLS, REAL, FaultyDisk

from faults.children import KILLED, Notes

_REAL_OPEN = io.open


@dataclass(frozen=True)
class AtCall:
    """An injection: the fault comes with the `number`-th call from 0; without a fault, calls are noted."""

    fault: str | None = None
    number: int = -1
    error: int = 0

    def arm(self, out: Path, notes: Notes) -> None:
        DiskUnder(out, self, notes).install()


class DiskUnder(FaultyDisk):
    """Fails where a path in `folder` is concerned, and nowhere else."""

    def __init__(self, folder: Path, injection: AtCall, notes: Notes):
        super().__init__(injection.fault, injection.number, injection.error)
        self.folder, self._notes = folder, notes

    def install(self) -> None:
        for name in CALLS:
            setattr(os, name, self._wrapped(name))
        io.open = self._open_file  # type: ignore[assignment]

    def _open_file(self, file: Any, mode: str = "r", buffering: int = -1, *args: Any, **kwargs: Any) -> Any:
        """As `io.open`, through which pathlib opens files."""
        if isinstance(file, int) or not Path(file).is_relative_to(self.folder):
            return _REAL_OPEN(file, mode, buffering, *args, **kwargs)
        raw = _File(os.open(file, _flags(mode), 0o666), mode.strip("bt"))
        if buffering == 0:
            return raw
        binary = io.BufferedReader(raw) if "r" in mode else io.BufferedWriter(raw)
        return binary if "b" in mode else io.TextIOWrapper(binary, *args, **kwargs)

    def _concerns(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        concerned = self._path(args[0], kwargs.get("dir_fd")).is_relative_to(self.folder)
        if concerned and self.fault is None:
            self._notes.add("call", "create" if name == "open" and args[1] & os.O_CREAT else name)
        return concerned

    def _path(self, place: Any, folder: int | None) -> Path:
        if isinstance(place, int):
            try:
                return Path(os.readlink(f"/proc/self/fd/{place}"))
            except OSError:  # closed already, as shutil does
                return Path("/")
        return Path(place) if folder is None else self._path(folder, None) / os.fspath(place)

    def _die(self) -> None:
        for name in CALLS:
            setattr(os, name, REAL[name])
        io.open = _REAL_OPEN
        if self.fault == "power cut":
            self._unsynced.lose()
        os._exit(KILLED)


class _File(io.FileIO):
    """A file whose writing is a system call that can be caught."""

    def __init__(self, descriptor: int, mode: str):
        super().__init__(descriptor, mode)

    def write(self, data: Any) -> int:
        return os.write(self.fileno(), bytes(data))


def _flags(mode: str) -> int:
    kinds = {"r": os.O_RDONLY, "w": os.O_WRONLY | os.O_CREAT | os.O_TRUNC}
    return kinds.get(mode[0], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
