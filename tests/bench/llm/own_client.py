"""The pass-through of `floor` with the gateway's own client in place of aiohttp.

python -m tests.bench.llm.own_client PORT UPSTREAM_PORT
"""

import sys

from starlette.types import Receive, Scope, Send

from gateway_core.llm.client import Client
from tests.bench.llm.server import read_body, run, start

LIMIT = 1000
MOST_BYTES = 32 * 2**20


class PassThrough:
    """Passes each request on to the upstream."""

    def __init__(self, upstream: int) -> None:
        self._client = Client(f"http://127.0.0.1:{upstream}", LIMIT)
        self._head = self._client.prepare(
            "POST", "/v1/chat/completions", {"content-type": "application/json"}
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await read_body(receive)
        response = await self._client.send(self._head, body)
        try:
            await start(send, response.status, response.headers[b"content-type"])
            if b"content-length" in response.headers:
                content = await response.read(MOST_BYTES)
                await send({"type": "http.response.body", "body": content})
                return
            while chunk := await response.read_some():
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        finally:
            response.abort()
        await send({"type": "http.response.body", "body": b""})


if __name__ == "__main__":
    run(PassThrough(int(sys.argv[2])), int(sys.argv[1]))
