"""Calls to providers through a real forward proxy: which go there, and what its failures become.

`kubernetes` is a name in the server's certificate that no DNS knows: only the proxy reaches it.
"""

import ssl
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from gateway_cli.local.certificates import ClusterKeys, write_cluster_keys
from gateway_core.egress.addresses import DECLARED, AddressPolicy
from gateway_core.egress.connector import GuardedSession, guarded_connector, is_refused, use_proxy
from gateway_core.llm.client import Client
from gateway_core.llm.connection import Timeouts
from gateway_core.providers.http_calls import open_session
from gateway_core.providers.upstream import UpstreamUnreachable
from gateway_core.storage.s3.client import build_client
from tests.servers.forward_proxy import ForwardProxy


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[ForwardProxy]:
    with ForwardProxy(user="ann:p@ss") as running:
        for scheme in ("http", "https"):
            monkeypatch.delenv(f"{scheme}_proxy", raising=False)
            address = running.url.replace("//", "//ann:p%40ss@")
            monkeypatch.setenv(f"{scheme.upper()}_PROXY", address)
        monkeypatch.delenv("NO_PROXY", raising=False)
        monkeypatch.delenv("no_proxy", raising=False)
        yield running


@pytest.fixture
def keys(tmp_path: Path) -> ClusterKeys:
    return write_cluster_keys(tmp_path / "pki")


@pytest.fixture
def tls(keys: ClusterKeys) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(keys.certificate))


@pytest.fixture(params=["https", "http"])
async def provider(request: pytest.FixtureRequest, keys: ClusterKeys) -> AsyncIterator[str]:
    """The URL of a provider that answers `ok` to POST /v1/x."""

    async def answer(request: web.Request) -> web.Response:
        return web.Response(text=f"ok {(await request.read()).decode()}")

    app = web.Application()
    app.router.add_post("/v1/x", answer)
    runner = web.AppRunner(app, shutdown_timeout=0)
    await runner.setup()
    context = None
    if request.param == "https":
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(keys.certificate, keys.key)
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    yield f"{request.param}://kubernetes:{runner.addresses[0][1]}/v1"
    await runner.cleanup()


def target(url: str) -> str:
    """The requests that the proxy has received."""
    return url.removeprefix("https://").removesuffix("/v1") if "https" in url else f"{url}/x"


async def send(client: Client) -> str:
    response = await client.send(client.prepare("POST", "/x", {}), b"body")
    try:
        assert response.status == 200
        return (await response.read(1_000)).decode()
    finally:
        response.abort()


async def test_language_model_is_called_through_the_proxy(
    proxy: ForwardProxy, provider: str, tls: ssl.SSLContext
) -> None:
    client = Client(provider, 2, tls=tls)
    assert await send(client) == "ok body"
    assert await send(client) == "ok body"
    client.close()
    # both calls on one connection
    assert proxy.seen == [target(provider)]


@pytest.mark.parametrize("provider", ["https"], indirect=True)
@pytest.mark.parametrize("fault", ["password", "refusal", "hang", "authority", "away", "exempt"])
async def test_failure_of_the_proxy_leaves_the_call_unsent(
    proxy: ForwardProxy,
    provider: str,
    tls: ssl.SSLContext,
    fault: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    match fault:
        case "password":
            monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        case "refusal":
            proxy.status = 502
        case "hang":
            proxy.hangs = True
        case "authority":
            tls = ssl.create_default_context()
        case "away":
            monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
        case "exempt":
            monkeypatch.setenv("NO_PROXY", "kubernetes")
    client = Client(provider, 2, tls=tls, timeouts=Timeouts(connect=0.2))
    with pytest.raises(UpstreamUnreachable) as refusal:
        await send(client)
    assert "ss@" not in repr((refusal.value, refusal.value.__cause__))
    client.close()
    assert bool(proxy.seen) == (fault not in ("away", "exempt"))
    connector = guarded_connector(DECLARED, 2, tls=tls)
    timeout = aiohttp.ClientTimeout(total=5, connect=0.2)
    async with open_session(connector, timeout, once=True) as session:
        # what the callers take for a call that was not sent
        with pytest.raises((aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)) as seen:
            await session.post(f"{provider}/x", data=b"body")
        assert "ss@" not in f"{seen.value!r} {seen.value}"


async def test_unusable_proxy_leaves_the_call_unsent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "socks5://ann:p%40ss@proxy")
    session = open_session(guarded_connector(DECLARED, 2), aiohttp.ClientTimeout(total=5))
    async with session:
        with pytest.raises(aiohttp.ClientConnectorError) as refusal:
            await session.post("https://kubernetes/x", data=b"body")
    assert "socks5" in str(refusal.value.os_error)
    assert "ss@" not in f"{refusal.value!r} {refusal.value}"


async def test_declared_urls_take_the_proxy_and_urls_of_clients_do_not(
    proxy: ForwardProxy, provider: str, tls: ssl.SSLContext
) -> None:
    timeout = aiohttp.ClientTimeout(total=5)
    declared = open_session(guarded_connector(DECLARED, 2, tls=tls), timeout)
    async with declared, declared.post(f"{provider}/x", data=b"body") as answer:
        assert await answer.text() == "ok body"
    assert proxy.seen == [target(provider)]
    single_sign_on = GuardedSession(DECLARED, middlewares=[use_proxy], tls=tls)
    async with single_sign_on.open().post(f"{provider}/x", data=b"body") as answer:
        assert answer.status == 200
    await single_sign_on.close()
    assert len(proxy.seen) == 2
    guarded = GuardedSession(AddressPolicy(), tls=tls)
    outputs = open_session(guarded_connector(AddressPolicy(), 2, tls=tls), timeout, proxied=False)
    for session in (guarded.open(), outputs):
        with pytest.raises(aiohttp.ClientConnectorError):
            await session.post(f"{provider}/x")
        with pytest.raises(aiohttp.ClientConnectorError) as refusal:
            await session.post("https://10.0.0.1/x")
        assert is_refused(refusal.value)
    await guarded.close()
    await outputs.close()
    assert len(proxy.seen) == 2


async def test_metadata_address_is_refused_before_the_proxy(proxy: ForwardProxy) -> None:
    timeout = aiohttp.ClientTimeout(total=5)
    async with open_session(guarded_connector(DECLARED, 2), timeout) as session:
        with pytest.raises(aiohttp.ClientConnectorError) as refusal:
            await session.get("https://169.254.169.254/latest")
        assert is_refused(refusal.value)
    for literal in ("169.254.169.254", "2852039166", "0xa9fea9fe", "169.254.43518"):
        with pytest.raises(UpstreamUnreachable):
            await send(Client(f"https://{literal}/latest", 1))
    assert proxy.seen == []


def test_object_store_follows_networks_in_the_exceptions(
    proxy: ForwardProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    assert build_client("https://10.1.2.3", "x", "path").meta.config.proxies != {}
    monkeypatch.setenv("NO_PROXY", "10.0.0.0/8")
    assert build_client("https://10.1.2.3", "x", "path").meta.config.proxies == {}
