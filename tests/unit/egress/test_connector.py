"""Guarded connector: the connected address decides, and a hanging name delays only its caller."""

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from ipaddress import ip_network
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.test_utils import TestServer

from gateway_core.egress import connector as lookups
from gateway_core.egress.addresses import AddressPolicy, AddressRefused
from gateway_core.egress.connector import (
    MOST_ADDRESSES,
    PER_HOLDER,
    THREADS,
    EgressRefused,
    PooledResolver,
    count_lookups,
    guarded_connector,
)
from tests.servers.hostile_urls import tell_addresses

STRICT = AddressPolicy()
LOOPBACK = AddressPolicy(allowed=(ip_network("127.0.0.0/8"), ip_network("::1/128")))


class LyingResolver(AbstractResolver):
    """Says that every host is at `addresses`."""

    def __init__(self, *addresses: str) -> None:
        self._addresses = addresses

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        return tell_addresses(host, port, self._addresses)

    async def close(self) -> None:
        pass


@pytest.fixture
async def port() -> AsyncIterator[int]:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(text="reached")

    application = web.Application()
    application.router.add_get("/", answer)
    async with TestServer(application, host="127.0.0.1") as server:
        assert server.port is not None
        yield server.port


async def fetch(policy: AddressPolicy, url: str, *addresses: str) -> str:
    connector = guarded_connector(policy, 4)
    if addresses:
        connector._resolver = LyingResolver(*addresses)
    async with (
        aiohttp.ClientSession(connector=connector, trust_env=False) as session,
        session.get(url, allow_redirects=False) as response,
    ):
        return await response.text()


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "[::ffff:127.0.0.1]", "localhost", "0x7f.1", "0x7f000001"]
)
async def test_loopback_is_refused_by_its_address(port: int, host: str) -> None:
    with pytest.raises(aiohttp.ClientConnectorError) as refused:
        await fetch(STRICT, f"http://{host}:{port}/")
    assert isinstance(refused.value.os_error, EgressRefused)
    assert isinstance(refused.value.os_error.__cause__, AddressRefused)


@pytest.mark.parametrize("host", ["2130706433", "0", "127.1", "017700000001"])
async def test_loopback_is_refused_in_any_spelling(port: int, host: str) -> None:
    # aiohttp refuses some of these by itself.
    with pytest.raises((aiohttp.ClientConnectorError, aiohttp.InvalidURL)):
        await fetch(STRICT, f"http://{host}:{port}/")


@pytest.mark.parametrize(
    "addresses",
    [
        ("127.0.0.1",),
        ("::ffff:127.0.0.1",),
        ("127.0.0.1", "::1"),
        ("10.0.0.1", "127.0.0.1", "169.254.169.254", "fe80::1"),
    ],
)
async def test_internal_address_of_a_name_is_refused(port: int, addresses: tuple[str, ...]) -> None:
    with pytest.raises(aiohttp.ClientConnectorError) as refused:
        await fetch(STRICT, f"http://rebound.example:{port}/", *addresses)
    assert isinstance(refused.value.os_error, EgressRefused)


async def test_allowed_network_is_reached_but_never_metadata(port: int) -> None:
    assert await fetch(LOOPBACK, f"http://127.0.0.1:{port}/") == "reached"
    assert await fetch(LOOPBACK, f"http://name.example:{port}/", "127.0.0.1") == "reached"
    with pytest.raises(aiohttp.ClientConnectorError):
        await fetch(LOOPBACK, f"http://name.example:{port}/", "169.254.169.254")


async def test_allowed_address_beside_a_refused_one_is_used(port: int) -> None:
    url = f"http://name.example:{port}/"
    assert await fetch(LOOPBACK, url, "169.254.169.254", "127.0.0.1") == "reached"


SECONDS = 0.2
PATIENCE = 20.0
"""For names that are found: a machine may stand still."""


class Names:
    """A name server: those below `dead.test` hang until `end`, all others are at `addresses`."""

    def __init__(self) -> None:
        self.end = threading.Event()
        self.asked: list[str] = []
        self.addresses = ["192.0.2.1"]

    def look_up(self, host: str, port: int, _family: int) -> Any:
        self.asked.append(host)
        if host.endswith("dead.test"):
            self.end.wait(30)
            raise socket.gaierror(-2, "no such name")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (a, port)) for a in self.addresses]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Iterator[Names]:
    server = Names()
    monkeypatch.setattr(lookups, "_look_up", server.look_up)
    yield server
    server.end.set()


