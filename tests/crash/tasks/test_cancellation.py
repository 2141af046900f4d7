"""Cancellations that race with the end of their tasks, kills of the operator and callbacks (F32).

A task is cancelled or ends otherwise, never both (I3); it has one job at most (I2), its callback
says what a poll says, and a cancelled one is charged nothing (I7).
"""

import asyncio
import random
import secrets

import pytest

from tests.crash.history import check_money, is_closed
from tests.crash.traffic import open_called_back
from tests.servers.receivers import Receiver, answer
from tests.servers.world import check_invariants, wait_for
from tests.shares import share

KILLS = 25
TASKS_A_KILL = 4
STEPS = ("before-intent", "after-submit", "after-terminal", "after-callback")


async def create_then_cancel(client, url, until):
    """Make a task and cancel it about when it ends, until an answer is certain; id and answer."""
    key = secrets.token_hex(8)
    task_id = await client.create_surely(key, duration_seconds=3, callback_url=url)
    await asyncio.sleep(random.uniform(0, until))
    path = f"{client.tasks_path}/{task_id}/cancel"
    while True:
        told = await client.request("POST", path)
        if told.status in (200, 409):
            return task_id, told
        await asyncio.sleep(0.2)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.timeout(120 + 20 * KILLS)
async def test_cancellations_over_kills_of_the_operator(world, tally, step):
    row = f"task cancelled while the operator is killed {step}"
    told, kills = tally("F32", row), share(KILLS)
    async with open_called_back(world) as client, Receiver() as receiver:
        await client.simulate({"behaviour": "seconds", "seconds": "0.2-1"})
        racing = []
        for kill in range(kills):
            world.restart_doomed("operator", {"GATEWAY_FAILPOINTS": f"{step}:2"})
            for number in range(TASKS_A_KILL):
                url = receiver.plan(f"{step}-{kill}-{number}", answer(200))
                racing.append(asyncio.create_task(create_then_cancel(client, url, 1.5)))
            await wait_for(lambda: not world.is_alive("operator"), what="death", seconds=40)
        world.run.restart("operator", {})
        async with told.trial(client, count=kills):
            answers = dict(await asyncio.gather(*racing))
            await check_invariants(client)
            ended = await client.wait_terminal([*answers])
            for task_id, answered in answers.items():
                check_end(ended[task_id], answered)
                path = f"{client.tasks_path}/{task_id}/cancel"
                again = await client.request("POST", path)
                is_cancelled = ended[task_id].get("error") == "The task was cancelled."
                assert again.status == (200 if is_cancelled else 409)
                assert (await client.poll(task_id)).body == ended[task_id], "I3"
            await wait_for(lambda: is_closed(world, client), what="all finalizers gone")
            await check_money(world, client, told, killed=True)
            await check_list(client, ended)
    told.check()


def check_end(body, answered):
    """Check that a refused task was not cancelled, and the answer of another is its end."""
    if answered.status == 409:
        assert body.get("error") != "The task was cancelled."
    elif answered.body["status"] != "processing":
        assert answered.body == body, "I3"


async def check_list(client, ended):
    """The list says of each task what a poll says."""
    found, after = {}, ""
    while True:
        page = (await client.request("GET", f"/api/v1/tasks?limit=100{after}")).body
        found |= {task["id"]: task for task in page["data"]}
        if not page["has_more"]:
            break
        after = f"&after={page['last_id']}"
    assert set(found) == set(ended)
    for task_id, body in ended.items():
        listed = found[task_id]
        assert (listed["status"], listed["error"]) == (body["status"], body.get("error"))
        assert listed["cost"] == body.get("usage", {"cost": 0})["cost"]
