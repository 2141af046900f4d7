"""`helm test`: what fails it, and its receiver of callbacks."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

from gateway_cli.inspection.doctor import _check_api
from gateway_cli.install.trial import _listen, check_calls, check_readiness
from gateway_cli.rest.client import RestApi
from gateway_cli.rest.sample import SampleFailed


class Api:
    """An API that fails in one way."""

    def __init__(self) -> None:
        self.ready = 200
        self.refusal = 401
        self.balance = 200
        self.damage: Callable[[bytes], bytes] = lambda content: content
        self.files: dict[str, bytes] = {}

    async def answer(self, request: web.Request) -> web.Response:
        """What the API says."""
        match request.method, request.path:
            case "GET", "/readyz":
                return web.Response(status=self.ready)
            case "GET", "/v1/models" if "Authorization" not in request.headers:
                return web.Response(status=self.refusal)
            case "GET", "/v1/models":
                return web.json_response({"object": "list", "data": []})
            case "GET", "/api/v1/me/balance":
                return web.json_response({"balance_cents": 1250}, status=self.balance)
            case "POST", "/v1/files":
                form = await request.post()
                sent = form["file"]
                assert isinstance(sent, web.FileField)
                self.files["file_1"] = await asyncio.to_thread(sent.file.read)
                return web.json_response({"id": "file_1"})
            case "GET", "/v1/files/file_1/content":
                return web.Response(body=self.damage(self.files["file_1"]))
            case "DELETE", "/v1/files/file_1":
                del self.files["file_1"]
                return web.json_response({"id": "file_1", "deleted": True})
        return web.Response(status=404)


@asynccontextmanager
async def serve(api: Api) -> AsyncIterator[RestApi]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", api.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        async with RestApi(f"http://127.0.0.1:{runner.addresses[0][1]}", "sk-x") as client:
            yield client
    finally:
        await runner.cleanup()


async def test_sound_installation_passes_and_nothing_is_left() -> None:
    api, told = Api(), list[str]()
    async with serve(api) as client:
        await check_readiness(client, told.append)
        await check_calls(client, told.append)
    assert api.files == {}
    assert "the key opens an account with a balance of 12.50 USD" in told
    assert "written to the store, read again and deleted" in told[-1]


async def test_doctor_asks_for_the_address_only_where_the_api_is_not_ready() -> None:
    api = Api()
    async with serve(api) as client:
        api.balance = 400
        [refused] = (await _check_api(client.base_url, "sk-x")).findings
        api.ready = 503
        [unready] = (await _check_api(client.base_url, "sk-x")).findings
    assert refused.action == "see the findings above, and the log of the API"
    assert unready.action.startswith("is the address right")


async def test_api_that_is_not_ready_in_time_fails() -> None:
    api = Api()
    api.ready = 503
    async with serve(api) as client:
        with pytest.raises(SampleFailed, match="/readyz answers 503"):
            await check_readiness(client, lambda _: None, seconds=0.0)


async def test_api_that_takes_calls_without_a_key_fails() -> None:
    api = Api()
    api.refusal = 200
    async with serve(api) as client:
        with pytest.raises(SampleFailed, match="without a key gets 200 instead of 401"):
            await check_readiness(client, lambda _: None)


async def test_store_that_returns_other_bytes_fails_and_nothing_is_left() -> None:
    api = Api()
    api.damage = lambda content: content[:-1] + bytes([content[-1] ^ 1])
    async with serve(api) as client:
        with pytest.raises(SampleFailed, match="not the 65536 written"):
            await check_calls(client, lambda _: None)
    assert api.files == {}


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_receiver_is_where_its_url_says(host: str) -> None:
    async with _listen(host) as (url, received), aiohttp.ClientSession() as session:
        assert url is not None
        async with session.post(url, data=b"{}") as answer:
            assert answer.status == 200
        _, body = received.get_nowait()
        assert body == b"{}"


async def test_no_receiver_without_a_host() -> None:
    async with _listen(None) as (url, received):
        assert url is None
        assert received.empty()
