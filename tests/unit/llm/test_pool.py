"""Connections of a client: their number, their reuse, and the calls that wait for them."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from gateway_core.llm import client as llm_client
from gateway_core.llm.client import Client
from gateway_core.providers.upstream import UpstreamBusy, UpstreamInterrupted, UpstreamUnclear
from tests.unit.llm.conftest import (
    OK,
    SECONDS,
    answer_with,
    listen,
    post,
    post_and_read,
    read_request,
    wait_for_eof,
    write_apart,
)


class Gate:
    """Answers requests once it is open; `waiting` counts those that arrived."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.bodies = asyncio.Queue()

    async def serve(self, reader, writer):
        while True:
            _, body = await read_request(reader)
            await self.bodies.put(body)
            await self.open.wait()
            writer.write(OK)


@asynccontextmanager
async def gated(limit=1):
    """A gate, its upstream, and a client with at most so many connections."""
    gate = Gate()
    async with listen(gate.serve) as upstream:
        client = upstream.client(limit=limit)
        yield gate, upstream, client
        client.close()
        await upstream.wait_until_open(0)


async def test_connections_are_bounded_and_calls_wait_in_order():
    async with gated(limit=2) as (gate, upstream, client):
        calls = [asyncio.create_task(post_and_read(client, b"%d" % n)) for n in range(9)]
        for _ in range(2):
            await gate.bodies.get()
        gate.open.set()
        async with asyncio.timeout(SECONDS):
            assert await asyncio.gather(*calls) == [b"ok"] * 9
        assert [gate.bodies.get_nowait() for _ in range(7)] == [b"%d" % n for n in range(2, 9)]
        assert upstream.connections == upstream.most_open == 2


async def test_calls_that_give_up_waiting_leave_their_turn_to_others():
    async with gated() as (gate, upstream, client):
        calls = [asyncio.create_task(post_and_read(client, b"%d" % n)) for n in range(5)]
        await gate.bodies.get()
        for n in (1, 3):
            calls[n].cancel()
        gate.open.set()
        async with asyncio.timeout(SECONDS):
            results = await asyncio.gather(*calls, return_exceptions=True)
        assert [result == b"ok" for result in results] == [True, False, True, False, True]
        assert await post_and_read(client) == b"ok"
        assert upstream.connections == 1


async def test_turn_that_comes_with_the_cancellation_is_passed_on():
    async def call_and_cancel_next():
        response = await post(client)
        # its end has handed the connection to the second call, which has not run since
        second.cancel()
        return await response.read(9)

    async with gated() as (gate, upstream, client):
        first = asyncio.create_task(call_and_cancel_next())
        await gate.bodies.get()
        second = asyncio.create_task(post_and_read(client))
        third = asyncio.create_task(post_and_read(client))
        gate.open.set()
        async with asyncio.timeout(SECONDS):
            assert await asyncio.gather(first, third) == [b"ok", b"ok"]
        assert second.cancelled()
        assert upstream.connections == 1


async def test_waiting_call_opens_a_connection_where_another_ends():
    async with gated() as (gate, upstream, client):
        first = asyncio.create_task(post(client))
        await gate.bodies.get()
        second = asyncio.create_task(post_and_read(client))
        await asyncio.sleep(0)
        first.cancel()
        gate.open.set()
        async with asyncio.timeout(SECONDS):
            assert await second == b"ok"
        assert upstream.connections == 2


async def test_failed_connections_free_their_slots(unused_tcp_port):
    client = Client(f"http://127.0.0.1:{unused_tcp_port}", 1)
    async with asyncio.timeout(SECONDS):
        results = await asyncio.gather(*(post(client) for _ in range(5)), return_exceptions=True)
    assert all(isinstance(result, UpstreamBusy) for result in results)


async def test_call_without_a_turn_is_refused(monkeypatch):
    monkeypatch.setattr(llm_client, "_TURN_SECONDS", 0.02)
    async with gated() as (gate, _, client):
        first = asyncio.create_task(post_and_read(client))
        await gate.bodies.get()
        with pytest.raises(UpstreamBusy, match="Too many"):
            await post(client)
        gate.open.set()
        assert await first == b"ok"


async def test_request_is_repeated_once_where_a_kept_connection_was_closed():
    served = []

    async def serve(reader, writer):
        while True:
            _, body = await read_request(reader)
            served.append(body)
            if body == b"close" and len(served) > 1 and served[-2] != b"close":
                return
            writer.write(OK)

    async with listen(serve) as upstream:
        client = upstream.client()
        assert await post_and_read(client, b"first") == b"ok"
        assert await post_and_read(client, b"close") == b"ok"
        assert served == [b"first", b"close", b"close"]
        assert upstream.connections == 2
        client.close()


async def test_request_is_not_repeated_on_another_kept_connection():
    gate = Gate()

    async def serve(reader, writer):
        is_old = upstream.connections <= 2
        for _ in range(1 if is_old else 2):
            _, body = await read_request(reader)
            await gate.bodies.put(body)
            await gate.open.wait()
            writer.write(OK)
        # the request after the first one is read and not answered
        await read_request(reader)

    async with listen(serve) as upstream:
        client = upstream.client()
        calls = [asyncio.create_task(post_and_read(client)) for _ in range(2)]
        for _ in calls:
            await gate.bodies.get()
        gate.open.set()
        await asyncio.gather(*calls)
        assert upstream.open == 2
        assert await post_and_read(client) == b"ok"
        assert upstream.connections == 3
        client.close()


