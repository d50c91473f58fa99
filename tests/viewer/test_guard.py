"""The server is safe: other sites, hostile files and crowds are refused, and it goes on serving."""

import http.client
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.request
import zlib
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from serving import Served, png, serve, small_tokenizer

from lgq.viewer.api import api_of
from lgq.viewer.code_gallery import Model
from lgq.viewer.guard import Guard, Limits, Refusal
from lgq.viewer.server import Opening, listening
from lgq.viewer.studio import Studio
from lgq.viewer.view import _require_path, view

HOST = {"host": "127.0.0.1:8642"}


def guard(clock=lambda: 0.0, **limits) -> Guard:
    async def app(scope, receive, send):
        raise AssertionError("not called")

    return Guard(app, port=8642, limits=Limits(**limits), uploads=("/api/pictures",), clock=clock)


@pytest.mark.parametrize(
    "host", ["evil.example:8642", "127.0.0.1", "127.0.0.1:80", "127.0.0.1.evil.example:8642", "", None]
)
def test_another_host_is_refused(host):
    headers = {} if host is None else {"host": host}
    with pytest.raises(Refusal) as refusal:
        guard()._check("GET", "/", headers)
    assert refusal.value.status == 421


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "https://127.0.0.1:8642"},
        {"origin": "http://127.0.0.1:9999"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"},
    ],
)
def test_requests_of_other_sites_are_refused(headers):
    with pytest.raises(Refusal) as refusal:
        guard()._check("POST", "/api/pictures", HOST | headers)
    assert refusal.value.status == 403


def test_the_pages_own_requests_and_a_link_to_it_are_served():
    check = guard()._check
    check("POST", "/api/decode", HOST | {"origin": "http://127.0.0.1:8642", "sec-fetch-site": "same-origin"})
    check("GET", "/", {"host": "localhost:8642", "sec-fetch-site": "none"})
    check("GET", "/", HOST | {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"})


def test_only_so_many_requests_come_through_at_once_and_per_second():
    now = [0.0]
    check = guard(lambda: now[0], burst=3, requests_per_second=2.0)._check
    for _ in range(3):
        check("GET", "/", HOST)
    with pytest.raises(Refusal, match="too many"):
        check("GET", "/", HOST)
    now[0] = 0.6  # one more
    check("GET", "/", HOST)
    with pytest.raises(Refusal, match="too many"):
        check("GET", "/", HOST)


@pytest.mark.parametrize("length", ["-1", "1e9", "", "9" * 30, "²"])
def test_a_strange_length_is_refused(length):
    with pytest.raises(Refusal) as refusal:
        guard()._check("POST", "/api/pictures", HOST | {"content-length": length})
    assert refusal.value.status in (400, 413)


def test_another_host_or_origin_is_refused_over_the_wire(served: Served):
    assert served.ask("/", host="rebound.example").status == 421
    assert served.post("/api/pictures", png(16, 16), origin="http://evil.example").status == 403
    assert served.ask("/api/state", sec_fetch_site="cross-site").status == 403
    assert served.ask("/", method="DELETE").status == 405
    assert served.ask("/api/state").status == 200


def test_an_upload_of_a_gigabyte_is_refused_before_it_is_sent(served: Served):
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=10)
    connection.putrequest("POST", "/api/pictures")
    connection.putheader("content-length", str(2**30))
    connection.endheaders()
    began = time.monotonic()
    answer = connection.getresponse()
    assert (answer.status, time.monotonic() - began < 5) == (413, True)
    assert b"1,073,741,824 bytes" in answer.read()
    connection.close()


def test_an_upload_that_hides_its_length_is_cut_off(served: Served):
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=30)
    sent = []

    def endless():
        for _ in range(2**10):
            sent.append(2**20)
            yield bytes(2**20)

    try:
        connection.request(
            "POST", "/api/pictures", endless(), {"transfer-encoding": "chunked"}, encode_chunked=True
        )
        assert connection.getresponse().status == 413
    except (BrokenPipeError, ConnectionResetError):
        pass  # the server has closed the connection while we were still sending
    connection.close()
    assert sum(sent) < 2**28
    assert served.ask("/api/state").status == 200


