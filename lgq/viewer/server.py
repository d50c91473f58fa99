"""The server behind the page: it shows the page at once, and answers it as soon as the models are there."""

import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from lgq.viewer import page_files
from lgq.viewer.guard import Guard, Limits

HOST = "127.0.0.1"
UPLOADS = ("/api/pictures", "/api/token-file")
"""Paths whose bodies are files."""
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
}
_MOST_CONNECTIONS = 128


class Opening:
    """ASGI application that takes the place of an API until there is one: it says what is being done."""

    def __init__(self) -> None:
        self.api: ASGIApp | None = None
        self.doing = "starting"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = self.api or JSONResponse({"opening": self.doing}, 202)
        await answer(scope, receive, send)


def build_app(api: ASGIApp, *, port: int, limits: Limits | None = None) -> Guard:
    """Return the ASGI application of the page and its API, behind a guard."""
    routes = [
        Route("/", _page("index.html")),
        *(Route(f"/page/{name}", _page(name)) for name in page_files() if name != "index.html"),
        Mount("/api", api),
    ]
    return Guard(Starlette(routes=routes), port=port, limits=limits or Limits(), uploads=UPLOADS)


def _page(name: str) -> Callable[[Request], Awaitable[Response]]:
    body, kind = page_files()[name].encode(), _TYPES["." + name.rpartition(".")[2]]

    async def serve(_: Request) -> Response:
        return Response(body, media_type=kind)

    return serve


def build_server(app: ASGIApp) -> uvicorn.Server:
    """Return a server for a person and a browser."""
    settings = uvicorn.Config(
        app,
        log_level="warning",
        server_header=False,
        limit_concurrency=_MOST_CONNECTIONS,
        timeout_keep_alive=20,
        timeout_graceful_shutdown=1,
    )
    return uvicorn.Server(settings)


@contextmanager
def served(studio: Any, limits: Limits | None = None) -> Iterator[str]:
    """Serve the page of a studio from a thread, on a free port, for scripts and tests; yields its address."""
    from lgq.viewer.api import api_of  # imports torch, which the page itself does without

    with listening(api_of(studio, limits), limits) as port:
        yield f"http://{HOST}:{port}/"


@contextmanager
def listening(api: ASGIApp, limits: Limits | None = None) -> Iterator[int]:
    """Serve the page and an API from a thread; yields the port."""
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        port = listener.getsockname()[1]
        server = build_server(build_app(api, port=port, limits=limits))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        while not server.started:
            time.sleep(0.01)
        try:
            yield port
        finally:
            server.should_exit = True
            thread.join()
