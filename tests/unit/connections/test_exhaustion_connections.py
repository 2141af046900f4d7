"""I11: nobody without a key exhausts a process by its connections, heads or bodies."""

import asyncio
import gc
import time
import tracemalloc
import weakref
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from ipaddress import ip_network

import orjson
import pytest
from starlette.types import Receive, Scope, Send

from gateway_web.context import get_context
from gateway_web.errors import Dialect
from gateway_web.http1.connections import ConnectionBounds, ConnectionTable
from gateway_web.http1.protocol import Protocol
from gateway_web.middleware import bodies
from gateway_web.middleware.requests import RequestMiddleware
from gateway_web.responses import Response, send_response
from tests.servers.listener import build_protocol, listen
from tests.servers.world import wait_for

GOOD = b"GET /good HTTP/1.1\r\nHost: x\r\n\r\n"


class Port:
    """An application behind the gateway's protocol, for an account of a request's header."""

    def __init__(self, table: ConnectionTable) -> None:
        self.number = 0
        self.table = table
        self.begun = 0
        """Requests that have reached the application."""

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """`/good` answers, and `/early` does so without a look at the body; `/held` does not.

        Another path reads the body whole, `/anonymous` without a key.
        """
        self.begun += 1
        size = 0
        if scope["path"] == "/held":
            while (await receive())["type"] != "http.disconnect":
                pass
            return
        if scope["path"] not in ("/good", "/early", "/"):
            if scope["path"] != "/anonymous":
                account = dict(scope["headers"]).get(b"account", b"tenant")
                get_context(scope).account = account.decode()
            more = True
            while more:
                message = await receive()
                if message["type"] != "http.request":
                    return
                size += len(message["body"])
                more = message["more_body"]
        await send_response(send, Response(200, b"%d" % size))

    async def open(
        self, data: bytes = b"", source: str = "127.0.0.1"
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", self.number, local_addr=(source, 0)
        )
        writer.write(data)
        await writer.drain()
        return reader, writer

    async def hold(
        self, stack: AsyncExitStack, data: bytes = b"", source: str = "127.0.0.1"
    ) -> asyncio.StreamReader:
        """A connection that stays open as long as `stack`."""
        reader, writer = await self.open(data, source)
        stack.callback(lambda: (reader, writer.transport.abort()))
        return reader

    async def ask(self, data: bytes = GOOD, source: str = "127.0.0.1") -> bytes:
        """The whole response of a connection of its own, which the server or the client closes."""
        reader, writer = await self.open(data, source)
        try:
            async with asyncio.timeout(20):
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0])
                return head + await reader.readexactly(length)
        finally:
            writer.transport.abort()


@asynccontextmanager
async def serve(**bounds: object) -> AsyncIterator[Port]:
    chosen = ConnectionBounds(**bounds)  # type: ignore[arg-type]
    port = Port(ConnectionTable(chosen))
    async with listen(RequestMiddleware(port.answer, bounds=chosen), port.table) as port.number:
        yield port


async def end_of(reader: asyncio.StreamReader, seconds: float = 20) -> bytes:
    """Return what comes until the server closes, or resets what is still being sent."""
    received = b""
    async with asyncio.timeout(seconds):
        with suppress(ConnectionResetError):
            # a reset would take from a read of all what came before it
            while piece := await reader.read(65_536):
                received += piece
    return received


async def test_head_has_at_most_a_hundred_headers() -> None:
    async with serve() as port:
        for count, status in ((100, b"200"), (101, b"431"), (16_300, b"431")):
            headers = b"".join(b"a:b\r\n" for _ in range(count - 1))
            answer = await port.ask(b"GET / HTTP/1.1\r\nHost: x\r\n" + headers + b"\r\n")
            assert answer.split()[1] == status, count
            assert b"x-request-id: req_" in answer


@pytest.mark.parametrize("form", ["one value", "many headers", "target", "unfinished value"])
async def test_head_has_at_most_32_kib(form: str) -> None:
    over = 33 * 1024
    head = {
        "one value": b"GET / HTTP/1.1\r\nHost: x\r\na: " + b"b" * over + b"\r\n\r\n",
        "many headers": b"GET / HTTP/1.1\r\nHost: x\r\n"
        + (b"a: " + b"b" * 1000 + b"\r\n") * 34
        + b"\r\n",
        "target": b"GET /" + b"a" * over + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        "unfinished value": b"GET / HTTP/1.1\r\nHost: x\r\na: " + b"b" * over,
    }[form]
    async with serve() as port:
        assert (await port.ask(head)).split()[1] == b"431"
        fits = b"GET / HTTP/1.1\r\nHost: x\r\na: " + b"b" * (31 * 1024) + b"\r\n\r\n"
        assert (await port.ask(fits)).split()[1] == b"200"