def huge_png(side: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    pixels = chunk(b"IDAT", zlib.compress(bytes(10**6)))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + pixels + chunk(b"IEND", b"")


def test_a_picture_of_60000_by_60000_pixels_is_refused(served: Served):
    answer = served.post("/api/pictures", huge_png(60_000))
    assert answer.status == 422
    assert "pixels" in answer.error


@pytest.mark.parametrize(
    "body", [b"", b"/etc/passwd", b"file:///etc/passwd", b"%PDF-1.4", b"<svg xmlns='x'/>", b"GIF89a"]
)
def test_what_is_no_picture_costs_one_sentence(served: Served, body: bytes):
    answer = served.post("/api/pictures", body, x_picture_name="..%2F..%2Fetc%2Fpasswd%0A")
    assert answer.status == 422
    assert len(answer.error.splitlines()) == 1
    assert "root:" not in answer.error


def test_the_name_of_a_file_that_is_no_picture_is_left_to_the_page(served: Served):
    answer = served.post("/api/pictures", b"text", x_picture_name="text.jpg")
    assert answer.error.startswith("not a readable image")


@pytest.mark.parametrize(
    "path",
    [
        "/page/../server.py",
        "/page/..%2Fserver.py",
        "/page//etc/passwd",
        "/etc/passwd",
        "/api/thumbnail?picture=/etc/passwd",
        "/api/encoding?model=0&picture=../0&size=128",
        "/api/encoding?model=0&picture=0x1&size=128",
        "/api/code?model=0&stage=0&code=-1",
    ],
)
def test_a_path_in_place_of_a_name_or_number_leads_nowhere(served: Served, path: str):
    answer = served.ask(path)
    assert answer.status in (404, 422)
    assert b"root:" not in answer.body
    assert b"import" not in answer.body


def test_a_request_that_does_not_arrive_is_given_up():
    studio = Studio([Model("plain", small_tokenizer())])
    for served in serve(studio, Limits(body_seconds=0.2)):
        with socket.create_connection(("127.0.0.1", served.port), timeout=10) as connection:
            head = (
                f"POST /api/pictures HTTP/1.1\r\nHost: 127.0.0.1:{served.port}\r\nContent-Length: 99\r\n\r\n"
            )
            connection.sendall(head.encode() + b"half")
            assert b" 408 " in connection.recv(100)


def test_a_thousand_requests_at_once_are_served_or_refused_and_leave_no_harm():
    studio = Studio([Model("plain", small_tokenizer())])
    at_once, most, lock = [0], [0], threading.Lock()
    encode = studio.encode

    def counted(*arguments):
        with lock:
            at_once[0] += 1
            most[0] = max(most[0], at_once[0])
        try:
            return encode(*arguments)
        finally:
            with lock:
                at_once[0] -= 1

    studio.encode = counted  # type: ignore[method-assign]
    for served in serve(studio):

        def request(number: int, served: Served = served) -> int | str:
            try:
                return served.ask(f"/api/encoding?model=0&picture={number % 8}&size=128").status
            except OSError as error:
                return type(error).__name__
            except http.client.HTTPException as error:
                return type(error).__name__

        with ThreadPoolExecutor(200) as pool:
            statuses = Counter(pool.map(request, range(1000)))
        assert statuses[200] > 0
        assert set(statuses) - {200, 429, 503, "ConnectionResetError", "RemoteDisconnected"} == set()
        assert statuses[429] + statuses[503] > 0
        assert most[0] <= Limits().at_a_time
        time.sleep(0.1)
        assert served.ask("/api/state").status == 200


def test_the_page_is_served_to_this_machine_only(monkeypatch):
    addresses = []
    monkeypatch.setattr(
        "uvicorn.Server.run", lambda self, sockets: addresses.append(sockets[0].getsockname())
    )
    monkeypatch.setattr(Studio, "study", lambda self: None)
    started = []
    view([small_tokenizer()], port=0, on_start=started.append)
    ((host, port),) = addresses
    assert host == "127.0.0.1"
    assert started == [f"http://127.0.0.1:{port}/"]


def test_the_page_is_there_before_its_models():
    opening = Opening()
    opening.doing = "loading photo-f8"
    with listening(opening) as port:
        served = Served(Studio([Model("plain", small_tokenizer())]), port)
        assert served.ask("/").status == served.ask("/page/main.js").status == 200
        waiting = served.ask("/api/state")
        assert (waiting.status, waiting.json) == (202, {"opening": "loading photo-f8"})
        assert served.ask("/api/state", host="evil.example").status == 421
        opening.api = api_of(served.studio)
        assert served.ask("/api/state").json["models"][0]["name"] == "plain"


def test_the_page_is_served_without_pytorch():
    code = "import lgq.cli.view, lgq.viewer.server, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_model_that_cannot_be_loaded_ends_the_command(tmp_path):
    with pytest.raises(ValueError, match="nowhere"):
        view([tmp_path / "nowhere"], port=0, on_start=lambda address: None)


@pytest.mark.parametrize("name", ["nope", "nope.jpg", "nope.tar"])
def test_data_that_do_not_exist_are_named_before_the_address(tmp_path, name):
    started = []
    with pytest.raises(ValueError, match=f"{name} does not exist: give a folder of images"):
        view(data=tmp_path / name, port=0, on_start=started.append)
    assert started == []


@pytest.mark.parametrize("data", ["sample", "sample:whole", "no-{000..001}.tar", "pipe:cat a", None, "."])
def test_data_that_are_no_plain_path_are_left_to_those_who_open_them(data):
    _require_path(data)


def test_a_model_of_the_wrong_kind_is_named_before_the_address(tmp_path):
    generator = tmp_path / "generator"
    generator.mkdir()
    (generator / "config.json").write_text('{"transformer": {}}')
    started = []
    with pytest.raises(ValueError, match=f"is a generator, .*: use `generator` {generator}"):
        view(["photo-f8", generator], port=0, on_start=started.append)
    with pytest.raises(ValueError, match="photo-f8 is a tokenizer, and this needs a generator"):
        view(generator="photo-f8", port=0, on_start=started.append)
    with pytest.raises(
        ValueError, match="holds no run and no saved model: give a folder of images as `data`"
    ):
        view([tmp_path], port=0, on_start=started.append)
    with pytest.raises(ValueError, match="no directory photo-f9: did you mean photo-f8"):
        view(["photo-f9"], port=0, on_start=started.append)
    assert not started


@pytest.mark.parametrize("after", ["the address", "the first picture"])
def test_ctrl_c_ends_the_page_while_it_computes(after):
    command = [sys.executable, "-m", "lgq", "view", "--port", "0"]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # A background job of a shell starts with the signal ignored, and so would what it starts.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    ) as process:
        address = re.search(r"http://127.0.0.1:(\d+)/", process.stdout.readline())
        while after == "the first picture":  # then the codes are studied
            time.sleep(0.1)
            with urllib.request.urlopen(f"{address[0]}api/state") as answer:
                if answer.status == 200:
                    break
        process.send_signal(signal.SIGINT)
        try:
            said, _ = process.communicate(timeout=60)
        finally:
            process.kill()
    assert "terminate called" not in said
    assert process.returncode == 130


def test_a_closed_studio_ends_its_study():
    studio = Studio([Model("plain", small_tokenizer())])
    studio.close()
    studio.study()
    assert not studio.models[0].galleries
    assert not studio.models[0].problem


def test_a_port_in_use_is_named():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ValueError, match=f"port {port} .* cannot be used"):
            view([small_tokenizer()], port=port)
