"""kill -9 of every other process while tasks are created and run (I1, I2, I3, I9)."""

import asyncio

import pytest

from tests.crash.history import check_money
from tests.servers.world import check_invariants

pytestmark = pytest.mark.slow

TASKS = 12


@pytest.mark.parametrize("process", ["api", "redis", "kube-apiserver", "etcd", "media"])
async def test_process_killed_under_load_loses_and_doubles_nothing(world, process):
    async with world.client() as client:
        await client.simulate({"behaviour": "seconds", "seconds": "1-4"})
        creations = [
            asyncio.create_task(client.create_surely(f"{process}-{number}", duration_seconds=3))
            for number in range(TASKS // 2)
        ]
        await asyncio.wait(creations, return_when=asyncio.FIRST_COMPLETED)
        killed = asyncio.create_task(asyncio.to_thread(world.run.kill, process))
        creations += [
            asyncio.create_task(client.create_surely(f"{process}-{number}", duration_seconds=3))
            for number in range(TASKS // 2, TASKS)
        ]
        await killed
        await asyncio.to_thread(world.run.restart, process)
        ids = await asyncio.gather(*creations)
        assert len(set(ids)) == TASKS
        counts = await check_invariants(client, jobs="exactly one")
        assert counts["accepted"] == TASKS
        await check_money(world, client)


async def test_all_processes_killed_at_once_lose_nothing(world):
    async with world.client() as client:
        await client.simulate({"behaviour": "seconds", "seconds": "2-3"})
        ids = [await client.create_surely(f"all-{n}", duration_seconds=3) for n in range(4)]
        victims = ("api", "operator", "redis", "kube-apiserver", "etcd", "media")
        for process in victims:
            world.run.kill(process)
        for process in reversed(victims):
            world.run.restart(process)
        await client.wait_terminal(ids)
        await check_invariants(client, jobs="exactly one")
        await check_money(world, client)


async def test_redis_emptied_gives_the_same_figures_again(world):
    async with world.client() as client:
        await client.simulate()
        ids = [await client.create_surely(f"flush-{n}", duration_seconds=3) for n in range(3)]
        await client.wait_terminal(ids)
        await check_money(world, client)
        before = (await client.request("GET", "/api/v1/me/balance")).body
        world.run.kill("redis")
        world.run.restart("redis")

        after = (await client.request("GET", "/api/v1/me/balance")).body
        assert after == before
        accepted = await client.create()
        assert accepted.status == 202
        await client.wait_terminal([accepted.body["id"]])
