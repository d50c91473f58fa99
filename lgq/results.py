"""Records of evaluations, one JSON object per line of a file.

    {"kind": "tokenizer", "command": [...], "config": {...}, "seed": 0, "data": "...", "images": 10000,
     "metrics": {"psnr": 21.3, "rfid": 12.1}, "absent": {"lpips": "why"}, "fid": {...}, ...}

NaN and infinity are stored as null. Records are only appended, each in one write, so several processes may
share a file. A killed process leaves at most one incomplete line. Every line ends with a `checksum`, by which
readers detect a line that is incomplete or was changed, and skip it with a warning.
"""

import errno
import logging
import math
import os
from pathlib import Path
from typing import Any

from lgq.errors import LGQError
from lgq.files import DamagedFileError, make_directory, sealed_json, sync_directory, unsealed_json

RESULTS = "results.jsonl"

_log = logging.getLogger(__name__)


class ResultsError(LGQError):
    """Results that cannot be written or read."""


def append_result(file: str | Path, record: dict[str, Any]) -> None:
    """Append a record; it is on the disk when this returns."""
    path = Path(file)
    try:
        make_directory(path.parent)
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            _write(descriptor, sealed_json(strict(record), indent=None))
        finally:
            os.close(descriptor)
        sync_directory(path.parent)
    except OSError as error:
        raise ResultsError(
            f"cannot write {path} ({error.strerror or error}): choose another path."
        ) from error


def read_results(file: str | Path) -> list[dict[str, Any]]:
    """Read every intact record of a file, in the order of writing."""
    try:
        lines = Path(file).read_bytes().splitlines()
    except OSError as error:
        raise ResultsError(f"cannot read {file} ({error.strerror or error}): check the path.") from error
    records = []
    for number, line in enumerate(lines, 1):
        try:
            records.append(unsealed_json(line + b"\n", indent=None))
        except DamagedFileError:
            if line:
                _log.warning("skipped line %d of %s, which is incomplete or was changed", number, file)
    return records


def _write(descriptor: int, line: bytes) -> None:
    size = os.fstat(descriptor).st_size
    incomplete = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
    line = b"\n" + line if incomplete else line
    if os.write(descriptor, line) < len(line):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    os.fsync(descriptor)


def strict(value: Any) -> Any:
    """Replace NaN and infinity, which JSON does not have, by None."""
    if isinstance(value, dict):
        return {name: strict(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [strict(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
