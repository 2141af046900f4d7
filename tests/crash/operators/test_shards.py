"""Operators that divide the shards: their number changes while tasks run (I1, I2, I3, I7)."""

import asyncio

import pytest

from gateway_core.api.ids import shard_of
from tests.crash.conftest import FUNDS
from tests.crash.guarantees import Load, make_models
from tests.crash.history import check_money, is_closed
from tests.faults.machine import Stopwatch
from tests.servers.replica import Replica
from tests.servers.tenants import describe_task, open_tenant, unique
from tests.servers.world import check_invariants, list_tasks, wait_for

pytestmark = [pytest.mark.timeout(600)]

PATIENT_SECONDS = 15
"""For a request to a provider: no stall of the machine makes a submission's outcome unknown, and
an operator that is asked to end waits longer for what it has begun."""


@pytest.fixture(scope="module")
def world(unattended_world):
    """Its own API, if any client asks it, is behind no balancer."""
    return unattended_world


@pytest.fixture
async def client(world):
    """Of an account of its own: the slower the machine, the more tasks the load comes to."""
    async with open_tenant(world, funds=FUNDS, requestsPerMinute=1_000_000) as own:
        await own.simulate({"behaviour": "seconds", "seconds": "2-8"})
        yield own
        await own.simulate()


@pytest.fixture
def start(world):
    """Starts operators, not waited for; those of a test that fails end with it."""
    started = []

    def start(replicas, ordinal):
        env = {"GATEWAY_REPLICAS": str(replicas), "GATEWAY_ORDINAL": str(ordinal)}
        started.append(Replica(world, "operator", **env))
        started[-1].start()
        return started[-1]

    yield start
    for operator in started:
        operator.kill()


async def end(operator):
    """Ends an operator as a rollout does; 0 is what it must come to."""
    operator.terminate()
    assert await asyncio.to_thread(operator.wait_ended) == 0


async def wait_ready(*operators):
    await asyncio.gather(*(asyncio.to_thread(operator.wait_ready) for operator in operators))


def apply_tasks(world, client, count):
    """Tasks as kubectl makes them, whose shards are spread; their ids."""
    names = [unique("task-by-hand") for _ in range(count)]
    world.apply(*(describe_task(client, name) for name in names), command="create")
    return [name.replace("-", "_", 1) for name in names]


async def wait_answer(client, task):
    """The first poll that is a 200: one whose read takes the API too long is a 503."""

    async def ask():
        answer = await client.poll(task)
        return answer if answer.status == 200 else None

    return await wait_for(ask, what=f"an answer about {task}")


async def check_all(world, client, load):
    """Every task has ended, once, and was paid once."""
    ended = await client.wait_terminal(client.history.accepted, seconds=120)
    load.check_ends(ended)
    await check_invariants(client)
    await wait_for(lambda: is_closed(world, client), what="all finalizers gone", seconds=60)
    await check_money(world, client)
    return ended


async def test_operators_are_scaled_from_one_to_two_and_back_under_load(world, client, start):
    """Old pods and new ones own some shards together, and for moments nobody owns some."""
    first = start(1, 0)
    await wait_ready(first)
    await make_models(world, client, request_seconds=PATIENT_SECONDS)
    load, stop = Load(client, pause=0.3), asyncio.Event()
    creating = asyncio.create_task(load.run(stop))
    by_hand = apply_tasks(world, client, 4)
    # up: the new pod comes beside the old one, which is replaced when that is ready
    second = start(2, 1)
    await wait_ready(second)
    by_hand += apply_tasks(world, client, 4)
    await end(first)
    by_hand += apply_tasks(world, client, 4)
    first = start(2, 0)
    await wait_ready(first)
    by_hand += apply_tasks(world, client, 8)
    await asyncio.sleep(2)
    # down: the pod that is one too many goes, and then the other is replaced
    await end(second)
    by_hand += apply_tasks(world, client, 4)
    await end(first)
    first = start(1, 0)
    await wait_ready(first)
    await asyncio.sleep(2)
    stop.set()
    await creating
    client.history.accepted.extend(by_hand)
    ended = await check_all(world, client, load)
    assert {ended[task]["status"] for task in by_hand} == {"completed"}
    # nobody was killed, so nothing is unknown even where nothing tells jobs apart
    assert not [body for body in ended.values() if body["status"] != "completed"]
    await end(first)


async def test_tasks_of_a_killed_owner_alone_wait_for_its_pod(world, client, start, tally):
    told = tally("F2", "one of two operators killed, back as its pod")
    owners = [start(2, ordinal) for ordinal in range(2)]
    await wait_ready(*owners)
    # none ends before its owner is killed
    await client.simulate({"behaviour": "seconds", "seconds": "20"})
    creations = [client.create_surely(unique("pod"), duration_seconds=3) for _ in range(12)]
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
    await asyncio.gather(*(end(owner) for owner in owners))
