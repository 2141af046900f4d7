"""kill -9 of the operator while ended Uploads beyond their number are removed (§12.1a, I5, I9)."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.servers.control_plane import ControlPlane
from tests.servers.tenants import open_tenant
from tests.servers.world import Client, World, wait_for

pytestmark = [pytest.mark.timeout(300)]

MOST = 5
AT_ONCE = {"GATEWAY_RETENTION_ENDED_PER_ACCOUNT": str(MOST), "GATEWAY_SWEEP_SECONDS": "0.5"}
UPLOAD = {"bytes": 5, "filename": "a", "mime_type": "text/plain", "purpose": "user_data"}


@pytest.fixture(scope="module")
def world(control_plane: ControlPlane) -> Iterator[World]:
    """A gateway that keeps five ended Uploads of an account."""
    with World(control_plane, extra_env={"operator": AT_ONCE}) as running:
        yield running


async def make_upload(client: Client) -> str:
    answer = await client.request("POST", "/v1/uploads", body=UPLOAD)
    assert answer.status == 200, answer.raw
    return str(answer.body["id"])


async def cancel(client: Client, upload: str) -> int:
    return (await client.request("POST", f"/v1/uploads/{upload}/cancel", body={})).status


async def complete(client: Client) -> str:
    """A File of a new Upload."""
    upload = await make_upload(client)
    headers = {"Content-Type": "multipart/form-data; boundary=b"}
    head = b'Content-Disposition: form-data; name="data"; filename="a"'
    form = b"--b\r\n" + head + b"\r\n\r\nhello\r\n--b--\r\n"
    path = f"/v1/uploads/{upload}"
    part = await client.request("POST", f"{path}/parts", headers=headers, data=form)
    done = await client.request("POST", f"{path}/complete", body={"part_ids": [part.body["id"]]})
    assert done.status == 200, done.raw
    return str(done.body["file"]["id"])


def list_uploads(world: World, account: str) -> list[dict[str, Any]]:
    selector = f"--field-selector=spec.request.accountName={account}"
    found = json.loads(world.run.kubectl("get", "gatewayuploads", selector, "-o", "json"))
    items: list[dict[str, Any]] = found["items"]
    return items


@pytest.mark.parametrize("step", ["before-removal", "after-removal"])
async def test_removal_of_ended_uploads_survives_kills(world: World, step: str) -> None:
    async with open_tenant(world) as client:
        file = await complete(client)
        pending = await make_upload(client)
        doomed = {**AT_ONCE, "GATEWAY_FAILPOINTS": f"{step}:4"}
        world.restart_doomed("operator", doomed)
        cancelled = [await make_upload(client) for _ in range(3 * MOST)]
        for upload in cancelled:
            assert await cancel(client, upload) in (200, 404)
        await wait_for(lambda: not world.is_alive("operator"), what=f"death at {step}", seconds=60)
        world.run.restart("operator", AT_ONCE)

        def is_bounded() -> bool:
            return len(list_uploads(world, client.account)) == MOST + 1

        await wait_for(is_bounded, what="the ended Uploads beyond five removed", seconds=60)
        left = {item["metadata"]["name"] for item in list_uploads(world, client.account)}
        assert pending.replace("_", "-") in left, "one that has not ended is not counted"
        # those of one second go in the order of their names
        removed = [upload for upload in cancelled if upload.replace("_", "-") not in left]
        assert removed
        assert await cancel(client, removed[0]) == 404
        # the File of an Upload that was removed is the result, and stays
        content = await client.request("GET", f"/v1/files/{file}/content")
        assert (content.status, content.raw) == (200, b"hello")
        assert await cancel(client, pending) == 200
