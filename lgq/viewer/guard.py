"""What the server refuses before anything is read: other sites, other names, too much, too often.

A page of another site can make a browser send requests to 127.0.0.1. Such requests carry the Host of another
name (DNS rebinding), the Origin of another page, or the mark `Sec-Fetch-Site: cross-site`: all three are
refused. So are bodies above a limit, more requests per second than a person makes, and more at a time than
the machine can serve.
"""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOCAL_NAMES = ("127.0.0.1", "localhost")
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
_METHODS = ("GET", "HEAD", "POST")


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How much a browser may ask for."""

    upload_bytes: int = 2**25
    """Size of an uploaded picture or token file in bytes."""
    body_bytes: int = 2**22
    """Size of any other request in bytes."""
    body_seconds: float = 30.0
    """Time in which a request has to arrive."""
    requests_per_second: float = 100.0
    """Rate of requests in the long run."""
    burst: int = 300
    """Number of requests that may come at once."""
    at_a_time: int = 32
    """Number of requests that are being served; others are told to come again."""


class Refusal(Exception):  # noqa: N818 - an answer rather than an error
    """A request that is answered with a status and a sentence."""

    def __init__(self, status: int, reason: str):
        super().__init__(reason)
        self.status, self.reason = status, reason


class Guard:
    """ASGI middleware that refuses requests, and adds security headers to every answer.

    port: the port that the server listens on, which is a part of the Host that browsers send.
    uploads: paths whose bodies may have `limits.upload_bytes`.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        port: int,
        limits: Limits,
        uploads: tuple[str, ...],
        clock: Callable[[], float] = time.monotonic,
    ):
        self._app, self._limits, self._uploads, self._clock = app, limits, uploads, clock
        self._hosts = {f"{name}:{port}" for name in LOCAL_NAMES}
        if port == 80:
            self._hosts |= set(LOCAL_NAMES)
        self._left, self._last, self._serving = float(limits.burst), clock(), 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                added = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]
                message = {**message, "headers": [*message.get("headers", []), *added]}
            await send(message)

        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        try:
            self._check(scope["method"], scope["path"], headers)
        except Refusal as refusal:
            await _answer(refusal, send_guarded)
            return
        self._serving += 1
        try:
            await self._app(scope, receive, send_guarded)
        finally:
            self._serving -= 1

    def _check(self, method: str, path: str, headers: Mapping[str, str]) -> None:
        if headers.get("host") not in self._hosts:
            raise Refusal(421, "this server answers to 127.0.0.1 and localhost only.")
        origin, site = headers.get("origin"), headers.get("sec-fetch-site", "none")
        if origin is not None and origin.removeprefix("http://") not in self._hosts:
            raise Refusal(403, "requests of other pages are refused.")
        opens_the_page = method == "GET" and path == "/" and headers.get("sec-fetch-mode") == "navigate"
        if site not in ("same-origin", "none") and not opens_the_page:
            raise Refusal(403, "requests of other sites are refused.")
        if method not in _METHODS:
            raise Refusal(405, f"{method} is not a method of this server.")
        length, most = headers.get("content-length", "0"), self.most_bytes(path)
        if not (length.isascii() and length.isdecimal()):
            raise Refusal(400, "the length of the request is not a number.")
        if int(length) > most:
            raise Refusal(413, f"{int(length):,} bytes are more than the {most:,} that are taken here.")
        now = self._clock()
        limits = self._limits
        self._left = min(limits.burst, self._left + (now - self._last) * limits.requests_per_second)
        self._last = now
        if self._left < 1:
            raise Refusal(429, "too many requests at once: wait a moment.")
        self._left -= 1
        if self._serving >= limits.at_a_time:
            raise Refusal(503, "the server is busy: wait a moment.")

    def most_bytes(self, path: str) -> int:
        """Return the largest size of a request to a path."""
        return self._limits.upload_bytes if path in self._uploads else self._limits.body_bytes


async def _answer(refusal: Refusal, send: Send) -> None:
    body = json.dumps({"error": refusal.reason}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    # What follows the head of the request is never read.
    headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
