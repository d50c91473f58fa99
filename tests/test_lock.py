"""Two processes never have one run directory, and a dead one never keeps it."""

import errno
import fcntl
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lgq.files import LOCK_FILE, LockError, directory_lock

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


def said_by(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_a_second_process_is_told_who_holds_the_run(tmp_path):
    with other_process(tmp_path) as holder:
        assert said_by(holder) == "held"
        whose = f"in use by process {holder.pid} on {socket.gethostname()}: wait for it, stop it, or choose"
        with pytest.raises(LockError, match=whose) as caught, directory_lock(tmp_path):
            pass
        assert str(tmp_path) in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_second_process_is_kept_out_of_ours(tmp_path):
    with directory_lock(tmp_path), other_process(tmp_path) as other:
        assert f"in use by process {os.getpid()}" in said_by(other)


def test_a_refused_process_leaves_the_lock_with_its_holder(tmp_path):
    with directory_lock(tmp_path):
        for _ in range(2):
            with pytest.raises(LockError, match=f"process {os.getpid()} "), directory_lock(tmp_path):
                pass


def test_a_killed_holder_leaves_no_lock(tmp_path):
    with other_process(tmp_path) as holder:
        assert said_by(holder) == "held"
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        with directory_lock(tmp_path):
            pass


def test_a_worker_that_outlives_its_killed_trainer_keeps_no_lock(tmp_path):
    with other_process(tmp_path, "worker") as holder:
        lines = {said_by(holder), said_by(holder)}
        worker = int(next(line for line in lines if line != "held").split()[1])
        try:
            holder.send_signal(signal.SIGKILL)
            holder.wait()
            os.kill(worker, 0)
            with directory_lock(tmp_path):
                pass
        finally:
            os.kill(worker, signal.SIGKILL)


def test_a_block_that_fails_lets_go(tmp_path):
    with pytest.raises(RuntimeError), directory_lock(tmp_path):
        raise RuntimeError
    with directory_lock(tmp_path), other_process(tmp_path) as other:
        assert "in use" in said_by(other)


def test_a_missing_run_directory_is_made(tmp_path):
    with directory_lock(tmp_path / "a" / "b"):
        assert (tmp_path / "a" / "b").is_dir()


def test_a_file_in_place_of_the_directory_is_refused_in_one_line(tmp_path):
    (tmp_path / "run").write_text("")
    with pytest.raises(LockError, match=r"^cannot lock .*run: .*; make the directory writable, or choose"):
        directory_lock(tmp_path / "run").__enter__()


def test_a_holder_without_a_readable_name_is_still_a_holder(tmp_path):
    with directory_lock(tmp_path):
        for content in ("", "nonsense", "[]"):
            (tmp_path / LOCK_FILE).write_text(content)
            with pytest.raises(LockError, match="in use by another process"), directory_lock(tmp_path):
                pass


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


def test_a_lock_leaves_no_open_file_behind(tmp_path):
    before = len(os.listdir("/proc/self/fd"))
    with directory_lock(tmp_path), pytest.raises(LockError), directory_lock(tmp_path):
        pass
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_close_that_fails_hides_no_error(tmp_path, monkeypatch):
    close = os.close

    def fail(descriptor: int) -> None:
        close(descriptor)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "close", fail)
    with pytest.raises(RuntimeError, match="the reason"), directory_lock(tmp_path):
        raise RuntimeError("the reason")
