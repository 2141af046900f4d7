"""The guarded connector: the address that is connected to decides, whatever a resolver says."""

import socket
from collections.abc import AsyncIterator
from ipaddress import ip_network

import aiohttp
import pytest
from aiohttp import web
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.test_utils import TestServer

from gateway_core.egress.addresses import AddressPolicy, AddressRefused
from gateway_core.egress.connector import EgressRefused, guarded_connector
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
async def test_no_way_of_writing_loopback_gets_through(port: int, host: str) -> None:
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
async def test_a_name_that_leads_inside_is_refused(port: int, addresses: tuple[str, ...]) -> None:
    with pytest.raises(aiohttp.ClientConnectorError) as refused:
        await fetch(STRICT, f"http://rebound.example:{port}/", *addresses)
    assert isinstance(refused.value.os_error, EgressRefused)


async def test_what_is_allowed_is_reached_and_metadata_still_is_not(port: int) -> None:
    assert await fetch(LOOPBACK, f"http://127.0.0.1:{port}/") == "reached"
    assert await fetch(LOOPBACK, f"http://name.example:{port}/", "127.0.0.1") == "reached"
    with pytest.raises(aiohttp.ClientConnectorError):
        await fetch(LOOPBACK, f"http://name.example:{port}/", "169.254.169.254")


async def test_a_refused_address_does_not_spoil_an_allowed_one(port: int) -> None:
    url = f"http://name.example:{port}/"
    assert await fetch(LOOPBACK, url, "169.254.169.254", "127.0.0.1") == "reached"
