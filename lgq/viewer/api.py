"""What the page asks of a studio, and how errors are answered.

Requests name models, pictures and codes by their numbers. Bodies are JSON or the bytes of a file; answers are
JSON or packets (`packets.py`). An error that the user can mend is one sentence, {"error": ...}.
"""

import asyncio
import io
import json
import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any, get_args
from urllib.parse import unquote

import numpy as np
import torch
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from lgq.config import from_json
from lgq.data.images import BrokenImage
from lgq.errors import LGQError
from lgq.models.sampling import Sampling
from lgq.viewer import NoSuchThing
from lgq.viewer.code_gallery import PlaneMethod
from lgq.viewer.guard import Limits, Refusal
from lgq.viewer.packets import (
    codebook_packet,
    described_grids,
    encoding_packet,
    history_packet,
    pack,
    reconstruction_packet,
    step_packet,
)
from lgq.viewer.studio import DrawnStep, Studio, to_rgba
from lgq.viewer.token_grids import grids_of, read_token_file, rectangle_of, token_file, tokens_of
from lgq.weights import WeightsError

_LONGEST_NAME, _MOST_STEPS = 120, 256
_log = logging.getLogger(__name__)

Handler = Callable[[Request], Awaitable[Response]]


def api_of(studio: Studio, limits: Limits | None = None) -> Starlette:
    """Return the ASGI application that answers requests below /api of `server.build_app`."""
    api = _Api(studio, limits or Limits())
    asked = {
        "/state": api.state,
        "/thumbnail": api.thumbnail,
        "/encoding": api.encoding,
        "/reconstruction": api.reconstruction,
        "/lpips": api.lpips,
        "/codebook": api.codebook,
        "/plane": api.plane,
        "/history": api.history,
        "/code": api.code,
        "/square": api.square,
    }
    sent = {
        "/generate": api.generate,
        "/pictures": api.add_picture,
        "/decode": api.decode,
        "/token-file": api.read_tokens,
        "/save-tokens": api.save_tokens,
    }
    routes = [Route(path, _answered(handle)) for path, handle in asked.items()]
    routes += [Route(path, _answered(handle), methods=["POST"]) for path, handle in sent.items()]
    return Starlette(routes=routes)


def _answered(handle: Handler) -> Handler:
    """Turn errors into answers, so that no request ends the server or shows a traceback."""

    async def answer(request: Request) -> Response:
        try:
            return await handle(request)
        except Refusal as refusal:
            closing = {"connection": "close"}
            return JSONResponse({"error": refusal.reason}, refusal.status, headers=closing)
        except NoSuchThing as error:
            return JSONResponse({"error": str(error)}, 404)
        except BrokenImage as error:
            return JSONResponse({"error": f"cannot read {error.name}: {error.reason}"}, 422)
        except LGQError as error:
            return JSONResponse({"error": str(error)}, 422)
        except ClientDisconnect:
            return Response(status_code=400)
        except Exception:
            _log.exception("a request failed: %s", request.url.path)
            return JSONResponse({"error": "the server failed; its terminal says why."}, 500)

    return answer