@pytest.mark.parametrize(
    ("start", "error"),
    [
        ("GET /", "text"),
        ("GET /api/v1/me", "text"),
        ("POST /v1/chat/completions", {"param": None, "type": "invalid_request_error"}),
        ("POST /v1/models/a:generateContent", {"status": "INVALID_ARGUMENT", "details": []}),
        ("GET /v1/models?key=x", {"status": "INVALID_ARGUMENT", "details": []}),
        ("GET /v1beta/models", {"status": "INVALID_ARGUMENT", "details": []}),
    ],
)
async def test_refused_head_is_answered_in_the_dialect_of_its_path(
    start: str, error: dict[str, object] | str
) -> None:
    first = start.encode() + b" HTTP/1.1\r\nHost: x\r\n"
    many = b"".join(b"a:b\r\n" for _ in range(101))
    heads = {400: b"a b: c\r\n\r\n", 431: many + b"\r\n"}
    async with serve() as port:
        for status, headers in heads.items():
            answer = await port.ask(first + headers)
            assert int(answer.split()[1]) == status
            found = orjson.loads(answer.partition(b"\r\n\r\n")[2])["error"]
            if isinstance(error, str):
                assert isinstance(found, str)
            else:
                assert found.items() >= error.items()
        for before in (b"GOOD /v1 HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01" + first):
            answer = await port.ask(before)
            assert isinstance(orjson.loads(answer.partition(b"\r\n\r\n")[2])["error"], str)


TRAILERS = {
    "few": (b"ab:\r\n" * 10 + b"\r\n", b" 200 "),
    "many that end with the message": (b"ab:\r\n" * 12_000 + b"\r\n", b""),
    "many": (b"a: b\r\n" * 100_000, b""),
    "long": (b"a: " + b"b" * 2_000_000, b""),
}


@pytest.mark.parametrize("name", TRAILERS)
async def test_trailers_count_with_the_headers(name: str) -> None:
    trailers, status = TRAILERS[name]
    start = b"POST /body HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n"
    async with serve() as port:
        reader, writer = await port.open(start)
        with suppress(ConnectionError):
            writer.write(trailers)
            await writer.drain()
        if status:
            assert status in await reader.readline()
        else:
            # a second response would stand in the middle of the first
            assert b" 200 " not in await end_of(reader)
        writer.transport.abort()


async def test_unfinished_head_behind_a_body_is_bounded() -> None:
    async with serve() as port:
        first = b"POST /held HTTP/1.1\r\nHost: x\r\ncontent-length: 1\r\n\r\n"
        reader, writer = await port.open(first)
        with suppress(ConnectionError):
            writer.write(b"XGET /good HTTP/1.1\r\nHost: x\r\na: " + b"b" * 240_000)
            await writer.drain()
        await end_of(reader)
        writer.transport.abort()


async def test_closed_connection_is_freed_without_the_garbage_collector() -> None:
    table = ConnectionTable(ConnectionBounds())
    protocols: list[weakref.ref[Protocol]] = []

    async def reply(scope: Scope, receive: Receive, send: Send) -> None:
        await send_response(send, Response(200, b"ok"))

    def build() -> Protocol:
        protocol = build_protocol(reply, table)
        protocols.append(weakref.ref(protocol))
        return protocol

    loop = asyncio.get_running_loop()
    server = await loop.create_server(build, "127.0.0.1", 0)
    gc.collect()
    gc.disable()
    try:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(GOOD)
        await reader.readuntil(b"ok")
        writer.close()
        await wait_for(lambda: protocols[0]() is None, what="the end of the connection", seconds=10)
    finally:
        gc.enable()
        server.close()


async def test_pipelined_requests_are_few() -> None:
    async with serve() as port:
        reader, writer = await port.open(b"GET /held HTTP/1.1\r\nHost: x\r\n\r\n" + GOOD * 5000)
        await end_of(reader)
        writer.transport.abort()
        reader, writer = await port.open(GOOD * 5)
        for _ in range(5):
            assert (await reader.readuntil(b"\r\n\r\n")).split()[1] == b"200"
            await reader.readexactly(1)
        writer.transport.abort()


