"""The floor of the stage llm: a raw ASGI pass-through with aiohttp, without any feature.

python -m tests.bench.llm.floor PORT UPSTREAM_PORT
"""

import sys

import aiohttp
from starlette.types import Receive, Scope, Send

from tests.bench.llm.server import read_body, run, start

LIMIT = 1000


class Floor:
    """Passes each request on to the upstream."""

    def __init__(self, upstream: int) -> None:
        self._url = f"http://127.0.0.1:{upstream}"
        self._session: aiohttp.ClientSession | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=LIMIT)
            self._session = aiohttp.ClientSession(connector=connector, auto_decompress=False)
        body = await read_body(receive)
        async with self._session.post(
            self._url + scope["path"], data=body, headers={"content-type": "application/json"}
        ) as response:
            whole = "content-length" in response.headers
            await start(send, response.status, response.headers["content-type"].encode())
            if whole:
                content = await response.read()
                await send({"type": "http.response.body", "body": content})
                return
            async for chunk in response.content.iter_any():
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


if __name__ == "__main__":
    run(Floor(int(sys.argv[2])), int(sys.argv[1]))
