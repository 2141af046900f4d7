"""A real S3 server (versitygw) for tests, the adapter on it, and a proxy that injects faults."""

import asyncio
import os
import secrets
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import aiohttp
import boto3
import pytest
from aiohttp import web
from botocore.config import Config
from tools.programs import find_program
from yarl import URL

from gateway_core.storage.s3.client import build_client
from gateway_core.storage.s3.store import S3Store
from tests.servers.server import ServerProcess, WebServer

REGION = "us-east-1"


class S3Server(ServerProcess):
    """One server with the bucket `objects`; `with` starts it and ends it with all it holds."""

    name = "s3"
    bucket = "objects"

    def __init__(self) -> None:
        super().__init__()
        self._has_bucket = False
        self.access_key = "test" + secrets.token_hex(8)
        self.secret_key = secrets.token_hex(20)

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def credentials(self) -> dict[str, str]:
        """The variables that boto3 reads them from."""
        return {"AWS_ACCESS_KEY_ID": self.access_key, "AWS_SECRET_ACCESS_KEY": self.secret_key}

    def settings(self, prefix: str = "", endpoint: str | None = None) -> dict[str, str]:
        """The variables that have a process of the gateway use it."""
        return {
            "GATEWAY_STORE": "s3",
            "GATEWAY_STORE_BUCKET": self.bucket,
            "GATEWAY_STORE_PREFIX": prefix,
            "GATEWAY_STORE_ENDPOINT": endpoint or self.url,
            "GATEWAY_STORE_REGION": REGION,
            **self.credentials,
        }

    def start(self) -> None:
        """Starts it with what it held before, or with the bucket and nothing in it."""
        super().start()
        if not self._has_bucket:
            self.client().create_bucket(Bucket=self.bucket)
            self._has_bucket = True

    def client(self):
        """A plain client, for what the adapter has no word for."""
        return boto3.client(
            "s3",
            endpoint_url=self.url,
            region_name=REGION,
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            config=Config(retries={"total_max_attempts": 1}, s3={"addressing_style": "path"}),
        )

    def list_names(self) -> list[str]:
        """Names of all objects in the bucket."""
        pages = self.client().get_paginator("list_objects_v2").paginate(Bucket=self.bucket)
        return [item["Key"] for page in pages for item in page.get("Contents", [])]

    def list_uploads(self) -> list[str]:
        """Names of the objects whose parts are there and not complete."""
        found = self.client().list_multipart_uploads(Bucket=self.bucket)
        return [item["Key"] for item in found.get("Uploads", [])]

    def empty(self) -> None:
        """Removes all objects."""
        client = self.client()
        for name in self.list_names():
            client.delete_object(Bucket=self.bucket, Key=name)

    def command(self) -> Sequence[str]:
        """A gateway onto files, which keep all it holds over a kill."""
        for name in ("data", "sidecar"):
            (self.folder / name).mkdir(exist_ok=True)
        return (
            *(str(find_program("versitygw")), "--port", f"127.0.0.1:{self.port}"),
            *("--health", "/healthz", "--region", REGION, "--quiet", "--keep-alive"),
            # not every filesystem has the extended attributes it would use otherwise
            *("posix", "--sidecar", str(self.folder / "sidecar"), str(self.folder / "data")),
        )

    def environment(self) -> Mapping[str, str]:
        """Its credentials, and nothing of the tests'."""
        return {
            "PATH": os.environ["PATH"],
            "ROOT_ACCESS_KEY_ID": self.access_key,
            "ROOT_SECRET_ACCESS_KEY": self.secret_key,
        }

    def answers(self) -> bool:
        """Whether it says that it is well."""
        with urllib.request.urlopen(f"{self.url}/healthz", timeout=0.5) as answer:
            return answer.status == 200


@contextmanager
def open_bucket(
    server: S3Server,
    *,
    endpoint: str | None = None,
    bucket: str | None = None,
    prefix: str | None = None,
    credentials: dict[str, str] | None = None,
) -> Iterator[S3Store]:
    """The store, with the server's credentials or others, perhaps by way of a proxy."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (credentials or server.credentials).items():
            patch.setenv(name, value)
        client = build_client(endpoint or server.url, REGION, "auto")
        # found now, while the variables stand
        client._request_signer._credentials.get_frozen_credentials()
    name = f"t-{secrets.token_hex(6)}" if prefix is None else prefix
    store = S3Store(client, bucket or server.bucket, name)
    try:
        yield store
    finally:
        store.close()


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


class S3Faults(WebServer):
    """A proxy before a real S3 server that answers some calls as a sick one would.

    Faults are laid on with `expect`, in order; each strikes the next call that it fits, so many
    times. `calls` are all that came, `most` were under way at once.
    """

    def __init__(self, target: str) -> None:
        super().__init__()
        self._target = target
        self._faults: list[Fault] = []
        self.calls: list[Call] = []
        self.under_way = 0
        self.most = 0

    def build(self) -> web.Application:
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_route("*", "/{path:.*}", self._answer)
        return app

    async def open(self) -> None:
        self._session = aiohttp.ClientSession(auto_decompress=False)
        await super().open()

    async def close(self) -> None:
        await super().close()
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
