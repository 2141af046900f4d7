"""Temporary files on the gateway as it runs, from the API to the media host (contract §2.5)."""

import base64
import hashlib
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

import pytest
from aiohttp import web

from tests.servers.receivers import Receiver, answer
from tests.servers.world import Answer, Client, World, wait_for

PATH = "/api/v1/files"
PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + bytes(range(256)) * 400


async def make(client: Client, source: dict[str, Any], **headers: str) -> dict[str, Any]:
    body = {"source": source}
    created = await client.request("POST", PATH, body=body, headers=headers)
    assert created.status == 201, created.raw
    made: dict[str, Any] = created.body
    return made


async def visit(
    client: Client, url: str, method: str = "GET", data: bytes | None = None, **headers: str
) -> Answer:
    """One request to an address that the API gave, without a key."""
    parts = urlsplit(url)
    base = f"{parts.scheme}://{parts.netloc}"
    path = url.removeprefix(base)
    return await client.request(method, path, key=None, base=base, data=data, headers=headers)


async def prepare(client: Client, data: bytes = PNG) -> dict[str, Any]:
    checksum = base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()
    body = {"filename": "a.png", "byte_size": len(data), "checksum": checksum}
    created = await client.request("POST", PATH + "/prepare", body=body)
    assert created.status == 201, created.raw
    prepared: dict[str, Any] = created.body
    return prepared


async def put(client: Client, prepared: dict[str, Any], data: bytes = PNG) -> Answer:
    headers: dict[str, str] = prepared["headers"]
    return await visit(client, prepared["upload_url"], "PUT", data, **headers)


async def confirm(client: Client, prepared: dict[str, Any]) -> Answer:
    body = {"signed_id": prepared["signed_id"]}
    return await client.request("POST", PATH + "/confirm", body=body)


@pytest.fixture
async def site() -> AsyncIterator[Receiver]:
    async with Receiver() as server:
        yield server


def list_stored(world: World, account: str) -> list[dict[str, Any]]:
    """The account's GatewayFiles."""
    items = json.loads(world.run.kubectl("get", "gatewayfiles", "-o", "json"))["items"]
    return [item for item in items if item["spec"]["request"]["accountName"] == account]


async def test_fetched_url_is_served_for_a_day(
    world: World, client: Client, site: Receiver
) -> None:
    async def send(_: web.Request) -> web.Response:
        return web.Response(body=PNG, content_type="text/html")

    url = site.plan("a", answer(302, Location="/b/pic.png"))
    site.plan("b/pic.png", send)
    asked = datetime.now(UTC)
    made = await make(client, {"type": "url", "url": url})
    told = datetime.now(UTC)
    assert (made["size_bytes"], made["mime_type"]) == (len(PNG), "image/png")
    created, expires = (
        datetime.fromisoformat(made[f"{name}_at"]) for name in ("created", "expires")
    )
    assert expires - created == timedelta(days=1)
    (obj,) = list_stored(world, client.account)
    # written before Kubernetes has given it its time of creation, and in whole seconds
    written = datetime.fromisoformat(obj["spec"]["request"]["expirationTime"])
    assert asked - timedelta(seconds=1) < written - timedelta(days=1) <= told
    assert written <= expires
    shown = await visit(client, made["url"])
    assert (shown.status, shown.raw) == (200, PNG)
    assert shown.headers["Content-Type"] == "image/png"
    part = await visit(client, made["url"], Range="bytes=-5")
    assert (part.status, part.raw) == (206, PNG[-5:])
    # in no list, and gone with its object
    listed = await client.request("GET", "/v1/files")
    assert listed.body["data"] == []
    world.run.kubectl("delete", "gatewayfile", obj["metadata"]["name"])

    async def is_gone() -> bool:
        return (await visit(client, made["url"])).status == 404

    await wait_for(is_gone, what="removal of the bytes")


async def test_confirmed_put_on_media_host_is_served(
    world: World, client: Client, other: Client
) -> None:
    prepared = await prepare(client)
    assert (await confirm(client, prepared)).status == 409, "nothing was put yet"
    assert (await put(client, prepared)).status == 200
    assert list_stored(world, client.account) == []
    assert (await confirm(other, prepared)).status == 404, "it is another account's"
    made = await confirm(client, prepared)
    assert made.status == 201, made.raw
    assert (await confirm(client, prepared)).body == made.body
    assert (await visit(client, made.body["url"])).raw == PNG
    (obj,) = list_stored(world, client.account)
    assert obj["spec"]["request"]["purpose"] == "temporary"
