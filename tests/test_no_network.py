"""Training, encoding and evaluating use no network."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

GUARD = """
import os, socket

def _require_local(host):
    if host not in (None, "", "127.0.0.1", "::1", "localhost", socket.gethostname()):
        with open(os.environ["LGQ_TEST_CALLS"], "a") as file:
            file.write(f"{host}\\n")
        raise OSError("there is no network in this test")

def _guarded(method):
    def guard(self, address, *rest):
        _require_local(None if self.family == socket.AF_UNIX else address[0])
        return method(self, address, *rest)
    return guard

def _resolve(host, *rest, _before=socket.getaddrinfo, **options):
    _require_local(host)
    return _before(host, *rest, **options)

for name in ("connect", "connect_ex"):
    setattr(socket.socket, name, _guarded(getattr(socket.socket, name)))
socket.getaddrinfo = _resolve
"""
TINY = "--image-size 32 --backbone.widths 8 8 --backbone.groups 4 --batch-size 2 --workers 0 --steps 2"
TINY += " --schedule.warmup-steps 0 --codebook-size 64 --loss.lpips 0 --loss.gan 0 --best-by l1"
TINY += " --validation-images 2"
EVERYTHING = f"""
from lgq.cli import main
for line in '''
train pocket-lgq --data sample --val-data sample:held-out --out run {TINY}
encode run --data sample:held-out --out tokens --workers 0
evaluate run --data sample:held-out --image-size 32 --workers 0
weights status
'''.strip().splitlines():
    main(line.split())
"""


def run(code: str, folder: Path) -> tuple["subprocess.CompletedProcess[str]", list[str]]:
    """Run code in another process that refuses and records every connection; return the connections."""
    (folder / "sitecustomize.py").write_text(GUARD)
    calls = folder / "calls"
    calls.touch()
    inherited = os.environ.get("PYTHONPATH", "")
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(folder), inherited]),
        "LGQ_TEST_CALLS": str(calls),
        "LGQ_CACHE": str(folder / "cache"),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    return done, calls.read_text().splitlines()


def test_training_encoding_and_evaluating_need_no_network(tmp_path):
    done, calls = run(EVERYTHING, tmp_path)
    assert done.returncode == 0, done.stderr
    assert calls == []
    assert (tmp_path / "tokens" / "tokens.json").exists()


@pytest.mark.parametrize("host", ["192.0.2.1", "nowhere.invalid"])
def test_a_connection_would_be_recorded(host, tmp_path):
    done, calls = run(f"import socket; socket.create_connection(({host!r}, 80), 1)", tmp_path)
    assert done.returncode != 0
    assert calls[0].count(host) == 1
