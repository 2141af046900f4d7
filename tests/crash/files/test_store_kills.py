"""Bytes in a bucket: tasks go their way, and kill -9 of the store loses nothing (I1 to I6, I9)."""

import asyncio

import pytest

from tests.crash.storage import check_video, fetch
from tests.servers.s3 import S3Server
from tests.servers.tenants import open_tenant
from tests.servers.world import World, check_invariants, read_task, wait_for
from tests.shares import share

pytestmark = [pytest.mark.timeout(300)]

KILLS = 50
TASKS = 4
LONG_PROMPT = "A lighthouse at dawn. " * 900
"""More than the object takes, so that the input is in the bucket as well."""


@pytest.fixture(scope="module")
def server():
    """A store of its own, as it is killed."""
    with S3Server() as running:
        yield running


@pytest.fixture(scope="module")
def world(server, control_plane):
    """A gateway whose processes keep bytes in the bucket."""
    settings = server.settings(prefix="gateway/test")
    with World(
        control_plane, extra_env=dict.fromkeys(("api", "operator", "media"), settings)
    ) as running:
        yield running


@pytest.fixture
async def payer(world):
    funds = {"paidMicros": 1_000_000_000_000}
    async with open_tenant(world, funds=funds, requestsPerMinute=1_000_000) as client:
        yield client


def list_archived(server: S3Server, client) -> set[str]:
    """Ids of the account's tasks in the archive."""
    prefix = f"gateway/test/tasks/{client.account}/"
    return {
        name.removeprefix(prefix).removesuffix(".json").replace("-", "_", 1)
        for name in server.list_names()
        if name.startswith(prefix)
    }


async def test_bytes_of_a_task_are_in_the_bucket_alone(world, payer, server):
    await payer.simulate({"behaviour": "seconds", "seconds": "0.5"})
    task_id = await payer.create_surely("s3-whole", prompt=LONG_PROMPT)
    await payer.wait_terminal([task_id])
    await check_video(payer, task_id)
    url = read_task(world, task_id)["status"]["result"]["videos"][0]["url"]
    whole = (await fetch(payer, url)).raw
    for wanted, part in (("bytes=0-99", whole[:100]), ("bytes=-50", whole[-50:])):
        answer = await fetch(payer, url, Range=wanted)
        assert (answer.status, answer.raw) == (206, part)
    assert (await fetch(payer, url, Range="bytes=99999999-")).status == 416
    await wait_for(lambda: task_id in list_archived(server, payer), what="the archive")
    stored = read_task(world, task_id)["spec"]["request"]["inputRef"]["key"]
    assert f"gateway/test/{stored}" in server.list_names()
    # nothing is beside the bucket
    assert list(world.config.store_directory.iterdir()) == []


@pytest.mark.timeout(120 + 40 * KILLS)
async def test_store_killed_while_outputs_are_copied_loses_nothing(world, payer, server, tally):
    told = tally("F2", "S3 store killed while outputs are copied and archived")
    await payer.simulate(
        {"behaviour": "seconds", "seconds": "0.2-1.5"},
        {"behaviour": "slow", "bytes_per_second": 15000, "match": {"on": "output"}},
    )
    made = list[str]()
    for number in range(share(KILLS)):
        async with told.trial(payer):
            ids = [await payer.create_surely(f"kill-{number}-{n}") for n in range(TASKS)]
            made += ids

            async def are_copied(least: int, ids: list[str] = ids) -> bool:
                polled = [await payer.poll(task_id) for task_id in ids]
                return sum(answer.body.get("status") == "completed" for answer in polled) >= least

            if number % 2:
                # one has ended and is archived while others are copied
                await wait_for(lambda: are_copied(1), what="the first video")
            else:
                await wait_for(lambda ids=ids: is_fetched(payer, ids), what="an output's fetch")
            await asyncio.to_thread(server.kill)
            # a slow read of an object is a 503 at times; one that needs the store stays one
            for task_id in ids:
                await wait_for(
                    lambda task_id=task_id: is_answered(payer, task_id), what="a poll's 200"
                )
            # long enough for a failed copy
            await asyncio.sleep(1 if number % 2 else 3)
            await asyncio.to_thread(server.start)
            ended = await payer.wait_terminal(ids)
            assert {body["status"] for body in ended.values()} == {"completed"}, ended
            for task_id in ids:
                await check_video(payer, task_id)
    async with told.trial(payer, count=0):
        await check_invariants(payer, jobs="exactly one")
        await wait_for(
            lambda: set(made) <= list_archived(server, payer), seconds=90, what="the archive"
        )
    told.check()


async def is_answered(client, task_id: str) -> bool:
    """Whether a poll of the task is a 200."""
    return (await client.poll(task_id)).status == 200


async def is_fetched(client, ids: list[str]) -> bool:
    """Whether the provider has begun to hand out the video of one of these tasks."""
    jobs = (await client.read_simulator("/control/jobs"))["jobs"]
    uids = {read_task(client.world, task_id)["metadata"]["uid"] for task_id in ids}
    return any(j["client_reference"] in uids and j["state"] == "done" for j in jobs)
