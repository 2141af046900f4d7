"""Responses with a doubtful end: the next call on the client gets its own response."""

import asyncio

import pytest

from gateway_core.providers.upstream import UpstreamError
from tests.unit.llm.conftest import OK, SECONDS, listen, post, post_and_read, read_request

EVIL = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil"
"""Bytes that must never be read as a response to another call."""


def head(*fields: bytes, status: bytes = b"200 OK") -> bytes:
    return b"HTTP/1.1 %b\r\n" % status + b"".join(field + b"\r\n" for field in fields) + b"\r\n"


LENGTH = b"content-length: 2"
CHUNKED = b"transfer-encoding: chunked"
UPGRADE = b"connection: upgrade\r\nupgrade: h2c"

WHOLE = {
    "another response behind": (OK + EVIL, b"ok", 2),
    "bytes behind": (OK + b"x", b"ok", 2),
    "line ends behind": (OK + b"\r\n\r\n", b"ok", 1),
    "space behind values": (
        head(b"transfer-encoding: chunked  ", b"content-encoding: identity ")
        + b"2\r\nok\r\n0\r\n\r\n",
        b"ok",
        1,
    ),
    "upgrade in a 200": (head(UPGRADE, LENGTH) + b"ok", b"ok", 1),
    "interim responses before": (
        head(status=b"100 Continue") + head(b"a: b", status=b"103 E") + OK,
        b"ok",
        1,
    ),
    "length in a 204": (head(b"content-length: 44", status=b"204 No Content") + EVIL, b"", 2),
    "chunked in a 304": (head(CHUNKED, status=b"304 Not Modified") + EVIL, b"", 2),
    "close": (head(LENGTH, b"connection: close") + b"ok" + EVIL, b"ok", 2),
    "HTTP/1.0": (b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok" + EVIL, b"ok", 2),
    "trailer Connection": (
        head(CHUNKED) + b"2\r\nok\r\n0\r\nconnection: close\r\n\r\n" + EVIL,
        b"ok",
        2,
    ),
}
BROKEN = {
    "switched protocols": head(UPGRADE, status=b"101 Switching Protocols") + EVIL,
    "two lengths": head(LENGTH, LENGTH) + b"ok",
    "two unequal lengths": head(LENGTH, b"content-length: 44") + b"ok" + EVIL,
    "listed lengths": head(b"content-length: 2, 2") + b"ok",
    "length with a sign": head(b"content-length: +2") + b"ok",
    "length with chunked": head(LENGTH, CHUNKED) + b"0\r\n\r\n" + EVIL,
    "chunked with length": head(CHUNKED, LENGTH) + b"0\r\n\r\n" + EVIL,
    "another coding": head(b"transfer-encoding: xchunked") + b"ok",
    "tab behind the coding": head(b"transfer-encoding: chunked\t") + b"0\r\n\r\n" + EVIL,
    "two codings": head(b"transfer-encoding: gzip, chunked") + b"0\r\n\r\n" + EVIL,
    "bare LF": b"HTTP/1.1 200 OK\ncontent-length: 2\n\nok" + EVIL,
    "folded header": head(LENGTH, b"a: b\r\n c") + b"ok",
    "space before colon": head(b"content-length : 2") + b"ok",
    "chunk size with a bare LF": head(CHUNKED) + b"2\nok\r\n0\r\n\r\n" + EVIL,
    "chunk longer than its size": head(CHUNKED) + b"2\r\nokXX\r\n0\r\n\r\n" + EVIL,
    "length in a trailer": head(CHUNKED) + b"2\r\nok\r\n0\r\ncontent-length: 44\r\n\r\n" + EVIL,
    "HTTP/0.9": b"evil",
}


class Provider:
    """Sends `data` in response to the first request, and `OK` to others."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await read_request(reader)
            data, self._data = self._data, OK
            writer.write(data)


@pytest.mark.parametrize("name", WHOLE)
async def test_bytes_behind_a_response_are_no_response_to_the_next_call(name: str) -> None:
    data, body, connections = WHOLE[name]
    async with listen(Provider(data).serve) as upstream, asyncio.timeout(SECONDS):
        client = upstream.client()
        assert await (await post(client)).read(99) == body
        assert await post_and_read(client) == b"ok"
        assert upstream.connections == connections
        client.close()


@pytest.mark.parametrize("name", BROKEN)
async def test_connection_ends_with_a_response_that_is_not_framed_beyond_doubt(name: str) -> None:
    async with listen(Provider(BROKEN[name]).serve) as upstream, asyncio.timeout(SECONDS):
        client = upstream.client()
        with pytest.raises(UpstreamError):
            await (await post(client)).read(99)
        assert await post_and_read(client) == b"ok"
        assert upstream.connections == 2
        client.close()