class _Api:
    """The handlers of requests."""

    def __init__(self, studio: Studio, limits: Limits):
        self._studio, self._limits = studio, limits

    async def state(self, _: Request) -> Response:
        return JSONResponse(await run_in_threadpool(self._studio.describe))

    async def thumbnail(self, request: Request) -> Response:
        image = await run_in_threadpool(self._studio.album.thumbnail, _number(request, "picture"))
        file = io.BytesIO()
        image.save(file, "PNG")
        return Response(file.getvalue(), media_type="image/png")

    async def encoding(self, request: Request) -> Response:
        chosen = [_number(request, name) for name in ("model", "picture", "size")]

        def encode() -> bytes:
            return encoding_packet(self._studio.encode(*chosen))

        return _packet(await run_in_threadpool(encode))

    async def reconstruction(self, request: Request) -> Response:
        """Answer with what the first stages or scales decode to."""
        chosen = [_number(request, name) for name in ("model", "picture", "size", "levels")]

        def decode() -> bytes:
            return reconstruction_packet(self._studio.encode(*chosen))

        return _packet(await run_in_threadpool(decode))

    async def lpips(self, request: Request) -> Response:
        chosen = [_number(request, name) for name in ("model", "picture", "size", "levels")]

        def measure() -> dict[str, Any]:
            try:
                return {"lpips": self._studio.lpips(self._studio.encode(*chosen))}
            except WeightsError as error:
                return {"lpips": None, "reason": str(error)}

        return JSONResponse(await run_in_threadpool(measure))

    async def codebook(self, request: Request) -> Response:
        model, stage = _number(request, "model"), _number(request, "stage")
        gallery = self._studio.gallery(model, stage)
        if gallery is None:
            done, total = self._studio.model(model).progress
            return JSONResponse({"done": done, "total": total}, 202)

        return _packet(await run_in_threadpool(codebook_packet, self._studio.model(model), stage))

    async def plane(self, request: Request) -> Response:
        model, stage = _number(request, "model"), _number(request, "stage")
        method: Any = request.query_params.get("method")
        if method not in get_args(PlaneMethod):
            raise LGQError(f"the method must be one of {', '.join(get_args(PlaneMethod))}.")
        plane = await run_in_threadpool(self._studio.plane, model, stage, method)
        return _packet(pack({"method": method}, plane=plane))

    async def history(self, request: Request) -> Response:
        model, stage = _number(request, "model"), _number(request, "stage")
        history = await run_in_threadpool(self._studio.history, model, stage)
        return _packet(history_packet(history))

    async def code(self, request: Request) -> Response:
        model, stage, code = (_number(request, name) for name in ("model", "stage", "code"))
        gallery = self._studio.gallery(model, stage)
        if gallery is None:
            return JSONResponse({"done": 0, "total": 1}, 202)
        if code >= len(gallery.means):
            raise NoSuchThing(f"there is no code {code}: the last one is {len(gallery.means) - 1}.")
        return _packet(pack({"code": code}, patches=gallery.typical_of(code).numpy()))

    async def add_picture(self, request: Request) -> Response:
        data = await self._body(request, self._limits.upload_bytes)
        name = unquote(request.headers.get("x-picture-name", ""))[:_LONGEST_NAME]
        name = "".join(letter for letter in name if letter.isprintable()) or "picture"
        try:
            number = await run_in_threadpool(self._studio.album.add, data, name)
        except BrokenImage as error:
            # The page says whose reason it is, by the name that the user knows.
            raise LGQError(error.reason) from error
        return JSONResponse({"id": number, "name": name})

    async def decode(self, request: Request) -> Response:
        asked = await self._json(request)
        model = _whole(asked, "model")

        def decode() -> bytes:
            tokens, grid = tokens_of(self._studio.model(model), asked.get("shape"), asked.get("tokens"))
            changed = rectangle_of(asked.get("changed"), *grid)
            part, (top, left) = self._studio.decode_change(model, tokens, grid, changed)
            return pack({"top": top, "left": left}, pixels=to_rgba(part))

        return _packet(await run_in_threadpool(decode))

    async def read_tokens(self, request: Request) -> Response:
        data = await self._body(request, self._limits.upload_bytes)
        model = _number(request, "model")

        def decode() -> bytes:
            tokens, grid = read_token_file(self._studio.model(model), data)
            grids = described_grids(grids_of(self._studio.model(model).tokenizer, *grid))
            pixels = to_rgba(self._studio.decode(model, tokens, grid))
            return pack({"grids": grids}, tokens=tokens.flatten().numpy().astype(np.uint32), pixels=pixels)

        return _packet(await run_in_threadpool(decode))

    async def save_tokens(self, request: Request) -> Response:
        asked = await self._json(request)
        model = _whole(asked, "model")
        tokens, grid = tokens_of(self._studio.model(model), asked.get("shape"), asked.get("tokens"))
        return Response(token_file(self._studio.model(model), tokens, grid), media_type="application/json")

    async def square(self, request: Request) -> Response:
        picture = _number(request, "picture")
        encoding = await run_in_threadpool(self._studio.square, picture)
        return _packet(encoding_packet(encoding))

    async def generate(self, request: Request) -> Response:
        """Answer with one packet per step, each after its length, as soon as it is there."""
        asked = await self._json(request)
        label, seed = str(asked.get("label", 0)), _whole(asked, "seed")
        known = ("steps", "order", "guidance", "temperature")
        sampling = from_json(Sampling, {name: asked[name] for name in known if name in asked})
        if sampling.steps > _MOST_STEPS or not 0 <= seed < 2**32:
            raise LGQError(f"steps must be at most {_MOST_STEPS}, and the seed from 0 to {2**32 - 1}.")
        mask = _mask(asked.get("mask"))
        picture = None if mask is None else _whole(asked, "picture")
        draw = partial(self._studio.draw, label, sampling, seed, picture=picture, mask=mask)
        return StreamingResponse(_steps(draw), media_type="application/octet-stream")

    async def _json(self, request: Request) -> dict[str, Any]:
        data = await self._body(request, self._limits.body_bytes)
        try:
            content = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise LGQError("the request is not JSON.") from error
        if not isinstance(content, dict):
            raise LGQError("the request must be a JSON object.")
        return content

    async def _body(self, request: Request, most: int) -> bytes:
        """Read a body up to a size: one that does not tell its length is cut off where it is too long."""
        data = bytearray()
        try:
            async with asyncio.timeout(self._limits.body_seconds):
                async for part in request.stream():
                    data += part
                    if len(data) > most:
                        raise Refusal(413, f"the request has more than the {most:,} bytes that are taken.")
        except TimeoutError as error:
            raise Refusal(408, "the request did not arrive in time.") from error
        return bytes(data)


