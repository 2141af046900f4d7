"""Bare servers, which the gateway is compared with, on the server and the settings of its API.

python -m tests.bench.bare_servers empty PORT
python -m tests.bench.bare_servers object PORT KEY SIZE FOLDER (or: URL BUCKET PREFIX)
python -m tests.bench.bare_servers floor PORT UPSTREAM
python -m tests.bench.bare_servers "own client" PORT UPSTREAM
"""

import sys
from contextlib import aclosing
from pathlib import Path

import aiohttp
import uvicorn
from fastapi import FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway_core.llm.client import Client
from gateway_core.storage.directory import DirectoryStore
from gateway_core.storage.objects import ObjectStore
from gateway_core.storage.s3.client import build_client
from gateway_core.storage.s3.store import S3Store
from tests.servers.s3 import REGION

LIMIT = 1000
"""Connections to the upstream."""
MAX_BYTES = 32 * 2**20
JSON = {"content-type": "application/json"}


def serve_empty() -> ASGIApp:
    app = FastAPI()

    @app.get("/empty")
    async def empty() -> dict[str, str]:
        return {}

    return app


def serve_object(key: str, size: str, *where: str) -> ASGIApp:
    """Serve an object of a store at every path, unchecked: how fast a download can be here."""
    store: ObjectStore
    if len(where) == 1:
        store = DirectoryStore(Path(where[0]))
    else:
        url, bucket, prefix = where
        store = S3Store(build_client(url, REGION, "auto"), bucket, prefix)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await _start(send, 200, (b"content-length", size.encode()))
        async with aclosing(store.stream(key)) as chunks:
            async for chunk in chunks:
                await _send_chunk(send, chunk)
        await _end(send)

    return app


def pass_through(upstream: str) -> ASGIApp:
    """Pass each request on with aiohttp, without any feature: the floor of the stage llm."""
    session: aiohttp.ClientSession | None = None

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal session
        if session is None:
            connector = aiohttp.TCPConnector(limit=LIMIT)
            session = aiohttp.ClientSession(connector=connector, auto_decompress=False)
        url = f"http://127.0.0.1:{upstream}{scope['path']}"
        async with session.post(url, data=await _read_body(receive), headers=JSON) as response:
            content_type = response.headers["content-type"].encode()
            await _start(send, response.status, (b"content-type", content_type))
            if "content-length" in response.headers:
                await _end(send, await response.read())
                return
            async for chunk in response.content.iter_any():
                await _send_chunk(send, chunk)
        await _end(send)

    return app


def pass_through_own_client(upstream: str) -> ASGIApp:
    """Pass each request on with the gateway's own client in place of aiohttp."""
    client = Client(f"http://127.0.0.1:{upstream}", LIMIT)
    head = client.prepare("POST", "/v1/chat/completions", JSON)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        response = await client.send(head, await _read_body(receive))
        try:
            content_type = response.headers[b"content-type"]
            await _start(send, response.status, (b"content-type", content_type))
            if b"content-length" in response.headers:
                await _end(send, await response.read(MAX_BYTES))
                return
            while chunk := await response.read_some():
                await _send_chunk(send, chunk)
        finally:
            response.abort()
        await _end(send)

    return app


async def _read_body(receive: Receive) -> bytes:
    message = await receive()
    body: bytes = message["body"]
    while message.get("more_body"):
        message = await receive()
        body += message["body"]
    return body


async def _start(send: Send, status: int, header: tuple[bytes, bytes]) -> None:
    await send({"type": "http.response.start", "status": status, "headers": [header]})


async def _send_chunk(send: Send, chunk: bytes) -> None:
    await send({"type": "http.response.body", "body": chunk, "more_body": True})


async def _end(send: Send, body: bytes = b"") -> None:
    await send({"type": "http.response.body", "body": body})


SERVERS = {
    "empty": serve_empty,
    "object": serve_object,
    "floor": pass_through,
    "own client": pass_through_own_client,
}

if __name__ == "__main__":
    name, port, *arguments = sys.argv[1:]
    uvicorn.run(
        SERVERS[name](*arguments),
        host="127.0.0.1",
        port=int(port),
        loop="asyncio",
        http="httptools",
        lifespan="off",
        access_log=False,
        log_level="warning",
    )
