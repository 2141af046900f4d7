"""Batches over kill -9 of the operator, the store and Redis: told and charged once (I1, I7, I9)."""

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gateway_cli.local.config import MODERATION_MODEL
from gateway_core.api.ids import API_VERSION
from gateway_core.api.resource import batch_folder
from gateway_core.batches.results import decode_result
from tests.crash.steps import BATCHES, choose
from tests.crash.storage import create_file
from tests.servers.control_plane import ControlPlane
from tests.servers.s3 import S3Server, open_bucket
from tests.servers.world import Client, World, wait_for
from tests.shares import share
from tests.tallies import Tally

LINES = 240
A_SECOND = 60
PREFIX = "gateway/batches"
KILLS_A_STEP = 25
STEPS = choose("operator", BATCHES)


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    """A store of its own, as it is killed."""
    with S3Server() as running:
        yield running


@pytest.fixture(scope="module")
def world(server: S3Server, control_plane: ControlPlane) -> Iterator[World]:
    settings = server.settings(prefix=PREFIX)
    with World(
        control_plane, extra_env=dict.fromkeys(("api", "operator", "media"), settings)
    ) as running:
        running.patch("gatewayprovider", "simulated-moderation", {"requestsPerSecond": A_SECOND})
        yield running


async def upload(client: Client, word: str) -> str:
    """A File of as many requests, each with a text of its own; its id."""
    lines = [
        {
            "custom_id": f"r-{n}",
            "method": "POST",
            "url": "/v1/moderations",
            "body": {"model": MODERATION_MODEL, "input": f"{word} {n:04d}"},
        }
        for n in range(LINES)
    ]
    data = "\n".join(map(json.dumps, lines)).encode()
    return await create_file(client, data, "batch")


def apply(world: World, name: str, file_id: str) -> None:
    request = {"accountName": "demo", "inputFileName": file_id}
    kind = {"apiVersion": API_VERSION, "kind": "GatewayBatch"}
    world.apply({**kind, "metadata": {"name": name}, "spec": {"request": request}})


async def check(client: Client, world: World, name: str) -> None:
    """The batch ends, every line told once and in order, and charged once."""

    def find() -> dict[str, Any] | None:
        status = world.read("gatewaybatch", name).get("status") or {}
        return status if status.get("work") == "Settled" else None

    status = await wait_for(find, seconds=90, what=f"{name}'s end")
    assert status["phase"] == "Completed", status
    assert status["counts"] == {"total": LINES, "completed": LINES, "failed": 0, "sent": LINES}
    answer = await client.request("GET", f"/v1/files/{status['outputFileName']}/content")
    assert answer.status == 200, answer.raw
    told = [json.loads(line)["custom_id"] for line in answer.raw.splitlines()]
    assert told == [f"r-{n}" for n in range(LINES)]
    assert status["chargedMicros"] == status["reservedMicros"] > 0


def count_charges(world: World) -> int:
    """Micro-dollars in the usage of the account."""
    usage = json.loads(world.run.kubectl("get", "gatewayusages", "-o", "json"))["items"]
    charged = Counter[str]()
    for day in usage:
        # one that was made just now has no status yet
        status = day.get("status", {})
        charged[day["spec"]["accountName"]] += status.get("chargedMicros", 0)
    return charged["demo"]


async def read_checkpointed(server: S3Server, name: str) -> set[int]:
    """The places, from 0, of the lines whose results stand in the store."""
    with open_bucket(server, prefix=PREFIX) as store:
        keys = [e.key async for e in store.list_entries(batch_folder("demo", name) + "lines/")]
        records = [record for key in keys for record in (await store.get(key)).splitlines()]
    return {decode_result(record).number - 1 for record in records}


async def count_asked(client: Client, word: str) -> dict[int, int]:
    """How often the provider was asked for each line."""
    inputs = (await client.read_simulator(f"/control/moderations?contains={word}"))["inputs"]
    return {int(text.split()[-1]): each["asked"] for text, each in inputs.items()}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kill", range(share(KILLS_A_STEP)))
async def test_batch_completes_over_kills_of_the_operator(
    world: World, server: S3Server, tally: Callable[[str, str], Tally], kill: int
) -> None:
    told = tally("F1", "operator killed at each step of a batch")
    name, word = f"batch-operator-killed-{kill}", f"stepwise-{kill}-"
    settings = server.settings(prefix=PREFIX)
    async with world.client() as client, told.trial(client, count=len(STEPS)):
        before = count_charges(world)
        world.restart_doomed("operator", {**settings, "GATEWAY_FAILPOINTS": STEPS[0]})
        apply(world, name, await upload(client, word))
        stored, asked = set[int](), dict[int, int]()
        for step, following in zip(STEPS, [*STEPS[1:], ""], strict=True):
            await wait_for(lambda: not world.is_alive("operator"), seconds=60, what=step)
            if step == "after-batch-checkpoint":
                stored = await read_checkpointed(server, name)
                asked = await count_asked(client, word)
            world.restart_doomed("operator", {**settings, "GATEWAY_FAILPOINTS": following})
        await check(client, world, name)
        assert 0 < len(stored) < LINES
        later = await count_asked(client, word)
        assert {n: later[n] for n in stored} == {n: asked[n] for n in stored}, "asked again"
        # before the checkpoint, after it and before the end of the run
        assert all(times <= 4 for times in later.values()), "three kills came between"
        assert (
            count_charges(world) - before
            == world.read("gatewaybatch", name)["status"]["chargedMicros"]
        )
    told.check()


async def test_batch_completes_over_kills_of_store_and_redis(
    world: World, server: S3Server
) -> None:
    name = "batch-store-killed"
    async with world.client() as client:
        before = count_charges(world)
        apply(world, name, await upload(client, "around"))
        await wait_for(lambda: has_begun(world, name), seconds=60, what="the run")
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(world.run.kill, "redis")
        await asyncio.to_thread(world.run.restart, "redis")
        await asyncio.to_thread(server.start)
        await check(client, world, name)
        assert all(times == 1 for times in (await count_asked(client, "around")).values())
        await wait_for(
            lambda: (
                count_charges(world) - before
                == world.read("gatewaybatch", name)["status"]["chargedMicros"]
            ),
            what="the charge",
        )


def has_begun(world: World, name: str) -> bool:
    return bool((world.read("gatewaybatch", name).get("status") or {}).get("startTime"))
