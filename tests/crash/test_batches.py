"""Batches over kills of the operator: every line told and charged once (I1, I7, I9)."""

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from gateway_cli.local.envfile import MODERATION_MODEL
from tests.servers.world import Client, World, wait_for

LINES = 300
KILLS = ("after-batch-start", "after-batch-checkpoint", "after-batch-run-end", "after-batch-file")


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with World() as running:
        yield running


async def upload(client: Client, texts: list[str]) -> str:
    """A File of one request for each text; its id."""
    lines = [
        {
            "custom_id": f"r-{n}",
            "method": "POST",
            "url": "/v1/moderations",
            "body": {"model": MODERATION_MODEL, "input": text},
        }
        for n, text in enumerate(texts)
    ]
    data = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    head = b'--xyz\r\nContent-Disposition: form-data; name="'
    body = head + b'purpose"\r\n\r\nbatch\r\n' + head
    body += b'file"; filename="in.jsonl"\r\n\r\n' + data + b"\r\n--xyz--\r\n"
    headers = {"Content-Type": "multipart/form-data; boundary=xyz"}
    answer = await client.request("POST", "/v1/files", headers=headers, data=body)
    assert answer.status == 200, answer.raw
    return str(answer.body["id"])


def apply(world: World, name: str, file_id: str) -> None:
    request = {"accountName": "demo", "inputFileName": file_id}
    kind = {"apiVersion": "modelgateway.dev/v1alpha1", "kind": "GatewayBatch"}
    world.apply({**kind, "metadata": {"name": name}, "spec": {"request": request}})


async def finish(world: World, name: str) -> dict[str, Any]:
    def find() -> dict[str, Any] | None:
        status = world.read("gatewaybatch", name).get("status") or {}
        return status if status.get("work") == "Settled" else None

    status: dict[str, Any] = await wait_for(find, seconds=90, what=f"{name}'s end")
    return status


async def read_lines(client: Client, file_id: str) -> list[Any]:
    answer = await client.request("GET", f"/v1/files/{file_id}/content")
    assert answer.status == 200, answer.raw
    return [json.loads(line) for line in answer.raw.splitlines()]


@pytest.mark.slow
async def test_an_operator_that_is_killed_at_every_step_goes_on(world: World) -> None:
    async with world.client() as client:
        texts = [f"line {n} of the kills" for n in range(LINES)]
        name = "batch-killed"
        world.restart_doomed("operator", {"GATEWAY_FAILPOINTS": KILLS[0]})
        apply(world, name, await upload(client, texts))
        for following in (*KILLS[1:], ""):
            await wait_for(lambda: not world.is_alive("operator"), seconds=60, what="the kill")
            world.restart_doomed("operator", {"GATEWAY_FAILPOINTS": following})
        status = await finish(world, name)
        assert status["phase"] == "Completed"
        assert status["counts"] == {"total": LINES, "completed": LINES, "failed": 0}
        output = await read_lines(client, status["outputFileName"])
        assert [line["custom_id"] for line in output] == [f"r-{n}" for n in range(LINES)]
        assert status["chargedMicros"] == status["reservedMicros"] > 0
        usage = json.loads(world.run.kubectl("get", "gatewayusages", "-o", "json"))["items"]
        charged = Counter[str]()
        for day in usage:
            charged[day["spec"]["accountName"]] += day["status"]["chargedMicros"]
        assert charged["demo"] == status["chargedMicros"]