async def drip(port: Port, start: bytes, piece: bytes) -> bytes:
    """What the server sends until it closes a connection on which `piece` comes again and again."""
    reader, writer = await port.open(start)

    async def write() -> None:
        with suppress(ConnectionError):
            while True:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0.05)

    writing = asyncio.create_task(write())
    answer = await end_of(reader)
    writing.cancel()
    writer.transport.abort()
    return answer


async def test_dripping_head_is_answered_408_at_its_deadline() -> None:
    async with serve(head_seconds=0.3) as port:
        began = time.monotonic()
        answer = await drip(port, b"GET / HTTP/1.1\r\nHost: x\r\n", b"a: b\r\n")
        assert answer.split()[1] == b"408"
        assert time.monotonic() - began > 0.25


@pytest.mark.parametrize("first", [b"", b"\r\n", GOOD, GOOD + b"\r\n"])
async def test_idle_connection_is_closed_whatever_it_had(first: bytes) -> None:
    async with serve(idle_seconds=0.1) as port:
        reader, writer = await port.open(first)
        await end_of(reader)
        writer.transport.abort()


async def test_rest_of_an_answered_body_has_a_deadline() -> None:
    async with serve(drain_seconds=0.3) as port:
        head = b"POST /early HTTP/1.1\r\nHost: x\r\nContent-Length: 9999\r\n\r\n"
        assert (await drip(port, head, b"a")).split()[1] == b"200"


@pytest.mark.parametrize("path", [b"/v1/x/body", b"/api/v1/body"])
async def test_slow_body_ends_in_the_dialect_of_its_surface(
    path: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies, "IDLE_SECONDS", 0.1)

    head = b" HTTP/1.1\r\nHost: x\r\nAuthorization: a\r\nContent-Length: 9\r\n\r\na"
    async with serve() as port:
        head, _, body = (await port.ask(b"POST " + path + head)).partition(b"\r\n\r\n")
    error = orjson.loads(body)["error"]
    assert head.split()[1] == b"503"
    assert b"retry-after: " in head
    form = Dialect.OPENAI if path.startswith(b"/v1/") else Dialect.TASK
    assert isinstance(error, dict if form is Dialect.OPENAI else str)


JSON_HEAD = (
    b"POST /body HTTP/1.1\r\nHost: x\r\n"
    b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n"
)


