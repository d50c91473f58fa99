"""What is a run, and what belongs to one; a Hub that does not answer costs no patience."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import huggingface_hub
import pytest

from lgq.hub import PretrainedError, find_file, published_weights, run_directory_of, run_settings, seal
from lgq.tokenizer import Tokenizer


def test_published_weights_belong_to_their_run(tmp_path):
    run = tmp_path / "run"
    for part in ("best", "last", "other"):
        (run / part).mkdir(parents=True)
    assert run_directory_of(run / "best") == run / "best", "a directory that only looks like one"
    for file in ("config.json", "environment.json"):
        (run / file).write_text('{"image_size": 8}')
    assert run_directory_of(run / "best") == run_directory_of(run / "last") == run_directory_of(run) == run
    assert run_directory_of(run / "other") == run / "other"


def test_a_foreign_config_makes_no_run(tmp_path):
    (tmp_path / "config.json").write_text('{"image_size": 8}')
    assert run_settings(tmp_path) is None


@pytest.fixture
def published(tmp_path):
    """A run directory with its last weights, as earlier versions left them."""
    (tmp_path / "last").mkdir()
    for file in ("config.json", "environment.json", "last/model.safetensors"):
        (tmp_path / file).write_text('{"image_size": 8}')
    return tmp_path / "last"


def test_weights_without_a_manifest_are_taken(published):
    assert published_weights(published.parent, "last") == published


def test_weights_are_those_that_the_run_sealed(published):
    seal(published, step=3)
    assert published_weights(published.parent, "last") == published
    (published / "model.safetensors").write_text('{"image_size": 9}')
    with pytest.raises(PretrainedError, match=r"is damaged: model.safetensors has other bytes .*: restore"):
        published_weights(published.parent, "last")


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port whose connections are taken, and never answered."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def refusing_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


@pytest.fixture
def failing_port() -> Iterator[int]:
    """A port at which a proxy says that it reaches nothing."""

    class Proxy(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_response(503)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Proxy) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


@pytest.fixture
def _empty_cache(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))


@pytest.mark.usefixtures("_empty_cache")
@pytest.mark.parametrize(
    ("port", "reason"),
    [
        ("silent_port", "no answer within 2 s"),
        ("refusing_port", "refused"),
        ("failing_port", "HTTP status 503"),
    ],
)
def test_a_hub_that_cannot_be_reached_is_one_line_within_three_seconds(port, reason, request, monkeypatch):
    endpoint = f"http://127.0.0.1:{request.getfixturevalue(port)}"
    monkeypatch.delenv("HF_HUB_ETAG_TIMEOUT", raising=False)
    began = time.monotonic()
    with pytest.raises(PretrainedError) as refusal:
        Tokenizer.from_pretrained("owner/name", endpoint=endpoint)
    assert time.monotonic() - began < 3
    line = str(refusal.value)
    assert reason in line
    assert "\n" not in line
    for way_out in ("HF_HUB_OFFLINE", "local directory", "network"):
        assert way_out in line


def test_a_slow_hub_has_the_time_that_the_user_gives_it(silent_port, monkeypatch):
    endpoint = f"http://127.0.0.1:{silent_port}"
    monkeypatch.setenv("HF_HUB_ETAG_TIMEOUT", "0.5")
    for options, words in (({}, "within 0.5 s"), ({"etag_timeout": 0.25}, "within 0.25 s")):
        with pytest.raises(PretrainedError, match=words):
            find_file("owner/name", "config.json", endpoint=endpoint, **options)


def test_a_copy_from_an_earlier_download_is_taken_when_the_hub_cannot_be_reached(
    tmp_path, refusing_port, monkeypatch
):
    copies = tmp_path / "models--owner--name"
    (copies / "refs").mkdir(parents=True)
    (copies / "refs" / "main").write_text("0" * 40)
    copy = copies / "snapshots" / ("0" * 40) / "config.json"
    copy.parent.mkdir(parents=True)
    copy.write_text("{}")
    options = {"endpoint": f"http://127.0.0.1:{refusing_port}", "cache_dir": str(tmp_path)}
    assert find_file("owner/name", "config.json", **options) == copy
    with pytest.raises(PretrainedError, match="no earlier download is in the cache"):
        find_file("owner/name", "model.safetensors", **options)


def test_a_hub_that_answers_is_asked_for_the_file(tmp_path, monkeypatch):
    asked = []

    def download(**request: str) -> str:
        asked.append(request["filename"])
        return str(tmp_path / "config.json")

    monkeypatch.setattr("lgq.hub._hub_silence", lambda *_: None)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    assert find_file("owner/name", "config.json") == tmp_path / "config.json"
    assert asked == ["config.json"]


def test_the_command_line_fails_in_one_line_without_a_network(silent_port, tmp_path):
    environment = {
        **os.environ,
        "HF_ENDPOINT": f"http://127.0.0.1:{silent_port}",
        "HF_HOME": str(tmp_path),
        "OMP_NUM_THREADS": "1",
    }
    words = ["evaluate", "owner/name", "--data", "sample", "--out", str(tmp_path / "out")]
    command = [sys.executable, "-m", "lgq", *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("lgq: there is no directory owner/name, and the Hugging Face Hub")
