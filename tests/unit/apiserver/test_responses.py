"""Contents are sent for as long as there is a client that takes them."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator

import pytest
from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive, Scope, Send

from gateway_web.http1.connections import ConnectionBounds, ConnectionTable
from gateway_web.http1.flow import Flow
from gateway_web.responses import send_chunks, send_head
from tests.fakes.clock import in_virtual_time
from tests.servers.listener import listen

CHUNK = bytes(1 << 20)
SECONDS = 30
MANY = 1000
"""Chunks, far more than the sockets of a connection hold."""


class Content:
    """Serves so many chunks, and tells how many were read and how it ended."""

    def __init__(self) -> None:
        self.read = 0
        self.ended = asyncio.get_running_loop().create_future()

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        while self.read < MANY:
            self.read += 1
            await asyncio.sleep(0)
            yield CHUNK

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-length", b"%d" % (MANY * len(CHUNK)))]
        await send_head(send, 200, headers)
        chunks = self.chunks()
        try:
            await send_chunks(receive, send, await anext(chunks), chunks)
        except ClientDisconnect as error:
            self.ended.set_result(error)
        else:
            self.ended.set_result(None)


@pytest.fixture
async def content() -> Content:
    return Content()


def build_table(stall_seconds: float = ConnectionBounds().stall_seconds) -> ConnectionTable:
    return ConnectionTable(ConnectionBounds(stall_seconds=stall_seconds))


@pytest.fixture
async def port(content: Content) -> AsyncIterator[int]:
    """Where it is served, by the gateway's protocol on a real socket."""
    async with listen(content, build_table()) as port:
        yield port


async def begin(port: int) -> asyncio.StreamWriter:
    """A client that has its answer's head and reads no further."""
    # what does not fit in here is left to the socket
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
    writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
    return writer


def watch(transport: object, seconds: float) -> None:
    """Begin to watch a made-up transport."""
    Flow(transport, seconds).pause_writing()  # type: ignore[arg-type]


async def test_content_is_not_read_on_for_a_client_that_has_left(
    content: Content, port: int
) -> None:
    writer = await begin(port)
    writer.transport.abort()
    async with asyncio.timeout(SECONDS):
        assert isinstance(await content.ended, ClientDisconnect)
    assert content.read < MANY / 4


async def test_client_that_takes_nothing_is_cut_off(content: Content) -> None:
    async with listen(content, build_table(stall_seconds=0.2)) as port:
        writer = await begin(port)
        try:
            async with asyncio.timeout(SECONDS):
                assert isinstance(await content.ended, ClientDisconnect)
            assert content.read < MANY / 4
        finally:
            writer.transport.abort()


@in_virtual_time
async def test_client_that_takes_little_steadily_stays() -> None:
    clock = asyncio.get_running_loop().time
    began, aborted = clock(), asyncio.Event()

    class Transport:
        """The kernel takes more each 35 s, for an hour; a client of 8 KiB/s has it each 8 s."""

        def get_write_buffer_size(self) -> int:
            return 1000 - int(min(clock() - began, 3600) / 35)

        def abort(self) -> None:
            aborted.set()

    seconds = build_table().bounds.stall_seconds
    watch(Transport(), seconds)
    await aborted.wait()
    assert clock() - began == pytest.approx(3600 + 2 * seconds, abs=120)


async def test_client_that_is_served_to_the_end_has_not_left() -> None:
    sent: list[Message] = []
    counted: list[int] = []

    async def receive() -> Message:
        if not sent:
            return {"type": "http.request", "body": b"", "more_body": False}
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Message) -> None:
        sent.append(message)
        await asyncio.sleep(0)

    async def rest() -> AsyncIterator[bytes]:
        yield b"b"

    await send_chunks(receive, send, b"a", rest(), counted.append)
    assert b"".join(message["body"] for message in sent) == b"ab"
    # behind each chunk an empty message waits until the client has taken it
    assert [message["body"] for message in sent] == [b"a", b"", b"b", b"", b""]
    assert [message.get("more_body", False) for message in sent] == [True] * 4 + [False]
    assert counted == [1, 1]
