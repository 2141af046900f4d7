"""Operators that divide the shards: one is killed, and comes back as its pod (I1, I2, I3)."""

import asyncio
from contextlib import ExitStack

import pytest

from gateway_core.api.ids import shard_of
from tests.crash.conftest import FUNDS
from tests.faults.machine import Stopwatch
from tests.servers.replica import Replica
from tests.servers.tenants import open_tenant, unique
from tests.servers.world import check_invariants, list_tasks, wait_for

pytestmark = [pytest.mark.timeout(300)]

TASKS = 12
JOB_SECONDS = 20
"""No job ends before its owner is killed."""


@pytest.fixture
def owners(unattended_world):
    """Two operators, the only ones of their gateway."""
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                Replica(
                    unattended_world, "operator", GATEWAY_REPLICAS="2", GATEWAY_ORDINAL=str(ordinal)
                )
            )
            for ordinal in range(2)
        ]


@pytest.fixture
async def client(unattended_world):
    async with open_tenant(unattended_world, funds=FUNDS, requestsPerMinute=1_000_000) as own:
        await own.simulate({"behaviour": "seconds", "seconds": str(JOB_SECONDS)})
        yield own
        await own.simulate()


async def wait_answer(client, task):
    """The first poll that is a 200: one whose read takes the API too long is a 503."""

    async def ask():
        answer = await client.poll(task)
        return answer if answer.status == 200 else None

    return await wait_for(ask, what=f"an answer about {task}")


async def test_tasks_of_a_killed_owner_alone_wait_for_its_pod(client, owners, tally):
    world = client.world
    told = tally("F2", "one of two operators killed, back as its pod")
    creations = [client.create_surely(unique("pod"), duration_seconds=3) for _ in range(TASKS)]
    tasks = await asyncio.gather(*creations)
    odd = [task for task in tasks if shard_of(task.replace("_", "-", 1)) % 2]
    even = [task for task in tasks if task not in odd]

    def are_running():
        objects = list_tasks(world)
        return all(objects[task].get("status", {}).get("phase") == "Running" for task in tasks)

    await wait_for(are_running, what="every task Running")
    owners[1].kill()
    await client.wait_terminal(even, seconds=60)
    objects = list_tasks(world)
    uids = {objects[task]["metadata"]["uid"] for task in odd}

    async def are_done():
        jobs = (await client.read_simulator("/control/jobs"))["jobs"]
        return all(job["state"] == "done" for job in jobs if job["client_reference"] in uids)

    # the last submitted of them may end a moment after the others' tasks
    await wait_for(are_done, what="the jobs' end")
    for task in odd:
        answer = await wait_answer(client, task)
        assert answer.body["status"] == "processing"
    owners[1].start()
    await asyncio.to_thread(owners[1].wait_ready)
    async with told.trial(client):
        with Stopwatch() as reaction:
            await client.wait_terminal(odd, seconds=60)
        # the jobs have ended: what is left is one poll, which is due within a few seconds
        told.judge("ended after the return within s", reaction, at_most=10)
        await check_invariants(client, jobs="exactly one")
    told.check()
