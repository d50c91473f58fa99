"""A file or a directory is replaced as a whole, wherever a system call fails or the machine stops."""

import json
import os
import shutil
from pathlib import Path

import pytest
from faulty_disk import FAULTS, FaultyDisk, disks_with

from lgq.files import (
    DamagedFileError,
    DiskError,
    Fingerprint,
    make_directory,
    replace_directory,
    replace_file,
    replace_json,
    sealed_json,
    unsealed_json,
)

OLD, NEW = b"old" * 10, b"new" * 20


def attempt_file(folder: Path, disk: FaultyDisk) -> bool:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / "file").write_bytes(OLD)
    done = False
    with disk.in_use():
        try:
            replace_file(folder / "file", NEW)
            done = True
        except OSError:
            pass
    return done


@pytest.mark.parametrize("fault", FAULTS)
def test_a_file_is_old_or_new_whatever_fails(tmp_path, fault):
    healthy = FaultyDisk()
    assert attempt_file(tmp_path / "run", healthy)
    for disk in disks_with(fault, healthy.calls):
        done = attempt_file(tmp_path / "run", disk)
        assert (tmp_path / "run" / "file").read_bytes() in ((NEW,) if done else (OLD, NEW)), disk.at
        replace_file(tmp_path / "run" / "file", NEW)
        assert [path.name for path in (tmp_path / "run").iterdir()] == ["file"]


def write_unsynced(path: Path, *, stop: bool = False) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)
    os.write(descriptor, NEW)
    os.close(descriptor)
    if stop:
        raise KeyboardInterrupt


def attempt_directory(folder: Path, disk: FaultyDisk) -> bool:
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "best").mkdir(parents=True)
    (folder / "best" / "weights").write_bytes(OLD)
    done = False
    with disk.in_use():
        try:
            with replace_directory(folder / "best") as best:
                write_unsynced(best / "weights")
            done = True
        except OSError:
            pass
    return done


@pytest.mark.parametrize("fault", FAULTS)
def test_a_directory_is_old_or_new_whatever_fails(tmp_path, fault):
    healthy = FaultyDisk()
    assert attempt_directory(tmp_path / "run", healthy)
    for disk in disks_with(fault, healthy.calls):
        done = attempt_directory(tmp_path / "run", disk)
        final, replaced = tmp_path / "run" / "best", tmp_path / "run" / "best.replaced"
        found = final if final.exists() else replaced
        assert (found / "weights").read_bytes() in ((NEW,) if done else (OLD, NEW)), disk.at


def test_a_directory_whose_making_fails_leaves_no_trace(tmp_path):
    with pytest.raises(KeyboardInterrupt), replace_directory(tmp_path / "a" / "best") as best:
        write_unsynced(best / "weights", stop=True)
    assert list((tmp_path / "a").iterdir()) == []


def test_new_directories_are_durable_with_all_their_parents(tmp_path):
    with FaultyDisk("power cut", at=10**6).in_use():
        make_directory(tmp_path / "a" / "b" / "c")
    assert (tmp_path / "a" / "b" / "c").is_dir()


def test_json_is_written_for_people_and_comes_back(tmp_path):
    value = {"name": "\udcff/é", "list": [1, 2.5, None]}
    replace_json(tmp_path / "config.json", value)
    raw = (tmp_path / "config.json").read_bytes()
    assert json.loads(raw) == value
    assert raw.count(b"\n") > 4


def test_json_refuses_what_other_readers_cannot_read(tmp_path):
    with pytest.raises(ValueError, match="JSON"):
        replace_json(tmp_path / "config.json", {"loss": float("nan")})
    assert list(tmp_path.iterdir()) == []


def test_a_sealed_file_notices_every_changed_bit():
    sealed = sealed_json({"step": 123, "name": "é"})
    assert unsealed_json(sealed) == {"step": 123, "name": "é"}
    for bit in range(8 * len(sealed)):
        changed = bytearray(sealed)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(DamagedFileError):
            unsealed_json(bytes(changed))


@pytest.mark.parametrize(
    "data", [b"", b"1", b"[]", b'"x"', b"{}", b"[" * 100_000, b"\xff", b'{"checksum": 1}']
)
def test_what_was_never_sealed_is_refused(data):
    with pytest.raises(DamagedFileError):
        unsealed_json(data)


def test_a_fingerprint_is_the_same_in_memory_and_on_disk(tmp_path):
    (tmp_path / "file").write_bytes(NEW)
    assert Fingerprint.of(NEW) == Fingerprint.of_file(tmp_path / "file")
    with pytest.raises(DamagedFileError, match="30 bytes instead of 60"):
        Fingerprint.of(NEW).require(Fingerprint.of(OLD))
    with pytest.raises(DamagedFileError, match="other bytes"):
        Fingerprint.of(NEW).require(Fingerprint.of(NEW[::-1]))


def test_a_directory_that_another_process_makes_meanwhile_is_as_good(tmp_path, monkeypatch):
    really_make = os.mkdir

    def make_twice(path, *rest):
        really_make(path, *rest)
        really_make(path, *rest)

    monkeypatch.setattr(os, "mkdir", make_twice)
    make_directory(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()


def test_a_file_in_the_place_of_a_directory_is_not_taken_for_one(tmp_path):
    (tmp_path / "a").touch()
    with pytest.raises(DiskError, match="File exists"):
        make_directory(tmp_path / "a")
