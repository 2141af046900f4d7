"""A provider with `/v1/moderations` whose every answer a test decides, as a real server."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from aiohttp import web

from tests.fakes.moderation import judge
from tests.servers.threadserver import ThreadServer

Script = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Moderator(ThreadServer):
    """Judges as the fake does; what is in `scripts` is answered first.

    `seen` are the headers and bodies of all requests.
    """

    token = "sk-upstream-7c1d9e8f0a"

    def __init__(self) -> None:
        super().__init__()
        self.scripts: deque[Script] = deque()
        self.seen: list[tuple[dict[str, str], Any]] = []
        self.port = 0

    @property
    def url(self) -> str:
        """What a provider's `baseUrl` is."""
        return f"http://127.0.0.1:{self.port}/v1"

    async def open(self) -> None:
        """Begins to serve."""
        app = web.Application()
        app.router.add_post("/v1/moderations", self._answer)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def close(self) -> None:
        """Serves no more."""
        await self._runner.cleanup()

    def answer_next(
        self, status: int, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> None:
        """Has the next request answered so; bytes go as they are."""

        async def script(_: web.Request) -> web.StreamResponse:
            if isinstance(body, bytes):
                return web.Response(status=status, body=body, headers=headers)
            return web.json_response(body, status=status, headers=headers)

        self.scripts.append(script)

    def hang_next(self, seconds: float = 60.0) -> None:
        """Has the next request wait."""

        async def script(_: web.Request) -> web.StreamResponse:
            await asyncio.sleep(seconds)
            return web.Response(status=500)

        self.scripts.append(script)

    def cut_next(self) -> None:
        """Has the next request's connection closed without an answer."""

        async def script(request: web.Request) -> web.StreamResponse:
            assert request.transport is not None
            request.transport.close()
            return web.Response()

        self.scripts.append(script)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.seen.append(({k.lower(): v for k, v in request.headers.items()}, body))
        if self.scripts:
            return await self.scripts.popleft()(request)
        given = body["input"]
        texts = given if isinstance(given, list) and isinstance(given[0], str) else [str(given)]
        results = [judge(text) for text in texts]
        return web.json_response({"id": "modr-1", "model": body["model"], "results": results})
