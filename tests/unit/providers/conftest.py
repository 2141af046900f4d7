"""A provider on loopback that answers as a test says, and the adapter that speaks to it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from ipaddress import ip_network
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from gateway_core.api.provider import ProviderSpec
from gateway_core.egress.addresses import AddressPolicy
from gateway_core.providers import http
from gateway_core.providers.http import HttpUpstream

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
CREDENTIAL = "s3cr3t-Credential-0042"
INPUT: dict[str, Any] = {
    "prompt": "A fox",
    "reference_image_urls": ["https://a.example/1.png"],
    "aspect_ratio": "16:9",
    "audio": False,
    "duration_seconds": 5,
    "output_resolution": "720p",
}


@dataclass
class Seen:
    """A request as the provider got it."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes


@dataclass
class FakeProvider:
    """Answers each request with the next of `script`, the last one for ever."""

    script: list[Handler] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    url: str = ""

    def answers(self, *handlers: Handler | web.Response | dict[str, Any] | int) -> None:
        """Sets the script; a dict is a JSON body, a number an empty answer with that status."""
        self.script = [_make_handler(handler) for handler in handlers]

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Records the request and plays the script."""
        target = request.raw_path
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.seen.append(Seen(request.method, target, headers, await request.read()))
        handler = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        return await handler(request)


def _make_handler(given: Any) -> Handler:
    async def answer(_: web.Request) -> web.StreamResponse:
        if isinstance(given, dict):
            return web.json_response(given)
        if isinstance(given, int):
            return web.Response(status=given)
        # A response is sent once, so each request gets one of its own.
        return web.Response(status=given.status, headers=given.headers, body=given.body)

    return given if callable(given) and not isinstance(given, web.Response) else answer


@asynccontextmanager
async def serve() -> AsyncIterator[FakeProvider]:
    """A provider on a free port of loopback."""
    provider, app = FakeProvider(), web.Application()
    app.router.add_route("*", "/{path:.*}", provider.handle)
    async with TestServer(app) as server:
        provider.url = str(server.make_url("")).rstrip("/")
        yield provider


@pytest.fixture
async def provider() -> AsyncIterator[FakeProvider]:
    """The provider."""
    async with serve() as running:
        yield running


@pytest.fixture
async def cdn() -> AsyncIterator[FakeProvider]:
    """A second server, where outputs may lie."""
    async with serve() as running:
        yield running


@pytest.fixture
async def raw_server() -> AsyncIterator[Callable[[bytes], Awaitable[str]]]:
    """Starts a server that reads a request, writes the given bytes and hangs up; its URL."""
    servers: list[asyncio.Server] = []

    async def start(answer: bytes) -> str:
        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(talk, "127.0.0.1", 0)
        servers.append(server)
        return f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"

    yield start
    for server in servers:
        server.close()
        await server.wait_closed()


def make_document(url: str) -> dict[str, Any]:
    """The spec of a provider at `url`, as in YAML."""
    return {
        "type": "http",
        "credentialsSecretRef": {"name": "it", "key": "token"},
        "maxConcurrentRequests": 8,
        "http": {
            "baseUrl": url,
            "headers": [{"name": "Authorization", "value": "Bearer {credential}"}],
            "requestTimeoutSeconds": 5,
            "submit": {
                "path": "/v1/{model}/jobs",
                "body": "{prompt: input.prompt, audio: input.audio, note: input.none, "
                "ref: reference, engine: model}",
                "jobId": "job.id",
                "idempotencyHeader": "Idempotency-Key",
                "errorMessage": "error.message",
            },
            "poll": {
                "path": "/v1/jobs/{jobId}",
                "state": "job.state",
                "stateWords": {
                    "running": ["queued"],
                    "succeeded": ["done"],
                    "failed": ["error"],
                    "cancelled": ["cancelled"],
                },
                "outputs": "job.outputs[].url",
                "outputSeconds": "job.seconds",
                "errorMessage": "job.error.message",
            },
            "cancel": {"path": "/v1/jobs/{jobId}/cancel"},
            "lookup": {"path": "/v1/jobs?ref={reference}", "jobId": "jobs[0].id"},
        },
    }


@pytest.fixture
def tenth(monkeypatch: pytest.MonkeyPatch) -> None:
    """Adapters whose calls time out after a tenth of the declared time."""
    build = http.Connections
    monkeypatch.setattr(
        http,
        "Connections",
        lambda *args, timeout, **more: build(*args, timeout=timeout / 10, **more),
    )


def change(document: dict[str, Any], path: str, value: Any) -> None:
    """Set the field at `path`, such as "http.submit.body"; None deletes it."""
    *parents, last = path.split(".")
    for name in parents:
        document = document[name]
    if value is None:
        del document[last]
    else:
        document[last] = value


Connect = Callable[..., HttpUpstream]


@pytest.fixture
async def connect(provider: FakeProvider) -> AsyncIterator[Connect]:
    """Makes adapters for the provider, or for a URL, with changes by the path of a field.

    Loopback is allowed unless told. All are closed at the end.
    """
    made: list[HttpUpstream] = []

    def make(
        changes: Mapping[str, Any] | None = None,
        *,
        url: str | None = None,
        allowed: tuple[str, ...] = ("127.0.0.0/8", "::1/128"),
    ) -> HttpUpstream:
        document = make_document(url or provider.url)
        for path, value in (changes or {}).items():
            change(document, path, value)
        policy = AddressPolicy(tuple(ip_network(network) for network in allowed))
        made.append(HttpUpstream(ProviderSpec.model_validate(document), CREDENTIAL, policy))
        return made[-1]

    yield make
    for upstream in made:
        await upstream.close()


@pytest.fixture
def upstream(connect: Connect) -> HttpUpstream:
    """The adapter for the provider."""
    return connect()
