"""kill -9 of the operator around an attempt at a callback (I4, I9): one id, one body, no attempt
skipped, no schedule begun anew.
"""

import asyncio
import secrets

import pytest

from tests.crash.history import check_money, is_closed
from tests.crash.steps import CALLBACKS, choose
from tests.crash.traffic import open_called_back
from tests.servers.receivers import Receiver, answer, check_one_event
from tests.servers.world import check_invariants, list_tasks, wait_for
from tests.shares import share

KILLS_A_STEP = 25
TASKS_A_KILL = 3
HIT = 2
SCHEDULE = "0,0.5,0.5,1,1"
PAUSE = 8
"""Seconds between two attempts, within which the operator is killed and the object read twice."""


@pytest.fixture(scope="module", autouse=True)
def schedule(world):
    """That of the operator is its own again at the end."""
    yield
    world.run.restart("operator", {})


@pytest.mark.parametrize("step", choose("operator", CALLBACKS))
@pytest.mark.timeout(120 + 20 * KILLS_A_STEP)
async def test_operator_killed_around_an_attempt_sends_one_event(world, tally, step):
    told, kills = tally("F1", f"operator killed {step}"), share(KILLS_A_STEP)
    env = {"GATEWAY_CALLBACK_SCHEDULE": SCHEDULE}
    # an account of its own: others' tasks are no part of its sums
    async with open_called_back(world) as client, Receiver() as receiver:
        await client.simulate({"behaviour": "seconds", "seconds": "0.3-1"})
        creations = []
        for kill in range(kills):
            world.restart_doomed("operator", {**env, "GATEWAY_FAILPOINTS": f"{step}:{HIT}"})
            for number in range(TASKS_A_KILL):
                url = receiver.plan(f"{kill}-{number}", answer(500), answer(500))
                key = f"{step}-{secrets.token_hex(4)}"
                create = client.create_surely(key, duration_seconds=3, callback_url=url)
                creations.append(asyncio.create_task(create))
            await wait_for(lambda: not world.is_alive("operator"), what="death", seconds=40)
        world.run.restart("operator", env)
        async with told.trial(client, count=kills):
            tasks = await asyncio.gather(*creations)
            await check_invariants(client, jobs="exactly one")
            # in a thread: what is waited for needs the receiver, which is of this loop
            await wait_for(
                lambda: asyncio.to_thread(is_closed, world, client),
                seconds=60,
                what="all finalizers gone",
            )
            found = list_tasks(world)
            for task in tasks:
                callback = found[task]["status"]["callback"]
                assert callback["state"] == "Delivered", f"I4: {task}: {callback}"
                arrivals = receiver.of(task)
                check_one_event(arrivals, task, client.history.polled[task][-1])
                # two failures and a success, and again what a kill left unrecorded
                assert 3 <= len(arrivals) <= 3 + kills, f"I4: {task}: {len(arrivals)}"
                assert callback["attempts"] <= len(arrivals), f"I4: {task} skipped an attempt"
                assert callback["lastStatus"] == 200
            await check_money(world, client, told, killed=True)
        told.check()


@pytest.mark.timeout(300)
async def test_schedule_continues_where_it_was_before_a_kill(world):
    """The next attempt is due when it was due before the kill, and its number is the next."""
    env = {"GATEWAY_CALLBACK_SCHEDULE": f"0,{PAUSE},600"}
    world.run.restart("operator", env)
    # an account of its own: the task is deleted at the end, and others sum up what is there
    async with open_called_back(world) as client, Receiver() as receiver:
        await client.simulate()
        url = receiver.always("down", answer(500))
        task = await client.create_surely(
            f"goes-on-{secrets.token_hex(4)}", duration_seconds=3, callback_url=url
        )

        async def attempts():
            # in a thread: the receiver, which notes when an attempt arrives, is of this loop
            obj = (await asyncio.to_thread(list_tasks, world))[task]
            return obj.get("status", {}).get("callback", {}).get("attempts", 0)

        async def is_tried(times):
            return await attempts() == times

        await wait_for(lambda: is_tried(1), what="the first attempt")
        world.run.kill("operator")
        before = list_tasks(world)[task]["status"]["callback"]
        world.run.restart("operator", env)
        after = list_tasks(world)[task]["status"]["callback"]
        assert after["nextAttemptTime"] == before["nextAttemptTime"]
        await wait_for(lambda: is_tried(2), seconds=30, what="the second attempt")
        first, second = receiver.of(task)
        assert second.at - first.at >= 0.9 * PAUSE
        world.run.restart("operator", env)
        # once another callback is delivered, the operator has looked at those that wait
        later = await client.create_surely(
            f"later-{secrets.token_hex(4)}", duration_seconds=3, callback_url=receiver.locate("up")
        )
        await wait_for(lambda: receiver.of(later), what="another callback")
        assert len(receiver.of(task)) == 2, "a restart begins nothing anew"
        assert await attempts() == 2
        name = task.replace("_", "-", 1)
        await asyncio.to_thread(world.run.kubectl, "delete", "gatewaytask", name, "--timeout=60s")
