"""Answers that are wrong on purpose; used by `routes` and `injector`, which look up the rules.

Each class is an ASGI application in the place of a Starlette response. ASGI cannot close a
connection without an answer, so `app` puts a `Wire` into the scope of each request.
"""

import asyncio
from typing import Protocol

from starlette.datastructures import Headers
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway_simulator.behaviours import BadOutput, Nonsense

EXTENSION = "gateway_simulator.wire"


class Wire(Protocol):
    """The part of an asyncio transport that the faults need."""

    def write(self, data: bytes) -> None:
        """Send bytes after what has been sent so far."""

    def close(self) -> None:
        """Send what is buffered, then close the connection."""


def get_wire(scope: Scope) -> Wire | None:
    """Return the connection of a request; None where the server gives none (in-process tests)."""
    wire: Wire | None = scope.get("extensions", {}).get(EXTENSION)
    return wire


async def pause(receive: Receive, seconds: float) -> bool:
    """Wait; return False, at once, when the caller closes the connection meanwhile.

    The request's body must have been read, as anything still to come of it is thrown away.
    """
    try:
        async with asyncio.timeout(seconds):
            await _wait_for_disconnect(receive)
    except TimeoutError:
        return True
    return False


async def hang_up(scope: Scope, receive: Receive) -> None:
    """Close the connection, whatever has been answered so far.

    Raise ConnectionAbortedError where there is no wire: an in-process client sees that instead.
    """
    wire = get_wire(scope)
    if wire is None:
        raise ConnectionAbortedError("the simulated provider dropped the connection")
    wire.close()
    # The server takes a return before it has noticed the closing for an application error.
    await _wait_for_disconnect(receive)


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


BLOCK = b"x" * 65_536
SHORTEST_PAUSE = 0.02


class Dropped:
    """No answer: the connection closes."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request."""
        await hang_up(scope, receive)


class Mismatched:
    """A body under a wrong Content-Length, then the connection closes.

    Half the body under the length of the whole, or, where it is `overlong`, the reverse.
    """

    def __init__(self, body: bytes, content_type: str, *, overlong: bool = False) -> None:
        self._body = body
        self._content_type = content_type
        self._overlong = overlong

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request."""
        half = len(self._body) // 2
        await _start(send, self._content_type, half if self._overlong else len(self._body))
        await send({"type": "http.response.body", "body": self._body[:half], "more_body": True})
        wire = get_wire(scope)
        if wire is not None and self._overlong:
            wire.write(self._body[half:])
        await hang_up(scope, receive)


class Flood:
    """A body of a given size, made as it is sent: the simulator's memory stays flat."""

    def __init__(
        self, content_type: str, size: int, *, prefix: bytes, suffix: bytes, declare_length: bool
    ) -> None:
        self._content_type = content_type
        self._prefix = prefix
        self._suffix = suffix
        self._filling = max(0, size - len(prefix) - len(suffix))
        self._declare_length = declare_length

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request."""
        size = len(self._prefix) + self._filling + len(self._suffix)
        await _start(send, self._content_type, size if self._declare_length else None)
        await send({"type": "http.response.body", "body": self._prefix, "more_body": True})
        left = self._filling
        while left > 0:
            block = BLOCK[:left]
            await send({"type": "http.response.body", "body": block, "more_body": True})
            left -= len(block)
            # The server swallows what is sent after the caller has left, so look, now and then.
            if left % (len(BLOCK) * 64) < len(BLOCK) and not await pause(receive, 0):
                return
        await send({"type": "http.response.body", "body": self._suffix})


class Dripped:
    """An answer whose body comes a few bytes at a time."""

    def __init__(self, response: Response, bytes_per_second: float) -> None:
        self._response = response
        self._step = max(1, round(bytes_per_second * SHORTEST_PAUSE))
        self._pause = self._step / bytes_per_second

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request."""
        response = self._response
        headers = response.raw_headers
        start = {"type": "http.response.start", "status": response.status_code, "headers": headers}
        await send(start)
        body = bytes(response.body)
        for offset in range(0, len(body), self._step):
            if not await pause(receive, self._pause):
                return
            drip = body[offset : offset + self._step]
            await send({"type": "http.response.body", "body": drip, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


def make_nonsense(rule: Nonsense, response: Response) -> ASGIApp:
    """Return what a `nonsense` rule makes of the answer the request would have had."""
    body = bytes(response.body)
    match rule.kind:
        case "not_json":
            return Response(
                b"{job: <<not JSON>>", response.status_code, media_type="application/json"
            )
        case "wrong_json":
            return JSONResponse(["surprise", {"job": 42}], response.status_code)
        case "html":
            page = "<!doctype html><title>Sorry</title><h1>We are experiencing difficulties</h1>"
            return Response(page, response.status_code, media_type="text/html")
        case "truncated":
            return Mismatched(body, "application/json")
        case "wrong_length":
            return Mismatched(body, "application/json", overlong=True)
        case "huge":
            return Flood(
                "application/json",
                rule.bytes,
                prefix=b'{"padding": "',
                suffix=b'"}',
                declare_length=False,
            )


def make_bad_output(rule: BadOutput, video: bytes) -> ASGIApp:
    """Return what a `bad_output` rule makes of an output file."""
    match rule.kind:
        case "not_found":
            return Response("no such file", 404, media_type="text/plain")
        case "wrong_type":
            return Response("<!doctype html><p>Please sign in</p>", media_type="text/html")
        case "not_video":
            return Response(b"\x00not a video\xff" * 100, media_type="video/mp4")
        case "empty":
            return Response(b"", media_type="video/mp4")
        case "truncated":
            return Mismatched(video, "video/mp4")
        case "redirect":
            return RedirectResponse(rule.location, 302)
        case "oversized":
            return Flood(
                "video/mp4",
                rule.bytes,
                prefix=video[: rule.bytes],
                suffix=b"",
                declare_length=rule.declare_length,
            )


async def _start(send: Send, content_type: str, length: int | None) -> None:
    headers = {"content-type": content_type}
    if length is not None:
        headers["content-length"] = str(length)
    raw = Headers(headers).raw
    await send({"type": "http.response.start", "status": 200, "headers": raw})
