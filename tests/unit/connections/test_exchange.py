"""Heads and bodies of responses as `Exchange` writes them."""

import asyncio
from http import HTTPStatus
from typing import Any

import pytest

from gateway_web.context import Drain, RequestContext
from gateway_web.http1.exchange import EXCHANGE_KEY, Exchange
from gateway_web.http1.flow import Flow
from gateway_web.responses import ResponseSender, send_end, send_head


class Transport:
    """Keeps each write by itself."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.is_closed = False

    def write(self, data: bytes) -> None:
        self.writes.append(data)

    def close(self) -> None:
        self.is_closed = True

    def get_write_buffer_size(self) -> int:
        return 1


def make(
    method: str = "GET", *, version: str = "1.1", keep_alive: bool = True
) -> tuple[Exchange, Transport]:
    transport: Any = Transport()
    exchange = Exchange(
        {"method": method, "http_version": version},
        transport,
        Flow(transport, 60.0),
        [(b"date", b"today")],
        expects_continue=False,
        keep_alive=keep_alive,
        unread_bytes=1 << 16,
        on_end=lambda: None,
    )
    return exchange, transport


async def start(exchange: Exchange, *headers: tuple[bytes, bytes], status: int = 200) -> None:
    message = {"type": "http.response.start", "status": status, "headers": headers}
    await exchange.send(message)


async def send(exchange: Exchange, body: bytes, *, more: bool = False) -> None:
    await exchange.send({"type": "http.response.body", "body": body, "more_body": more})


async def test_head_goes_with_the_first_bytes() -> None:
    exchange, transport = make()
    await start(exchange, (b"content-length", b"2"))
    assert transport.writes == []
    await send(exchange, b"ok")
    assert transport.writes == [
        b"HTTP/1.1 200 OK\r\ndate: today\r\ncontent-length: 2\r\n\r\nok",
    ]
    assert exchange.response_complete


async def test_body_of_unknown_length_is_chunked() -> None:
    exchange, transport = make(keep_alive=False)
    await start(exchange)
    exchange.write(b"")
    exchange.write(b"first")
    await send(exchange, b"last")
    head, first, last = transport.writes
    assert head.endswith(b"transfer-encoding: chunked\r\nconnection: close\r\n\r\n")
    assert (first, last) == (b"5\r\nfirst\r\n", b"4\r\nlast\r\n0\r\n\r\n")
    assert transport.is_closed


async def test_finish_sends_the_last_chunk_and_ends_the_body() -> None:
    exchange, transport = make()
    exchange.begin(200, [(b"content-type", b"text/event-stream")])
    exchange.write(b"first")
    exchange.finish(b"last")
    assert b"transfer-encoding: chunked\r\n\r\n5\r\nfirst\r\n" in transport.writes[0]
    assert transport.writes[1:] == [b"4\r\nlast\r\n0\r\n\r\n"]
    assert exchange.response_complete


async def test_connection_ends_a_body_of_unknown_length_for_http_1_0() -> None:
    exchange, transport = make(version="1.0", keep_alive=False)
    exchange.begin(200, [])
    exchange.write(b"")
    exchange.write(b"first")
    exchange.finish(b"last")
    head = b"HTTP/1.1 200 OK\r\ndate: today\r\nconnection: close\r\n\r\n"
    assert transport.writes == [head, b"first", b"last"]
    assert transport.is_closed


@pytest.mark.parametrize("status", [204, 304])
async def test_response_that_has_no_body_has_no_length(status: int) -> None:
    exchange, transport = make()
    exchange.respond(status, [], b"dropped")
    assert transport.writes == [
        b"HTTP/1.1 %d %b\r\n" % (status, HTTPStatus(status).phrase.encode())
        + b"date: today\r\n\r\n"
    ]


async def test_second_beginning_is_refused() -> None:
    exchange, transport = make()
    exchange.begin(200, [])
    exchange.write(b"first")
    with pytest.raises(RuntimeError, match="has begun"):
        exchange.begin(500, [])
    assert len(transport.writes) == 1


async def test_body_of_a_known_length_is_not_finished_as_a_chunk() -> None:
    exchange, transport = make()
    exchange.begin(200, [(b"content-length", b"1")])
    with pytest.raises(RuntimeError, match="is known"):
        exchange.finish(b"x")
    assert transport.writes == []


async def test_client_that_has_left_gets_no_response() -> None:
    exchange, transport = make()
    exchange.leave()
    exchange.begin(200, [])
    exchange.write(b"first")
    exchange.finish(b"last")
    assert transport.writes == []


@pytest.mark.parametrize(("method", "status"), [("HEAD", 200), ("GET", 204), ("GET", 304)])
async def test_response_without_a_body_is_not_chunked(method: str, status: int) -> None:
    exchange, transport = make(method)
    await start(exchange, status=status)
    await send(exchange, b"")
    (head,) = transport.writes
    assert b"transfer-encoding" not in head
    assert head.endswith(b"\r\n\r\n")


@pytest.mark.parametrize("body", [b"a", b"abc"])
async def test_body_of_another_length_than_declared_is_refused(body: bytes) -> None:
    exchange, _ = make()
    await start(exchange, (b"content-length", b"2"))
    with pytest.raises(RuntimeError, match="Content-Length"):
        await send(exchange, body)


@pytest.mark.parametrize("value", [b"a\r\nx: b", b"a\nb", b"a\rb", b"a\0b", b"\x7f"])
async def test_header_with_a_control_character_is_refused(value: bytes) -> None:
    exchange, transport = make()
    with pytest.raises(RuntimeError, match="header"):
        await start(exchange, (b"x-test", value))
    assert transport.writes == []


async def test_disconnect_is_reported_once_and_nothing_is_written() -> None:
    exchange, transport = make()
    left: list[bool] = []
    exchange.on_gone = lambda: left.append(exchange.is_gone)
    await start(exchange)
    exchange.leave()
    exchange.write(b"late")
    await send(exchange, b"late")
    assert left == [True]
    assert transport.writes == []


async def test_client_that_leaves_after_the_end_is_no_loss() -> None:
    exchange, _ = make()
    left: list[bool] = []
    exchange.on_gone = lambda: left.append(True)
    await start(exchange, (b"content-length", b"0"))
    await send(exchange, b"")
    exchange.leave()
    assert left == []


async def test_client_that_is_behind_gets_head_and_end_once_it_has_caught_up() -> None:
    exchange, transport = make("POST")
    flow = exchange._flow
    sender = ResponseSender(
        exchange.send, {EXCHANGE_KEY: exchange}, RequestContext("req_x"), Drain()
    )

    flow.pause_writing()
    beginning = asyncio.create_task(send_head(sender, 200, []))
    await asyncio.sleep(0)
    assert (sender.status, exchange.response_started) == (200, False)
    flow.resume_writing()
    await beginning
    exchange.write(b"first")
    assert len(transport.writes) == 1

    flow.pause_writing()
    ending = asyncio.create_task(send_end(sender, exchange, b"last"))
    await asyncio.sleep(0)
    assert not exchange.response_complete
    flow.resume_writing()
    await ending
    assert transport.writes[1:] == [b"4\r\nlast\r\n0\r\n\r\n"]
