"""kill -9 of the operator while it removes finished tasks (I7, I9).

Finished tasks are removed at once here, so that every kill meets tasks at each of these steps.
"""

import asyncio
import collections
import json
import secrets

import pytest

from tests.crash.history import wait_settled
from tests.crash.steps import RETENTION, choose
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
STEPS = dict.fromkeys(choose("operator", RETENTION), 2)
if IS_WHOLE:
    # elsewhere `test_failpoints` kills at these, where tasks stay
    STEPS |= {"after-fold": 1, "after-archive": 3, "after-settle": 3, "after-finalizer": 3}


@pytest.mark.parametrize("kill", range(share(KILLS_A_STEP)))
@pytest.mark.parametrize(("step", "hit"), STEPS.items(), ids=STEPS)
async def test_operator_killed_in_a_removal_loses_nothing(world, tally, step, hit, kill):
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


async def test_equal_creates_during_the_removal_make_one_task(world):
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
