"""Recordings of one channel: WAV files of 16 bits, in a folder or a tar, as clips of one length."""

import hashlib
import io
import tarfile
import wave
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float32
from torch import Tensor

from lgq.data.images import DataError

_SUFFIX = ".wav"
_FULL_SCALE = 2**15


class Recordings:
    """All recordings of a folder or a tar, in the order of their names.

    clips: each with its largest sample at 1 or -1, cut at the end or followed by silence.
    fingerprint: hash of the files' contents.
    """

    clips: Float32[Tensor, "n t"]
    fingerprint: str

    def __init__(self, path: str | Path, *, length: int):
        digest, clips = hashlib.sha256(), []
        for name, data in sorted(_files(Path(path).expanduser())):
            digest.update(hashlib.sha256(data).digest())
            clips.append(_clip(name, data, length))
        if not clips:
            raise DataError(f"{path} has no {_SUFFIX} files: name a folder or a .tar of recordings.")
        self.clips, self.fingerprint = torch.stack(clips), digest.hexdigest()[:16]

    def __len__(self) -> int:
        return len(self.clips)


def _files(path: Path) -> Iterator[tuple[str, bytes]]:
    if path.is_dir():
        yield from ((str(file), file.read_bytes()) for file in path.rglob(f"*{_SUFFIX}"))
        return
    try:
        with tarfile.open(path, "r:") as archive:
            for member in archive:
                if member.isfile() and member.name.endswith(_SUFFIX):
                    content = archive.extractfile(member)
                    yield member.name, content.read() if content else b""
    except (OSError, tarfile.TarError) as error:
        raise DataError(f"{path} is neither a folder nor a .tar that can be read: {error}") from error


def _clip(name: str, data: bytes, length: int) -> Float32[Tensor, " t"]:
    try:
        with wave.open(io.BytesIO(data)) as recording:
            layout = (recording.getnchannels(), recording.getsampwidth())
            samples = recording.readframes(length)
    except (wave.Error, EOFError) as error:
        raise DataError(f"{name} is no WAV file: {str(error) or 'it is cut short'}") from error
    if layout != (1, 2):
        raise DataError(
            f"{name} has {layout[0]} channels of {8 * layout[1]} bits: recordings must have one of 16 bits; "
            "convert them, for example with sox."
        )
    values = np.frombuffer(samples, "<i2").astype(np.float32) / _FULL_SCALE
    clip = torch.zeros(length)
    clip[: len(values)] = torch.from_numpy(values)
    return clip / clip.abs().max().clamp_min(1 / _FULL_SCALE)
