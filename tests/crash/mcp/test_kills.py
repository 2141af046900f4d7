"""The MCP process killed in the middle of `create_task`, and two replicas of it.

A repeated call with the same key finds one task, one job and one charge, at any replica.
"""

import asyncio
import secrets

import aiohttp
import pytest

from tests.crash.history import check_money
from tests.crash.steps import MCP, choose
from tests.servers.mcp import McpCaller, describe_task
from tests.servers.replica import Replica
from tests.servers.world import check_invariants, list_tasks, wait_for

pytestmark = [pytest.mark.timeout(300)]


def list_own(world, payer):
    return [
        obj
        for obj in list_tasks(world).values()
        if obj["spec"]["request"]["accountName"] == payer.account
    ]


@pytest.mark.parametrize("step", choose("mcp", MCP))
async def test_create_killed_at_a_step_is_repeated_as_one_task(world, payer, step):
    given = describe_task(world, f"{step}-{secrets.token_hex(4)}")
    with Replica(world, "mcp", GATEWAY_FAILPOINTS=step) as doomed:
        async with McpCaller(doomed.base_url, payer.key) as caller:
            with pytest.raises(aiohttp.ClientError):
                await caller.use("create_task", given)
        await wait_for(lambda: not doomed.is_alive(), what=f"death at {step}")
    with Replica(world, "mcp") as second:
        async with McpCaller(second.base_url, payer.key) as caller:
            made = await caller.use("create_task", given)
            again = await caller.use("create_task", given)
    assert made["completed"], made
    assert made.get("task_replayed", False) is (step == "after-create")
    assert again == {**made, "task_replayed": True}
    assert len(list_own(world, payer)) <= 1
    payer.history.accepted.append(made["task_id"])
    await check_invariants(payer, jobs="exactly one")
    await check_money(world, payer, killed=True)


async def test_wait_cut_by_a_kill_is_continued_at_another_replica(world, payer):
    await payer.simulate({"behaviour": "seconds", "seconds": "4"})
    given = describe_task(world, f"waiting-{secrets.token_hex(4)}")
    with Replica(world, "mcp") as first, Replica(world, "mcp") as second:
        async with (
            McpCaller(first.base_url, payer.key) as at_first,
            McpCaller(second.base_url, payer.key) as at_second,
        ):
            cut = asyncio.create_task(at_first.use("create_task", given))
            beside = asyncio.create_task(at_second.use("create_task", given))
            await wait_for(lambda: list_own(world, payer), what="the task")
            first.kill()
            with pytest.raises(aiohttp.ClientError):
                await cut
            made = await beside
            later = await at_second.use("create_task", given)
    assert made["completed"]
    assert later["task_id"] == made["task_id"]
    assert later["result"] == made["result"]
    payer.history.accepted.append(made["task_id"])
    await check_invariants(payer, jobs="exactly one")
    await check_money(world, payer, killed=True)


async def test_cancellation_at_one_replica_ends_the_wait_at_another(world, payer):
    await payer.simulate({"behaviour": "seconds", "seconds": "30"})
    given = describe_task(world, f"cancelled-{secrets.token_hex(4)}")
    with Replica(world, "mcp") as first, Replica(world, "mcp") as second:
        async with (
            McpCaller(first.base_url, payer.key) as at_first,
            McpCaller(second.base_url, payer.key) as at_second,
        ):
            waiting = asyncio.create_task(at_first.use("create_task", given, 7))
            await wait_for(lambda: list_own(world, payer), what="the task")
            await at_second.notify("notifications/cancelled", {"requestId": 8})
            assert not waiting.done()

            # replicas keep no cancellation that comes while one of them is not subscribed
            async def is_cancelled():
                await at_second.notify("notifications/cancelled", {"requestId": 7})
                return waiting.done()

            await wait_for(is_cancelled, what="the end of the wait")
            left = await waiting
    assert (left["completed"], left["next_action"]) == (False, "get_task")
    assert not left.get("wait_deadline_reached")
    assert (await payer.poll(left["task_id"])).body["status"] == "processing"
