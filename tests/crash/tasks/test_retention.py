"""kill -9 of the operator while it archives, folds, lets go of tasks and removes them (I7, I9).

Finished tasks are removed at once here, so that every kill meets tasks at each of these steps.
"""

import asyncio
import collections
import json
import secrets

import pytest

from tests.crash.history import wait_settled
from tests.servers.world import World, list_tasks, wait_for
from tests.shares import IS_WHOLE, share

# a hold that is left to the sweeper takes minutes
pytestmark = [pytest.mark.timeout(420)]

TASKS = 8
AT_ONCE = {
    "GATEWAY_RETENTION_TTL_SECONDS": "0",
    "GATEWAY_RETENTION_LEAST_SECONDS": "0",
    "GATEWAY_SWEEP_SECONDS": "0.5",
}


@pytest.fixture(scope="module")
def world(control_plane):
    """A gateway that keeps no finished task."""
    with World(control_plane, extra_env={"operator": AT_ONCE}) as running:
        yield running


def sum_usage(world):
    """What the usage objects of the account come to, in micro-dollars, and how many requests."""
    items = json.loads(world.run.kubectl("get", "gwusage", "-o", "json"))["items"]
    # one that was made just now has no status yet
    status = [item.get("status", {}) for item in items if item["spec"]["accountName"] == "demo"]
    return sum(s.get("chargedMicros", 0) for s in status), sum(s.get("requests", 0) for s in status)


async def read_spent(world, client):
    """What REST says was spent, in micro-dollars, once nothing is held."""
    return (await wait_settled(world, client, killed=True))["spent_cents_total"] * 10_000


KILLS_A_STEP = 25
STEPS = {"after-fold": 1, "before-removal": 2, "after-removal": 2}
MORE_STEPS = {"after-archive": 3, "after-settle": 3, "after-finalizer": 3}
"""For the long run: by default they are killed at in `test_failpoints`, where tasks stay."""


@pytest.mark.parametrize("kill", range(share(KILLS_A_STEP)))
@pytest.mark.parametrize(("step", "hit"), ({**STEPS, **MORE_STEPS} if IS_WHOLE else STEPS).items())
async def test_killed_while_tasks_are_let_go_of(world, tally, step, hit, kill):
    told = tally("F1", f"operator killed {step}, finished tasks removed at once")
    async with world.client() as client, told.trial(client):
        await client.simulate({"behaviour": "seconds", "seconds": "0.3-1"})
        charged, requests = await asyncio.to_thread(sum_usage, world)
        jobs = len((await client.read_simulator("/control/jobs"))["jobs"])
        world.run.restart("operator", {**AT_ONCE, "GATEWAY_FAILPOINTS": f"{step}:{hit}"})
        keys = [f"{step}-{secrets.token_hex(4)}" for _ in range(TASKS)]
        creations = [
            asyncio.create_task(client.create_surely(key, duration_seconds=3)) for key in keys
        ]
        await wait_for(lambda: not world.is_alive("operator"), what=f"death at {step}", seconds=40)
        world.run.restart("operator", AT_ONCE)
        ids = await asyncio.gather(*creations)
        ended = await client.wait_terminal(ids)
        await wait_for(
            lambda: not list_tasks(world), what="every finished task removed", seconds=60
        )

        price = sum(round(body["usage"]["cost"] * 1_000_000) for body in ended.values())
        assert price > 0
        now = await asyncio.to_thread(sum_usage, world)
        assert now == (charged + price, requests + TASKS), "I7: each is folded once"
        assert await read_spent(world, client) == now[0]

        # from the archive: the same answers, and the same tasks for the same keys
        for task_id in ids:
            assert (await client.poll(task_id)).body == ended[task_id], "I3, I9"
        again = [await client.create_surely(key, duration_seconds=3) for key in keys]
        assert again == ids
        made = collections.Counter(
            job["client_reference"]
            for job in (await client.read_simulator("/control/jobs"))["jobs"]
        )
        assert len(made) == sum(made.values()) == jobs + TASKS, "I2"
    told.check()


async def test_the_figures_are_the_same_once_redis_has_lost_them(world):
    async with world.client() as client:
        task = await client.create_surely(f"lost-{secrets.token_hex(4)}", duration_seconds=3)
        await client.wait_terminal([task])
        await wait_for(
            lambda: not list_tasks(world), what="every finished task removed", seconds=60
        )
        before = await read_spent(world, client)
        world.run.kill("redis")
        world.run.restart("redis")
        assert await read_spent(world, client) == before
        assert before == (await asyncio.to_thread(sum_usage, world))[0]


async def test_equal_creates_race_the_removal(world):
    async with world.client() as client:
        await client.simulate({"behaviour": "seconds", "seconds": "0.2"})
        jobs = len((await client.read_simulator("/control/jobs"))["jobs"])
        key = f"race-{secrets.token_hex(4)}"
        ids = set()
        ids.add(await client.create_surely(key, duration_seconds=3))

        async def repeat():
            ids.add(await client.create_surely(key, duration_seconds=3))
            return not await asyncio.to_thread(list_tasks, world)

        await wait_for(repeat, what="the removal", seconds=30)
        for _ in range(10):
            await repeat()
        assert len(ids) == 1
        assert len((await client.read_simulator("/control/jobs"))["jobs"]) == jobs + 1