class _Gone(Exception):  # noqa: N818 - nobody is to blame
    """The browser does not wait for the rest."""


async def _steps(draw: Callable[[Callable[[DrawnStep], None]], None]) -> AsyncIterator[bytes]:
    """Yield the packets of a drawing, which runs in a thread; it ends where nobody listens any more."""
    loop, queue, gone = asyncio.get_running_loop(), asyncio.Queue[bytes | None](), threading.Event()

    def put(packet: bytes | None) -> None:
        loop.call_soon_threadsafe(queue.put_nowait, packet)

    def show(drawn: DrawnStep) -> None:
        if gone.is_set():
            raise _Gone
        put(step_packet(drawn))

    def run() -> None:
        try:
            draw(show)
        except _Gone:
            pass
        except LGQError as error:
            put(pack({"error": str(error)}))
        except Exception:
            _log.exception("a drawing failed")
            put(pack({"error": "the server failed; its terminal says why."}))
        finally:
            put(None)

    drawing = asyncio.ensure_future(run_in_threadpool(run))
    try:
        while (packet := await queue.get()) is not None:
            yield len(packet).to_bytes(4, "little") + packet
    finally:
        gone.set()
        await asyncio.shield(drawing)


def _mask(rows: Any) -> torch.Tensor | None:
    """Return a mask that a browser sent as rows of 0 and 1."""
    if rows is None:
        return None
    if not isinstance(rows, list) or not rows or not all(isinstance(row, list) for row in rows):
        raise LGQError("the mask must be rows of 0 and 1.")
    if len({len(row) for row in rows}) != 1 or not all(
        type(x) is int and x in (0, 1) for row in rows for x in row
    ):
        raise LGQError("the mask must be rows of 0 and 1, all of one length.")
    return torch.tensor(rows, dtype=torch.bool)


def _packet(data: bytes) -> Response:
    return Response(data, media_type="application/octet-stream")


def _number(request: Request, name: str) -> int:
    """Return a number of the query: there are no paths and no names in it."""
    value = request.query_params.get(name, "")
    if not (value.isascii() and value.isdecimal() and len(value) < 10):
        raise LGQError(f"{name} must be a number, got {value[:40]!r}.")
    return int(value)


def _whole(content: dict[str, Any], name: str) -> int:
    value = content.get(name)
    if type(value) is not int:
        raise LGQError(f"{name} must be a whole number.")
    return value
