"""An object of a store, sent by a bare server that checks nothing: how fast a download can be here.

`python -m tests.bench.bare_content PORT KEY SIZE FOLDER`, or with `URL BUCKET PREFIX` of an S3
server instead of the folder.
"""

import sys
from contextlib import aclosing
from pathlib import Path

import uvicorn
from starlette.types import Receive, Scope, Send

from gateway_core.storage.directory import DirectoryStore
from gateway_core.storage.objects import ObjectStore
from gateway_core.storage.s3.client import build_client
from gateway_core.storage.s3.store import S3Store
from tests.servers.s3 import REGION


def main(port: str, key: str, size: str, *where: str) -> None:
    """Serves the object at every path."""
    store = _open(*where)
    headers = [(b"content-length", size.encode())]

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        async with aclosing(store.stream(key)) as chunks:
            async for chunk in chunks:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    uvicorn.run(
        app,
        host="127.0.0.1",
        port=int(port),
        loop="asyncio",
        http="httptools",
        lifespan="off",
        access_log=False,
        log_level="warning",
    )


def _open(place: str, *bucket: str) -> ObjectStore:
    if not bucket:
        return DirectoryStore(Path(place))
    name, prefix = bucket
    return S3Store(build_client(place, REGION, "auto"), name, prefix)


if __name__ == "__main__":
    main(*sys.argv[1:])
