"""What a child process did, written down as it goes: a killed one cannot tell afterwards."""

import os
from pathlib import Path

_write = os.write  # not the one that a fault may have replaced meanwhile


class Notes:
    """Lines of a file beside the run directory, each a kind and a text."""

    def __init__(self, file: Path):
        self.file = file
        self._descriptor: int | None = None

    def __getstate__(self) -> dict[str, object]:
        return {"file": self.file, "_descriptor": None}

    def add(self, kind: str, text: object) -> None:
        if self._descriptor is None:
            self._descriptor = os.open(self.file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        line = str(text).replace("\\", "\\\\").replace("\n", "\\n")
        _write(self._descriptor, f"{kind} {line}\n".encode(errors="backslashreplace"))

    def all(self, kind: str) -> list[str]:
        lines = self.file.read_text().splitlines() if self.file.exists() else []
        return [line.partition(" ")[2] for line in lines if line.partition(" ")[0] == kind]