@pytest.fixture
async def resolver(names: Names) -> AsyncIterator[PooledResolver]:
    made = PooledResolver()
    yield made
    names.end.set()
    await made.close()


async def find_counted(resolver: PooledResolver, host: str, share: str) -> list[str]:
    """As a fetch does: the wait for a thread counts."""
    async with asyncio.timeout(SECONDS if host.endswith("dead.test") else PATIENCE):
        with count_lookups(share):
            return [found["host"] for found in await resolver.resolve(host, 80)]


async def find(resolver: PooledResolver, host: str, share: str) -> list[str]:
    limit = asyncio.timeout(SECONDS)
    async with limit:
        with count_lookups(share, limit, SECONDS if host.endswith("dead.test") else PATIENCE):
            return [found["host"] for found in await resolver.resolve(host, 80)]


async def wait_until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - threads set it
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("holders", [1, THREADS // PER_HOLDER - 1])
async def test_hanging_names_leave_threads_to_other_holders(
    names: Names, resolver: PooledResolver, holders: int
) -> None:
    hanging = [
        asyncio.create_task(find(resolver, f"h{n}.dead.test", f"evil-{holder}"))
        for holder in range(holders)
        for n in range(2 * PER_HOLDER)
    ]
    await wait_until(lambda: len(names.asked) == holders * PER_HOLDER)
    assert await find(resolver, "well.test", "good") == ["192.0.2.1"]
    assert await find_counted(resolver, "well.test", "better") == ["192.0.2.1"]
    assert len([host for host in names.asked if "dead" in host]) == holders * PER_HOLDER
    names.end.set()
    await asyncio.gather(*hanging, return_exceptions=True)


async def test_thread_is_free_once_its_lookup_ends(names: Names, resolver: PooledResolver) -> None:
    hanging = [find_counted(resolver, f"h{n}.dead.test", "evil") for n in range(2 * PER_HOLDER)]
    ended = await asyncio.gather(*hanging, return_exceptions=True)
    assert [type(end) for end in ended] == [TimeoutError] * 2 * PER_HOLDER
    waiting = asyncio.create_task(find(resolver, "well.test", "evil"))
    await asyncio.wait([waiting], timeout=3 * SECONDS)
    assert not waiting.done(), "all of its threads are in a look-up, whoever waits for it"
    names.end.set()
    assert await waiting == ["192.0.2.1"]


async def test_wait_for_a_thread_counts_unless_the_limit_is_paused(
    names: Names, resolver: PooledResolver
) -> None:
    hanging = [
        asyncio.create_task(find(resolver, f"h{n}.dead.test", "evil"))
        for n in range(2 * PER_HOLDER)
    ]
    await wait_until(lambda: len(names.asked) == PER_HOLDER)
    with pytest.raises(TimeoutError):
        await find_counted(resolver, "one.dead.test", "evil")
    assert len(names.asked) == PER_HOLDER, "it never got a thread"
    patient = asyncio.create_task(find(resolver, "two.dead.test", "evil"))
    await asyncio.wait([patient], timeout=3 * SECONDS)
    assert not patient.done()
    names.end.set()
    await asyncio.gather(patient, *hanging, return_exceptions=True)


async def test_cancelled_waiters_leave_nothing(names: Names, resolver: PooledResolver) -> None:
    hosts = [f"h{n}.dead.test" for n in range(2 * PER_HOLDER)]
    tasks = [asyncio.create_task(find(resolver, host, "evil")) for host in hosts]
    await wait_until(lambda: len(names.asked) == PER_HOLDER)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    names.end.set()
    assert await find(resolver, "well.test", "evil") == ["192.0.2.1"]
    await wait_until(lambda: not resolver._slots.held)
    assert resolver._slots.waiting == 0
    assert len(names.asked) == PER_HOLDER + 1


async def test_first_addresses_of_many_are_tried(names: Names, resolver: PooledResolver) -> None:
    names.addresses = [f"10.0.{n // 250}.{n % 250}" for n in range(4000)]
    found = await find(resolver, "many.test", "a")
    assert found == names.addresses[:MOST_ADDRESSES]
