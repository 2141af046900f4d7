"""F8: 120 hostile URLs where clients and providers name them: nothing is connected to (I8).

For each URL the real adapters run in this process, whose every connect is caught before it is
made. A reference image is the provider's to fetch, so the gateway connects to the provider alone.
"""

import json
from collections.abc import AsyncIterator

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from gateway_core.api.errors import GatewayError
from gateway_core.api.provider import ProviderSpec
from gateway_core.egress.addresses import DECLARED, AddressPolicy, AddressRefused
from gateway_core.providers.catalog import build_catalog
from gateway_core.providers.http import HttpUpstream
from gateway_core.providers.upstream import JobInput, UpstreamError
from gateway_core.tasks.drafts import draft_task, to_input
from gateway_core.tasks.operations import OPERATIONS
from tests.servers.hostile_urls import CORPUS, LyingResolver, catch_connections

STRICT = AddressPolicy()


@pytest.fixture(autouse=True)
def lies(monkeypatch):
    """Every name is resolved as the corpus says."""
    monkeypatch.setattr("aiohttp.connector.DefaultResolver", lambda **_: LyingResolver())


@pytest.fixture
async def provider() -> AsyncIterator[TestServer]:
    """Takes every job."""

    async def submit(_: web.Request) -> web.Response:
        return web.json_response({"job": {"id": "job-1"}})

    application = web.Application()
    application.router.add_post("/v1/jobs", submit)
    async with TestServer(application, host="127.0.0.1") as server:
        yield server


def connect(base: str, *hosts: str) -> HttpUpstream:
    """The adapter of a provider at `base` that may have outputs at `hosts`."""
    spec = {
        "type": "http",
        "http": {
            "baseUrl": base,
            "requestTimeoutSeconds": 5,
            "outputHosts": list(hosts),
            "submit": {"path": "/v1/jobs", "body": "{images: input.images}", "jobId": "job.id"},
            "poll": {
                "path": "/v1/jobs/{jobId}",
                "state": "state",
                "stateWords": {"succeeded": ["done"], "failed": ["error"]},
                "outputs": "outputs",
            },
        },
    }
    return HttpUpstream(ProviderSpec.model_validate(spec), None, STRICT)


async def test_gateway_fetches_no_reference_image(provider, tally):
    told = tally("F8", "reference image")
    upstream = connect(str(provider.make_url("")))
    catalog, operation = build_catalog([])[0], OPERATIONS["reference_to_video"]
    for hostile in CORPUS:
        body = {"model": "m", "prompt": "a cat", "reference_image_urls": [hostile.url]}
        async with told.trial():
            with catch_connections(provider.port) as attempts:
                try:
                    raw = json.dumps(body).encode()
                    draft = draft_task(catalog, operation, "sim", raw, STRICT)
                    given = json.loads(to_input(draft))
                except GatewayError:
                    given = None  # refused at admission
                if given is not None:
                    images = {"images": given["reference_image_urls"]}
                    await upstream.submit(JobInput("reference", "m", images))
            assert attempts == [], f"{hostile.url}: connects to {attempts}"
    await upstream.close()
    told.check()


async def test_gateway_fetches_no_output_from_a_forbidden_address(provider, tally):
    told = tally("F8", "output named by a provider")
    for hostile in CORPUS:
        upstream = connect(str(provider.make_url("")), *list_hosts(hostile.url))
        async with told.trial():
            with catch_connections() as attempts, pytest.raises(UpstreamError):
                async with upstream.fetch(hostile.url):
                    pass
            assert attempts == [], f"{hostile.url}: connects to {attempts}"
        await upstream.close()
    told.check()


async def test_declared_base_reaches_no_metadata_address(tally):
    told, inside = tally("F8", "provider base"), 0
    for hostile in CORPUS:
        async with told.trial():
            with catch_connections() as attempts:
                try:
                    upstream = connect(hostile.url)
                except ValueError:
                    upstream = None  # refused with the resource
                if upstream is not None:
                    with pytest.raises(UpstreamError):
                        await upstream.submit(JobInput("reference", "m", {"images": []}))
                    with pytest.raises(UpstreamError):
                        await upstream.poll("job-1")
                    await upstream.close()
            denied = [address for address in attempts if is_metadata(address)]
            assert denied == [], f"{hostile.url}: connects to {denied}"
            inside += bool(attempts)
    told.check()
    assert inside > 20  # a provider in the cluster is reached: the watch has eyes


def list_hosts(url: str) -> list[str]:
    """The host of a URL, as an admin would allow it, where it can be allowed at all."""
    host = url.split("/")[2].rpartition("@")[2].strip("[]")
    try:
        connect("http://provider.example", host)
    except ValueError:
        return []
    return [host]


def is_metadata(address: str) -> bool:
    """Whether no configuration opens the address."""
    try:
        DECLARED.check_ip(address)
    except AddressRefused:
        return True
    return False