async def test_request_is_not_repeated_on_a_new_connection_or_twice():
    served = []

    async def serve(reader, writer):
        while True:
            _, body = await read_request(reader)
            served.append(body)
            if body == b"close":
                return
            writer.write(OK)

    async with listen(serve) as upstream:
        client = upstream.client()
        with pytest.raises(UpstreamUnclear):
            await post(client, b"close")
        assert served == [b"close"]
        assert await post_and_read(client, b"keep") == b"ok"
        with pytest.raises(UpstreamUnclear):
            await post(client, b"close")
        assert served == [b"close", b"keep", b"close", b"close"]


async def test_request_is_not_repeated_after_the_first_byte_of_an_answer():
    served = []

    async def serve(reader, writer):
        while True:
            _, body = await read_request(reader)
            served.append(body)
            if body == b"part":
                await write_apart(writer, b"H")
                return
            writer.write(OK)

    async with listen(serve) as upstream:
        client = upstream.client()
        assert await post_and_read(client, b"whole") == b"ok"
        with pytest.raises(UpstreamUnclear):
            await post(client, b"part")
        assert served == [b"whole", b"part"]


async def test_connection_with_a_late_second_response_is_not_reused():
    async with listen(answer_with(OK, OK)) as upstream:
        client = upstream.client()
        for _ in range(3):
            assert await post_and_read(client) == b"ok"
            await upstream.wait_until_open(0)
        assert upstream.connections == 3


async def test_aborted_response_is_not_read_on_by_the_next_call():
    async def serve(reader, writer):
        await read_request(reader)
        await write_apart(writer, OK[:-1])
        if upstream.connections > 1:
            writer.write(OK[-1:])
        await wait_for_eof(reader)

    async with listen(serve) as upstream:
        client = upstream.client()
        response = await post(client)
        response.abort()
        assert await post_and_read(client) == b"ok"
        assert upstream.connections == 2
        client.close()


async def test_abort_of_a_whole_response_keeps_the_connection():
    async with listen(answer_with(OK)) as upstream:
        client = upstream.client()
        for _ in range(3):
            response = await post(client)
            response.abort()
            assert await response.read(9) == b"ok"
        assert upstream.connections == 1
        client.close()


async def test_free_connections_are_closed_after_their_time():
    async with listen(answer_with(OK)) as upstream:
        client = Client(f"http://127.0.0.1:{upstream.port}", 4, idle_seconds=0.02)
        await asyncio.gather(*(post_and_read(client) for _ in range(4)))
        assert upstream.open > 1
        await upstream.wait_until_open(0)
        assert await post_and_read(client) == b"ok"
        client.close()


async def test_closed_client_refuses_calls_and_lets_others_end():
    async with gated() as (gate, _, client):
        under_way = asyncio.create_task(post_and_read(client))
        await gate.bodies.get()
        waiting = asyncio.create_task(post(client))
        await asyncio.sleep(0)
        client.close()
        for call in (waiting, post(client)):
            with pytest.raises(UpstreamBusy, match="reconfigured"):
                await call
        gate.open.set()
        assert await under_way == b"ok"


async def test_closed_client_leaves_cancelled_calls_alone():
    async with gated() as (gate, _, client):
        under_way = asyncio.create_task(post(client))
        await gate.bodies.get()
        waiting = asyncio.create_task(post(client))
        await asyncio.sleep(0)
        waiting.cancel()
        client.close()
        under_way.cancel()
        results = await asyncio.gather(waiting, under_way, return_exceptions=True)
        assert [type(result) for result in results] == [asyncio.CancelledError] * 2
        gate.open.set()


async def test_random_calls_leave_no_connection_and_no_slot():
    """Calls that end in every way, beside each other on few connections."""

    async def serve(reader, writer):
        while True:
            _, body = await read_request(reader)
            if body.endswith(b"0"):
                return
            await write_apart(writer, OK[:-1])
            if body.endswith(b"1"):
                return
            await write_apart(writer, OK[-1:])

    async def call(number):
        response = await post(client, b"%d" % number)
        if number % 7 == 3:
            response.abort()
        return await response.read(9)

    async with listen(serve) as upstream:
        client = upstream.client(limit=3)
        calls = [asyncio.create_task(call(number)) for number in range(300)]
        for number in range(4, 300, 9):
            asyncio.get_running_loop().call_later(0.0001 * number, calls[number].cancel)
        async with asyncio.timeout(SECONDS * 4):
            results = await asyncio.gather(*calls, return_exceptions=True)
        ended = (UpstreamInterrupted, UpstreamUnclear, asyncio.CancelledError)
        assert all(result == b"ok" or isinstance(result, ended) for result in results)
        assert results.count(b"ok") > 100
        assert upstream.most_open <= 3 + 1
        assert await asyncio.gather(*(post_and_read(client, b"2") for _ in range(9))) == [b"ok"] * 9
        client.close()
        await upstream.wait_until_open(0)
