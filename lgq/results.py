"""Results records: what evaluations and experiments leave behind, and reports read; a JSON object a line.

    {"kind": "tokenizer", "command": [...], "config": {...}, "seed": 0, "data": "...", "images": 10000,
     "metrics": {"psnr": 21.3, "rfid": 12.1}, "absent": {"lpips": "why"}, "fid": {...}, ...}

A metric that is no finite number is null. Records are only ever added, each in one write, so several
processes may share a file. A killed one leaves at most a torn line. By the `checksum` that every line ends
with, readers know a line that is torn or was changed, and leave it out with a warning.
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
    """Results that cannot be written or read; the message says why, and the way out."""


def append_result(file: str | Path, record: dict[str, Any]) -> None:
    """Add a record, on the disk when this returns."""
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
            f"cannot write {path} ({error.strerror or error}): choose another place."
        ) from error


def read_results(file: str | Path) -> list[dict[str, Any]]:
    """Every whole record of a file, in the order in which they came."""
    try:
        lines = Path(file).read_bytes().splitlines()
    except OSError as error:
        raise ResultsError(f"cannot read {file} ({error.strerror or error}): check the path.") from error
    records = [_record(line) for line in lines]
    for number, record in enumerate(records, 1):
        if record is None and lines[number - 1]:
            _log.warning("left out line %d of %s, which is torn or was changed", number, file)
    return [record for record in records if record is not None]


def _record(line: bytes) -> dict[str, Any] | None:
    try:
        return unsealed_json(line + b"\n", indent=None)
    except DamagedFileError:
        return None


def _write(descriptor: int, line: bytes) -> None:
    size = os.fstat(descriptor).st_size
    torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
    line = b"\n" + line if torn else line
    if os.write(descriptor, line) < len(line):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    os.fsync(descriptor)


def strict(value: Any) -> Any:
    """A record as JSON can hold it, which knows neither NaN nor infinity."""
    if isinstance(value, dict):
        return {name: strict(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [strict(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
