"""Bare servers, which the gateway is compared with.

`python -m tests.bench.yardsticks PORT` serves an empty FastAPI route at /empty. With `KEY SIZE
FOLDER` after it, or `KEY SIZE URL BUCKET PREFIX` of an S3 server, an object of that store is served
at every path, unchecked: how fast a download can be here.
"""

import sys
from contextlib import aclosing
from pathlib import Path

import uvicorn
from fastapi import FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway_core.storage.objects import ObjectStore


def main(port: str, *stored: str) -> None:
    """Serves the empty route, or the object."""
    uvicorn.run(
        _serve_object(*stored) if stored else _serve_empty(),
        host="127.0.0.1",
        port=int(port),
        loop="asyncio",
        http="httptools",
        lifespan="off",
        access_log=False,
        log_level="warning",
    )


def _serve_empty() -> FastAPI:
    app = FastAPI()

    @app.get("/empty")
    async def empty() -> dict[str, str]:
        return {}

    return app


def _serve_object(key: str, size: str, *where: str) -> ASGIApp:
    store = _open(*where)
    headers = [(b"content-length", size.encode())]

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        async with aclosing(store.stream(key)) as chunks:
            async for chunk in chunks:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    return app


def _open(place: str, *bucket: str) -> ObjectStore:
    # the empty route starts without the stores' clients
    from gateway_core.storage.directory import DirectoryStore
    from gateway_core.storage.s3.client import build_client
    from gateway_core.storage.s3.store import S3Store
    from tests.servers.s3 import REGION

    if not bucket:
        return DirectoryStore(Path(place))
    name, prefix = bucket
    return S3Store(build_client(place, REGION, "auto"), name, prefix)


if __name__ == "__main__":
    main(*sys.argv[1:])