@pytest.fixture
def json_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Room for 3 MB of JSON bodies, 2 MB of one tenant."""
    memory = bodies.BodyMemory(3_000_000, 2_000_000)
    monkeypatch.setattr("gateway_web.middleware.requests.BodyMemory", lambda: memory)


@pytest.mark.usefixtures("json_memory")
async def test_unfinished_json_bodies_of_one_tenant_are_bounded_in_bytes() -> None:
    """Small bodies pass while large ones hold everything."""
    async with serve() as port, AsyncExitStack() as stack:
        readers = [await port.hold(stack, JSON_HEAD % 900_000 + b"a" * 600_000) for _ in range(6)]
        reading = [asyncio.create_task(reader.readuntil(b"\r\n\r\n")) for reader in readers]
        await wait_for(lambda: sum(task.done() for task in reading) == 3, what="three refusals")
        assert [task.result().split()[1] for task in reading if task.done()] == [b"503"] * 3
        assert (await port.ask(JSON_HEAD % 10_000 + b"a" * 10_000)).split()[1] == b"200"
        assert (await port.ask(JSON_HEAD % 90_000 + b"a" * 90_000)).split()[1] == b"200"
        for task in reading:
            task.cancel()


@pytest.mark.usefixtures("json_memory")
async def test_memory_is_given_back_with_the_request() -> None:
    async with serve() as port:
        for _ in range(4):
            answer = await port.ask(JSON_HEAD % 900_000 + b"a" * 900_000)
            assert answer.endswith(b"900000")


@pytest.mark.parametrize(
    ("addresses", "most"), [(1, 20), (50, 30)], ids=["one address", "many addresses"]
)
async def test_flood_keeps_no_client_out(addresses: int, most: int) -> None:
    """Neither others nor itself: the longest waiting connections make room."""
    async with serve(connections=30, per_address=20) as port, AsyncExitStack() as stack:
        for number in range(100):
            await port.hold(stack, b"GET / HT", source=f"127.0.1.{1 + number % addresses}")
        assert len(port.table) <= most
        assert port.table.refused == 0
        for source in ("127.0.1.1", "127.0.0.2"):
            assert (await port.ask(source=source)).split()[1] == b"200"


async def test_connections_with_requests_are_refused_beyond_the_bound() -> None:
    bounds = {"connections": 60, "per_address": 5, "refusal_seconds": 0.5}
    async with serve(**bounds) as port, AsyncExitStack() as stack:
        for _ in range(5):
            await port.hold(stack, b"GET /held HTTP/1.1\r\nHost: x\r\n\r\n")
        await wait_for(lambda: port.begun == 5, what="the requests")
        refused = await port.ask()
        assert refused.split()[1] == b"503"
        assert b"retry-after: 5\r\n" in refused
        assert (await port.ask(source="127.0.0.2")).split()[1] == b"200"
        # a refused connection that sends nothing is closed as well
        reader = await port.hold(stack)
        assert await end_of(reader) == b""
        assert len(port.table) == 5


async def test_unauthenticated_bodies_make_room_and_authenticated_ones_do_not() -> None:
    def post(path: str) -> bytes:
        return f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\na".encode()

    async with serve(connections=10, per_address=6) as port, AsyncExitStack() as stack:
        kept, writer = await port.open(post("/body"))
        stack.callback(writer.transport.abort)
        for source in ("127.0.0.1", "127.0.0.2"):
            for _ in range(20):
                await port.hold(stack, post("/anonymous"), source)
        await wait_for(lambda: len(port.table) <= 10, what="the bound")
        for source in ("127.0.0.1", "127.0.0.2", "127.0.0.3"):
            assert (await port.ask(source=source)).split()[1] == b"200"
        writer.write(b"12345678")
        assert (await kept.readuntil(b"\r\n\r\n")).split()[1] == b"200"


async def test_bodies_of_one_account_make_room_once_they_take_a_quarter() -> None:
    body = b"POST /body HTTP/1.1\r\nHost: x\r\nAccount: %b\r\nContent-Length: 9\r\n\r\na"
    async with serve(connections=12, per_address=6) as port, AsyncExitStack() as stack:
        others = [await port.hold(stack, body % b"other") for _ in range(3)]
        slow: list[asyncio.StreamReader] = []
        for source in ("127.0.0.1", "127.0.0.2", "127.0.0.3"):
            slow += [await port.hold(stack, body % b"slow", source) for _ in range(3)]
        await wait_for(lambda: len(port.table) == 12, what="all connections")
        for number in range(6):
            # a client that waits itself makes room for the next one
            answer = await port.ask(source=f"127.0.0.{10 + number}")
            assert answer.split()[1] == b"200"
        assert await end_of(slow[0]) == b""
        assert not any(reader.at_eof() for reader in others)


async def test_clients_behind_a_trusted_proxy_are_bounded_by_request() -> None:
    proxies = (ip_network("127.0.0.3/32"),)
    async with (
        serve(per_address=5, trusted_proxies=proxies) as port,
        AsyncExitStack() as stack,
    ):
        held = b"GET /held HTTP/1.1\r\nHost: x\r\nX-Forwarded-For: 192.0.2.9, 198.51.100.1\r\n\r\n"
        for _ in range(5):
            await port.hold(stack, held, source="127.0.0.3")
        await wait_for(lambda: port.begun == 5, what="the requests")
        good = b"GET /good HTTP/1.1\r\nHost: x\r\nX-Forwarded-For: %b\r\n\r\n"
        flooding = await port.ask(good % b"198.51.100.1", "127.0.0.3")
        assert flooding.split()[1] == b"503"
        assert b"retry-after: " in flooding
        for _ in range(6):  # one after the other
            assert (await port.ask(good % b"198.51.100.2", "127.0.0.3")).split()[1] == b"200"
        # a client's own header says nothing
        assert (await port.ask(good % b"198.51.100.1", "127.0.0.4")).split()[1] == b"200"


@pytest.mark.parametrize(
    "sent", [b"", b"GET / HTTP/1.1\r\nHost: x\r\n" + b"a: %b\r\n" % (b"b" * 300) * 99]
)
async def test_waiting_connection_takes_little_memory(sent: bytes) -> None:
    """With nothing received, and with the largest unfinished heads."""
    count = 60
    async with serve(head_seconds=120) as port, AsyncExitStack() as stack:
        await port.ask()
        gc.collect()
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            for _ in range(count):
                await port.hold(stack, sent)
            await wait_for(lambda: len(port.table) == count, what="the connections")
            # its answer comes after all that was sent before
            await port.ask()
            gc.collect()
            used = tracemalloc.get_traced_memory()[0] - before
        finally:
            tracemalloc.stop()
        # the client's side is measured with it
        assert used / count < 128 * 1024
