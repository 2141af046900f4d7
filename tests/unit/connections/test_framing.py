"""The corpus of framing cases on the protocol, in one piece and in many."""

import asyncio
import re
from typing import Any

import pytest

from gateway_web.http1.connections import ConnectionBounds, ConnectionTable
from tests.servers.framing_cases import CASES, NEXT, Case, Request
from tests.servers.listener import build_protocol

STATUS = re.compile(rb"HTTP/1\.1 (\d+) ")
LONG = 1000


class MemoryTransport(asyncio.Transport):
    """A connection without a socket."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.protocol: Any = None
        self._is_closing = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Nothing: it takes everything."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self._is_closing
        self.written += data

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)

    def pause_reading(self) -> None:
        """Nothing: what is fed is read."""

    def resume_reading(self) -> None:
        """Nothing."""


class Connection:
    """One connection of an application that keeps what it is sent."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.headers: list[Any] = []
        """Those of the latest request."""
        self.transport = MemoryTransport()

        async def app(scope: Any, receive: Any, send: Any) -> None:
            await self._serve(scope, receive, send)

        self.protocol = build_protocol(app, ConnectionTable(ConnectionBounds()))
        self.transport.protocol = self.protocol
        self.protocol.connection_made(self.transport)

    async def _serve(self, scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", scope["path"] != "/early"
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message["body"]
            more = message["more_body"]
        self.headers = scope["headers"]
        self.requests.append((scope["method"], scope["path"], body))
        headers = [(b"content-length", b"2")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"ok"})

    async def feed(self, pieces: list[bytes], turns: int = 0) -> None:
        """Receive pieces, with so many turns of the event loop after each, until all is served."""
        for piece in pieces:
            if self.transport.is_closing():
                break
            self.protocol.data_received(piece)
            for _ in range(turns):
                await asyncio.sleep(0)
        for _ in range(40):
            await asyncio.sleep(0)

    @property
    def statuses(self) -> list[int]:
        return [int(status) for status in STATUS.findall(self.transport.written)]


def check(case: Case, connection: Connection) -> None:
    assert connection.requests == list(case.requests)
    served = [200] * len(case.requests)
    expected = [[*served, case.refused]] if case.refused else [served]
    if case.requests:
        expected.append(served)
    assert connection.statuses in expected
    assert connection.transport.is_closing() == case.closes


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
async def test_connection_has_exactly_the_requests_of_rfc_9112(case: Case) -> None:
    small = 1 if len(case.data) < LONG else LONG
    for size, turns in ((len(case.data), 0), (small, 0), (small, 3)):
        pieces = [case.data[at : at + size] for at in range(0, len(case.data), size)]
        connection = Connection()
        await connection.feed(pieces, turns)
        check(case, connection)


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.name in ("upgrade h2c, length", "upgrade h2c, chunked")]
)
async def test_body_behind_an_upgrade_is_whole_wherever_it_is_split(case: Case) -> None:
    for at in range(1, len(case.data)):
        connection = Connection()
        await connection.feed([case.data[:at], case.data[at:]])
        check(case, connection)


async def test_host_of_an_absolute_target_replaces_the_header() -> None:
    connection = Connection()
    data = b"GET http://[::1]:80?a=b HTTP/1.1\r\nHost: other\r\nA: b\r\n\r\n"
    await connection.feed([data])
    assert connection.headers == [(b"a", b"b"), (b"host", b"[::1]:80")]


@pytest.mark.parametrize(("sent", "statuses"), [(b"", [200]), (b"he", [200, 200])])
@pytest.mark.parametrize(
    "expect",
    [
        b"100-continue",
        b"100-Continue \t",
        b"100-continue, 100-continue",
        b"100-continue;a=b",
        b"100-continue\r\nExpect: other",
        b"other\r\nExpect: 100-continue",
    ],
)
async def test_early_response_ends_the_connection_of_a_client_that_waits_to_send_its_body(
    expect: bytes, sent: bytes, statuses: list[int]
) -> None:
    """Such a client may send its next request in place of the body."""
    fields = b"Host: x\r\nExpect: " + expect + b"\r\nContent-Length: 5\r\n\r\n"
    head = b"POST /early HTTP/1.1\r\n" + fields
    connection = Connection()
    await connection.feed([head + sent, b"hello"[len(sent) :] + NEXT], turns=3)
    assert connection.statuses == statuses
    assert connection.transport.is_closing() == (not sent)


async def test_values_of_headers_have_no_spaces_around_them() -> None:
    connection = Connection()
    await connection.feed([b"GET /x HTTP/1.1\r\nHost: \tx  \r\nA: b c \r\nB:  \r\n\r\n"])
    assert connection.headers == [(b"host", b"x"), (b"a", b"b c"), (b"b", b"")]


async def test_trailers_are_no_headers_of_the_request() -> None:
    connection = Connection()
    head = b"POST / HTTP/1.1\r\nHost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    await connection.feed([head + b"1\r\nx\r\n0\r\nauthorization: Bearer other\r\n\r\n"])
    assert connection.headers == [(b"host", b"x"), (b"transfer-encoding", b"chunked")]
