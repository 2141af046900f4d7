"""An S3 server's bad days: a proxy before a real one that answers some calls as a sick one would.

Faults are laid on with `expect`, in order; each strikes the next call that it fits, so many times.
Runs in the test's own event loop; the adapter's calls come from its threads.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

import aiohttp
from aiohttp import web
from yarl import URL

SLOW_DOWN = (
    b"<?xml version='1.0'?><Error><Code>SlowDown</Code>"
    b"<Message>Please reduce your request rate.</Message></Error>"
)
_OWN_HEADERS = ("Expect", "Transfer-Encoding", "Content-Length", "Connection")


@dataclass
class Call:
    """A call as it came; `query` is its query string."""

    method: str
    query: str
    headers: dict[str, str]


@dataclass
class Fault:
    """What becomes of a call. `times` counts down; `gate` is waited for first."""

    fits: Callable[[Call], bool]
    times: int = 1
    slow_down: bool = False
    lose_answer: bool = False
    cut_after: int | None = None
    gate: asyncio.Event | None = None
    reached: asyncio.Event = field(default_factory=asyncio.Event)


class S3Faults:
    """The proxy; `async with` runs it. `calls` are all that came, `most` were under way at once."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._faults: list[Fault] = []
        self.calls: list[Call] = []
        self.under_way = 0
        self.most = 0
        self.url = ""

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(auto_decompress=False)
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()
        await self._session.close()

    def expect(self, fits: Callable[[Call], bool], **fault) -> Fault:
        """Lays a fault on the calls that `fits` is true of."""
        self._faults.append(made := Fault(fits, **fault))
        return made

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        call = Call(request.method, request.query_string, dict(request.headers))
        self.calls.append(call)
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            return await self._strike(request, call)
        finally:
            self.under_way -= 1

    async def _strike(self, request: web.Request, call: Call) -> web.StreamResponse:
        fault = next((f for f in self._faults if f.times > 0 and f.fits(call)), None)
        if fault is None:
            return await self._forward(request)
        fault.times -= 1
        fault.reached.set()
        if fault.gate is not None:
            await fault.gate.wait()
        if fault.slow_down:
            return web.Response(status=503, body=SLOW_DOWN, content_type="application/xml")
        answer = await self._forward(request)
        if fault.lose_answer:
            request.transport.abort()
        elif fault.cut_after is not None:
            cut = web.StreamResponse(status=answer.status, headers=answer.headers)
            await cut.prepare(request)
            await cut.write(answer.body[: fault.cut_after])
            # what was written has to leave before the connection ends
            while request.transport.get_write_buffer_size():  # noqa: ASYNC110  nobody tells
                await asyncio.sleep(0.01)
            request.transport.close()
            return cut
        return answer

    async def _forward(self, request: web.Request) -> web.Response:
        headers = [(k, v) for k, v in request.headers.items() if k not in _OWN_HEADERS]
        async with self._session.request(
            request.method,
            URL(self._target + request.raw_path, encoded=True),
            headers=headers,
            data=await request.read(),
        ) as found:
            body = await found.read()
            kept = [(k, v) for k, v in found.headers.items() if k not in _OWN_HEADERS]
            if request.method == "HEAD" and "Content-Length" in found.headers:
                kept.append(("Content-Length", found.headers["Content-Length"]))
            elif found.status not in (204, 304):
                kept.append(("Content-Length", str(len(body))))
            return web.Response(status=found.status, headers=kept, body=body)
