"""What `ports.fetching` promises, asked of the adapter with real servers on loopback."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from ipaddress import ip_network

import pytest
from aiohttp import web

from gateway_core.api.errors import Unavailable
from gateway_core.egress.addresses import AddressPolicy
from gateway_core.egress.connector import PER_HOLDER
from gateway_core.files.fetching import MOST_AT_ONCE, Fetcher, FetchFailed
from tests.servers.namespaces import run_alone

OPEN = AddressPolicy(allowed=(ip_network("127.0.0.0/8"),))


async def serve(request: web.Request) -> web.StreamResponse:
    match request.path.split("/")[1:]:
        case ["bytes"]:
            assert "Authorization" not in request.headers
            return web.Response(body=b"x" * 300_000)
        case ["hop", "0"]:
            raise web.HTTPFound("/bytes")
        case ["hop", count]:
            raise web.HTTPFound(f"/hop/{int(count) - 1}")
        case ["inside"]:
            raise web.HTTPFound("http://127.0.0.2:1/")
        case ["metadata"]:
            raise web.HTTPFound("http://169.254.169.254/")
        case ["file"]:
            raise web.HTTPFound("file:///etc/passwd")
        case ["slow"]:
            await asyncio.sleep(30)
        case ["drip"]:
            drip = web.StreamResponse()
            await drip.prepare(request)
            with suppress(ConnectionError):
                for _ in range(100):
                    await drip.write(b"x" * 300_000)
                    await asyncio.sleep(0.1)
            return drip
        case ["encoded"]:
            return web.Response(body=b"x", headers={"Content-Encoding": "gzip"})
        case ["broken"]:
            answer = web.StreamResponse(headers={"Content-Length": "100"})
            await answer.prepare(request)
            await answer.write(b"x")
            assert request.transport is not None
            request.transport.close()
            return answer
    return web.Response(status=404)


@asynccontextmanager
async def running() -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_route("GET", "/{rest:.*}", serve)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def fetch(url: str, policy: AddressPolicy = OPEN, seconds: float = 10) -> bytes:
    fetcher = Fetcher(policy, seconds=seconds)
    try:
        async with fetcher.open(url, "a") as fetched:
            return b"".join([chunk async for chunk in fetched.chunks])
    finally:
        await fetcher.close()


async def test_bytes_come_by_up_to_three_redirects() -> None:
    async with running() as base:
        assert await fetch(base + "/bytes") == b"x" * 300_000
        assert await fetch(base + "/hop/2") == b"x" * 300_000
        with pytest.raises(FetchFailed, match="redirects more than 3 times"):
            await fetch(base + "/hop/3")


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/inside", "could not be reached|not allowed"),
        ("/metadata", "not allowed"),
        ("/file", "not allowed|no http or https address"),
        ("/encoded", "encoding"),
        ("/broken", "broke off"),
        ("/nothing", "status 404"),
    ],
)
async def test_failed_fetch_says_why_and_names_no_address(path: str, reason: str) -> None:
    async with running() as base:
        with pytest.raises(FetchFailed, match=reason) as raised:
            await fetch(base + path)
    assert "127." not in str(raised.value)
    assert "169." not in str(raised.value)


async def test_private_addresses_are_refused_by_text_and_by_name() -> None:
    async with running() as base:
        closed = AddressPolicy()
        for url in (base + "/bytes", base.replace("127.0.0.1", "localhost") + "/bytes"):
            with pytest.raises(FetchFailed, match="not allowed"):
                await fetch(url, closed)


@pytest.mark.parametrize("path", ["/slow", "/drip"])
async def test_slow_head_and_body_end_at_the_time_limit(path: str) -> None:
    async with running() as base:
        with pytest.raises(FetchFailed, match=r"within 0\.3 s"):
            await fetch(base + path, seconds=0.3)


async def test_wait_for_a_slot_is_no_failure_of_the_url() -> None:
    fetcher = Fetcher(OPEN, seconds=30)
    async with running() as base, AsyncExitStack() as held:
        for _ in range(MOST_AT_ONCE // 2):
            await held.enter_async_context(fetcher.open(base + "/bytes", "busy"))
        fetcher._slots._seconds = 0.1
        with pytest.raises(Unavailable, match="Too many"):
            await held.enter_async_context(fetcher.open(base + "/bytes", "busy"))
        await held.enter_async_context(fetcher.open(base + "/bytes", "another"))
    await fetcher.close()


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="namespaces are Linux's")
def test_names_that_are_never_answered_harm_no_other_account() -> None:
    """The C library's own look-ups, at a name server of a network namespace that swallows them."""
    found = run_alone("tests.servers.namespaces", "--net", "--mount")
    assert found["swallowed"] >= PER_HOLDER, "the hostile names were asked for"
    assert found["slow"] == ["was not fetched within 3 s"] * (2 * MOST_AT_ONCE)
    assert found["threads"] <= 2 * PER_HOLDER
    # at any time, also while the look-ups of fetches that have ended go on
    assert len(found["good"]) == 20
    assert max(found["good"]) < 1.5, "half of what a slow one has"


async def test_time_in_which_bytes_are_used_is_not_the_other_sides() -> None:
    fetcher, found = Fetcher(OPEN, seconds=1), 0
    async with running() as base, fetcher.open(base + "/bytes", "a") as fetched:
        async for chunk in fetched.chunks:
            found += len(chunk)
            # as a store does that is slow
            await asyncio.sleep(0.3)
    await fetcher.close()
    assert found == 300_000


async def test_address_with_a_credential_is_none() -> None:
    with pytest.raises(FetchFailed, match="no http or https address"):
        await fetch("http://a:b@127.0.0.1/")
