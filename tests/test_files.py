"""Files and directories are replaced as a whole, whatever fails, and a lock has one living holder."""

import errno
import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from faulty_disk import FAULTS, FaultyDisk, disks_with

from lgq.files import (
    LOCK_FILE,
    DamagedFileError,
    DiskError,
    Fingerprint,
    LockError,
    directory_lock,
    make_directory,
    replace_directory,
    replace_file,
    replace_json,
    sealed_json,
    unsealed_json,
)

OLD, NEW = b"old" * 10, b"new" * 20


def attempt(replace: Callable[[Path], None], folder: Path, disk: FaultyDisk) -> bool:
    """Replace `best/weights` on a disk; tell whether that succeeded."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "best").mkdir(parents=True)
    (folder / "best" / "weights").write_bytes(OLD)
    done = False
    with disk.in_use(), suppress(OSError):  # a killed process ends the block
        replace(folder / "best")
        done = True
    return done


def replace_weights(folder: Path) -> None:
    replace_file(folder / "weights", NEW)


def replace_all(folder: Path) -> None:
    with replace_directory(folder) as best:
        write_unsynced(best / "weights")


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("replace", [replace_weights, replace_all])
def test_a_file_and_a_directory_are_old_or_new_whatever_fails(tmp_path, replace, fault):
    run, healthy = tmp_path / "run", FaultyDisk()
    assert attempt(replace, run, healthy)
    for disk in disks_with(fault, healthy.calls):
        done = attempt(replace, run, disk)
        present = run / "best" if (run / "best").exists() else run / "best.replaced"
        assert (present / "weights").read_bytes() in ((NEW,) if done else (OLD, NEW)), disk.at
        if replace is replace_weights:
            replace(present)
            assert [path.name for path in present.iterdir()] == ["weights"]


def write_unsynced(path: Path, *, stop: bool = False) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)
    os.write(descriptor, NEW)
    os.close(descriptor)
    if stop:
        raise KeyboardInterrupt


def test_a_directory_whose_making_fails_leaves_no_trace(tmp_path):
    with pytest.raises(KeyboardInterrupt), replace_directory(tmp_path / "a" / "best") as best:
        write_unsynced(best / "weights", stop=True)
    assert list((tmp_path / "a").iterdir()) == []


def test_new_directories_are_durable_with_all_their_parents(tmp_path):
    with FaultyDisk("power cut", at=10**6).in_use():
        make_directory(tmp_path / "a" / "b" / "c")
    assert (tmp_path / "a" / "b" / "c").is_dir()


def test_json_is_written_for_people_and_refuses_what_other_readers_cannot_read(tmp_path):
    with pytest.raises(ValueError, match="JSON"):
        replace_json(tmp_path / "config.json", {"loss": float("nan")})
    assert list(tmp_path.iterdir()) == []
    value = {"name": "\udcff/é", "list": [1, 2.5, None]}
    replace_json(tmp_path / "config.json", value)
    raw = (tmp_path / "config.json").read_bytes()
    assert json.loads(raw) == value
    assert raw.count(b"\n") > 4


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


def test_a_directory_that_another_process_makes_is_as_good_and_a_file_is_not(tmp_path, monkeypatch):
    really_make = os.mkdir

    def make_twice(path, *rest):
        really_make(path, *rest)
        really_make(path, *rest)

    monkeypatch.setattr(os, "mkdir", make_twice)
    make_directory(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
    (tmp_path / "c").touch()
    with pytest.raises(DiskError, match="File exists"):
        make_directory(tmp_path / "c")


HOLDER = """
import os, sys, time
from lgq import files as lock
try:
    with lock.directory_lock(sys.argv[1]):
        if "worker" in sys.argv and os.fork() == 0:
            os.write(1, f"worker {os.getpid()}\\n".encode())
            time.sleep(60)
        os.write(1, b"held\\n")
        sys.stdin.read()
except lock.LockError as error:
    print(error, flush=True)
"""


@contextmanager
def other_process(directory: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", HOLDER, str(directory), *options]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def test_a_second_process_is_told_who_holds_the_run(tmp_path):
    with other_process(tmp_path) as holder:
        assert holder.stdout.readline().strip() == "held"
        whose = f"in use by process {holder.pid} on {socket.gethostname()}: wait for it, stop it, or choose"
        with pytest.raises(LockError, match=whose) as caught, directory_lock(tmp_path):
            pass
        assert str(tmp_path) in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_block_that_fails_lets_go_and_a_second_process_is_kept_out_of_ours(tmp_path):
    with pytest.raises(RuntimeError), directory_lock(tmp_path):
        raise RuntimeError
    with directory_lock(tmp_path):
        for _ in range(2):  # a refused process leaves the lock with its holder
            with other_process(tmp_path) as other:
                assert f"in use by process {os.getpid()}" in other.stdout.readline().strip()


def test_neither_a_killed_holder_nor_a_worker_that_outlives_it_keeps_the_lock(tmp_path):
    with other_process(tmp_path, "worker") as holder:
        lines = {holder.stdout.readline().strip(), holder.stdout.readline().strip()}
        worker = int(next(line for line in lines if line != "held").split()[1])
        try:
            holder.send_signal(signal.SIGKILL)
            holder.wait()
            os.kill(worker, 0)
            with directory_lock(tmp_path):
                pass
        finally:
            os.kill(worker, signal.SIGKILL)


def test_a_missing_directory_is_made_and_a_file_in_its_place_is_refused(tmp_path):
    with directory_lock(tmp_path / "a" / "b"):
        assert (tmp_path / "a" / "b").is_dir()
    (tmp_path / "run").write_text("")
    with pytest.raises(LockError, match=r"^cannot lock .*run: .*; make the directory writable, or choose"):
        directory_lock(tmp_path / "run").__enter__()


def test_a_holder_without_a_readable_name_is_still_a_holder_and_no_file_stays_open(tmp_path):
    before = len(os.listdir("/proc/self/fd"))
    with directory_lock(tmp_path):
        for content in ("", "nonsense", "[]"):
            (tmp_path / LOCK_FILE).write_text(content)
            with pytest.raises(LockError, match="in use by another process"), directory_lock(tmp_path):
                pass
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EIO])
def test_a_file_system_without_locks_warns_and_a_broken_one_refuses(tmp_path, monkeypatch, caplog, number):
    def fail(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", fail)
    if number == errno.EIO:
        with pytest.raises(LockError, match="cannot lock"), directory_lock(tmp_path):
            pass
    else:
        with directory_lock(tmp_path):
            assert "has no locks" in caplog.text


def test_a_close_that_fails_hides_no_error(tmp_path, monkeypatch):
    close = os.close

    def fail(descriptor: int) -> None:
        close(descriptor)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "close", fail)
    with pytest.raises(RuntimeError, match="the reason"), directory_lock(tmp_path):
        raise RuntimeError("the reason")
