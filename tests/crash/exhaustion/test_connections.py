"""I11: floods without a key leave the API's memory flat and its clients served.

The API runs as a process, with its default bounds of connections.
"""

import asyncio
import time
from contextlib import AsyncExitStack

import psutil
import pytest

from tests.faults.machine import Stopwatch
from tests.servers.world import wait_for
from tests.shares import IS_WHOLE

pytestmark = pytest.mark.timeout(240)

PER_ADDRESS = 1000
"""Connections that one address may have by default."""
FLOOD = 1500
GROWTH_BYTES = 96 * 1024 * 1024
"""Of a thousand connections with heads or bodies of nearly 32 KiB, and what the allocator keeps."""
RESPONSE_SECONDS = 5
HEADERS = b"".join(b"x-%d: %b\r\n" % (n, b"a" * 300) for n in range(98))


@pytest.mark.parametrize(
    ("data", "cut_seconds"),
    [
        (b"", 60),
        (b"GET /api/v1/me HTTP/1.1\r\nHost: x\r\n" + HEADERS, 10),
        (
            b"POST /api/v1/price_quotes HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b'Content-Length: 900000\r\n\r\n{"a": "' + b"a" * 15_000,
            60,
        ),
    ],
    ids=["idle", "slow heads", "slow anonymous bodies"],
)
async def test_flood_without_a_key_leaves_memory_flat_and_clients_served(
    world, data: bytes, cut_seconds: int
) -> None:
    port = world.config.ports.api
    api = psutil.Process(int((world.config.run_directory / "api.pid").read_text()))
    flooding: set[int] = set()
    async with world.client() as client:
        assert (await client.request("GET", "/api/v1/me")).status == 200
        head = f"GET /api/v1/me HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {client.key}\r\n\r\n"

    async def is_served(address: str) -> bool:
        """Whether a client with a key gets its response, from one address of loopback."""
        try:
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", port, local_addr=(address, 0)
            )
        except OSError:
            return False
        try:
            writer.write(head.encode())
            return (await reader.readline()).split()[1:2] == [b"200"]
        except ConnectionError:
            return False
        finally:
            writer.transport.abort()

    def count_open() -> int:
        """Connections of the flood that the API has open."""
        peers = {each.raddr.port for each in api.net_connections("tcp") if each.raddr}
        return len(peers & flooding)

    async with AsyncExitStack() as stack:
        before = api.memory_info().rss

        async def flood() -> None:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            flooding.add(writer.get_extra_info("sockname")[1])
            stack.callback(lambda: (reader, writer.transport.abort()))
            writer.write(data)

        for start in range(0, FLOOD, 100):
            await asyncio.gather(*(flood() for _ in range(min(100, FLOOD - start))))
        # connections without an authenticated request make room, also for the flood's address
        assert await is_served("127.0.0.1")
        slowest = 0.0
        with Stopwatch() as timed:
            for _ in range(20):
                began = time.monotonic()
                assert await is_served("127.0.0.2")
                slowest = max(slowest, time.monotonic() - began)
        held = count_open()
        growth = api.memory_info().rss - before
        print(f"{held} open, {growth / 2**20:.0f} MiB more, slowest response {slowest:.3f} s")
        assert held <= PER_ADDRESS
        assert growth < GROWTH_BYTES
        timed.check("response during a flood", RESPONSE_SECONDS, slowest)
        # the flood keeps its ends open: what is closed, the API has closed
        if IS_WHOLE or cut_seconds <= 10:
            await wait_for(
                lambda: not count_open(),
                seconds=cut_seconds + 30,
                what="the end of all connections of the flood",
            )
            assert await is_served("127.0.0.1")
    await wait_for(lambda: is_served("127.0.0.1"), what="service to the flood's address")
