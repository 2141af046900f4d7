"""Receivers of callbacks on loopback: real servers that do as each path is told.

What arrives is kept, so that a test can check I4 afterwards: every due callback at least once, or
its schedule exhausted; one id and one body for each task.
"""

import asyncio
import json
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

from aiohttp import web
from multidict import CIMultiDictProxy
from standardwebhooks import Webhook

from tests.servers.server import WebServer

Behaviour = Callable[[web.Request], Awaitable[web.StreamResponse]]

TICK = 0.02


@dataclass(frozen=True, slots=True)
class Arrival:
    """One attempt as it arrived; `at` is the wall's time."""

    path: str
    headers: CIMultiDictProxy[str]
    body: bytes
    at: float

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    def verify(self, secret: str) -> Any:
        """The body, if `standardwebhooks` takes the signature."""
        return Webhook(secret).verify(self.body, dict(self.headers))


class Receiver(WebServer):
    """A server on a free port. `plan` says what a path's next requests meet, then 200."""

    def __init__(self, *, host: str = "127.0.0.1", port: int = 0, ssl_context: Any = None) -> None:
        super().__init__()
        self.host, self.port, self.ssl_context = host, port, ssl_context
        self.arrivals: list[Arrival] = []
        self._plans: defaultdict[str, list[Behaviour]] = defaultdict(list)
        self._always: dict[str, Behaviour] = {}
        self._clock: asyncio.Task[None]
        self.written = 0
        """Bytes of endless answers that were taken off our hands."""
        self.late = 0.0
        """Seconds that the loop was late at its worst: `at` may be as late for what arrived."""

    def build(self) -> web.Application:
        app = web.Application(client_max_size=2**20)
        app.router.add_route("*", "/{rest:.*}", self._serve)
        return app

    async def open(self) -> None:
        await super().open()
        self._clock = asyncio.create_task(self._tick())

    async def close(self) -> None:
        self._clock.cancel()
        await super().close()

    async def _tick(self) -> None:
        while True:
            due = time.monotonic() + TICK
            await asyncio.sleep(TICK)
            self.late = max(self.late, time.monotonic() - due)

    @property
    def connections(self) -> int:
        """How many connections are open, or have brought something."""
        assert self.runner.server is not None
        return len(self.runner.server.connections) + len(self.arrivals)

    def locate(self, path: str, *, host: str = "") -> str:
        """The address of a path; `host` is another one of this machine's."""
        scheme = "https" if self.ssl_context else "http"
        named = "127.0.0.1" if self.host == "0.0.0.0" else self.host
        return f"{scheme}://{host or named}:{self.port}/{path}"

    def plan(self, path: str, *behaviours: Behaviour) -> str:
        """Has the next requests to `path` met so; its address."""
        self._plans["/" + path].extend(behaviours)
        return self.locate(path)

    def always(self, path: str, behaviour: Behaviour) -> str:
        """Has every request to `path` met so; its address."""
        self._always["/" + path] = behaviour
        return self.locate(path)

    def of(self, task_id: str) -> list[Arrival]:
        return [arrival for arrival in self.arrivals if arrival.json["id"] == task_id]

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        arrival = Arrival(request.path, request.headers, await request.read(), time.time())
        self.arrivals.append(arrival)
        plan = self._plans[request.path]
        behave = plan.pop(0) if plan else self._always.get(request.path, answer(200))
        try:
            return await behave(request)
        except ConnectionError:  # the sender has read enough
            return web.Response()

    async def flood(self, request: web.Request) -> web.StreamResponse:
        """A behaviour: 500 and a gigabyte."""
        response = web.StreamResponse(status=500, headers={"Content-Length": str(2**30)})
        await response.prepare(request)
        chunk = b"x" * 2**16
        for _ in range(2**14):
            await response.write(chunk)
            self.written += len(chunk)
        return response


def answer(status: int, **headers: str) -> Behaviour:
    """An answer at once; underscores in names of headers are dashes."""

    async def behave(_: web.Request) -> web.StreamResponse:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return web.Response(status=status, headers=named, text="swallowed")

    return behave


async def hang(_: web.Request) -> web.StreamResponse:
    """No answer as long as anybody waits."""
    await asyncio.sleep(600)
    return web.Response()


async def trickle(request: web.Request) -> web.StreamResponse:
    """Success at once, and then a body without an end, byte by byte."""
    response = web.StreamResponse(status=200)
    await response.prepare(request)
    for _ in range(6000):
        await response.write(b".")
        await asyncio.sleep(0.1)
    return response


async def cut(request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


def check_one_event(arrivals: Iterable[Arrival], task_id: str, body: Any) -> None:
    """I4 for one task: some attempt, one id, one body, and it is what GET tells."""
    bodies = {arrival.body for arrival in arrivals}
    assert len(bodies) == 1, f"I4: {task_id} was told {len(bodies)} ways"
    assert len({arrival.id for arrival in arrivals}) == 1, f"I4: {task_id} has several ids"
    told = json.loads(bodies.pop())
    if told["status"] == "failed":
        told["error"] = told["error"]["message"]
    assert told == body, f"I4: {task_id} was told {told} and polled {body}"
