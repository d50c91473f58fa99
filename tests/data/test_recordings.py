"""Recordings are clips of one length, whatever holds the files."""

import struct
import tarfile
import wave
from pathlib import Path

import pytest
import torch

from lgq.data.images import DataError
from lgq.data.recordings import Recordings


def record(path: Path, samples: list[int], *, channels: int = 1) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(2)
        file.setframerate(8_000)
        file.writeframes(struct.pack(f"<{len(samples)}h", *samples))
    return path


def test_clips_are_scaled_to_their_peak_and_cut_or_followed_by_silence(tmp_path):
    record(tmp_path / "a.wav", [100, -200, 50])
    record(tmp_path / "deeper" / "b.wav", [7, 7, 7, 7, 7, 7])
    record(tmp_path / "silence.wav", [0, 0])
    clips = Recordings(tmp_path, length=4).clips
    assert torch.equal(clips, torch.tensor([[0.5, -1, 0.25, 0], [1, 1, 1, 1], [0, 0, 0, 0]]))


def test_a_tar_holds_the_same_recordings_as_its_folder(tmp_path):
    files = [record(tmp_path / "folder" / f"{i}.wav", [i, 2 * i, 5]) for i in range(1, 4)]
    (tmp_path / "folder" / "notes.txt").write_text("not sound")
    with tarfile.open(tmp_path / "all.tar", "w") as archive:
        for file in reversed(files):
            archive.add(file, file.name)
    folder, packed = (Recordings(tmp_path / name, length=8) for name in ("folder", "all.tar"))
    assert len(packed) == 3
    assert torch.equal(folder.clips, packed.clips)
    assert folder.fingerprint == packed.fingerprint
    record(files[0], [9])
    assert Recordings(tmp_path / "folder", length=8).fingerprint != packed.fingerprint


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("", None, r"has no \.wav files"),
        ("x.wav", b"RIFF", r"x\.wav is no WAV file"),
        ("x.wav", b"", r"x\.wav is no WAV file: it is cut short"),
        ("x.wav", b"\0" * 99, r"x\.wav is no WAV file: file does not start with RIFF id"),
    ],
)
def test_what_is_no_recording_is_named(tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        Recordings(tmp_path, length=8)


def test_other_layouts_and_places_are_refused(tmp_path):
    record(tmp_path / "x.wav", [1, 2], channels=2)
    with pytest.raises(DataError, match="2 channels of 16 bits: recordings must have one of 16 bits"):
        Recordings(tmp_path, length=8)
    for place in (tmp_path / "absent.tar", tmp_path / "x.wav"):
        with pytest.raises(DataError, match=r"neither a folder nor a \.tar"):
            Recordings(place, length=8)
