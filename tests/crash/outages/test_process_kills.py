"""F2: kill -9 of every process at random moments of a load (I1, I2, I3, I5, I7, I9).

The load is three tasks and up to two Uploads a second. The gateway keeps its objects in a
bucket here, whose server is killed as well.
"""

import asyncio
import random
import time
from contextlib import asynccontextmanager

import pytest

from tests.crash.files.test_uploads import PIECES, Uploading, list_files
from tests.crash.history import check_money
from tests.crash.traffic import traffic
from tests.faults.machine import Stopwatch
from tests.servers.s3 import S3Server
from tests.servers.world import World, check_invariants, wait_for
from tests.shares import share

pytestmark = [pytest.mark.timeout(400)]

KILLS = 50
PROBE = "a probe"
REACTION_SECONDS = {"kube-apiserver": 25.0, "etcd": 25.0}
"""From the return of a process to the end of a task made then; 10 for the others."""


@pytest.fixture(scope="module")
def bucket():
    """The server of the gateway's objects."""
    with S3Server() as running:
        yield running


@pytest.fixture(scope="module")
def world(bucket):
    """All processes, none restarted of itself, on that server."""
    users = dict.fromkeys(("api", "operator", "media"), bucket.settings())
    with World(extra_env=users) as running:
        yield running


@pytest.mark.parametrize("process", ["api", "operator", "kube-apiserver", "etcd", "redis", "s3"])
@pytest.mark.timeout(120 + 40 * KILLS)
async def test_process_killed_at_random_loses_and_doubles_nothing(
    world, bucket, payer, tally, process
):
    told = tally("F2", f"{process} killed at random")
    await payer.simulate(
        {"behaviour": "seconds", "seconds": "0.1", "match": {"prompt_contains": PROBE}},
        {"behaviour": "seconds", "seconds": "0.5-3"},
    )
    budget = REACTION_SECONDS.get(process, 10.0)
    async with uploads_of(payer) as uploads, traffic(payer, per_second=3):
        for number in range(share(KILLS)):
            await asyncio.sleep(random.uniform(0, 1.5))  # the moment is any
            async with told.trial(payer):
                if process == "s3":
                    await asyncio.to_thread(bucket.kill)
                    await asyncio.to_thread(bucket.start)
                else:
                    await asyncio.to_thread(world.run.kill, process)
                    await asyncio.to_thread(world.run.restart, process)
                with Stopwatch() as reaction:
                    key = f"{process}-{number}-{time.monotonic()}"
                    probe = await payer.create_surely(key, prompt=PROBE, duration_seconds=3)
                    await payer.wait_terminal([probe])
                told.judge("back at work within s", reaction, at_most=budget)
    async with told.trial(payer, count=0):
        await check_invariants(payer, jobs="exactly one")
        await check_money(world, payer, told, killed=True)
        await check_uploads(world, payer, uploads)
    told.note("uploads", len(uploads))
    told.check()


@asynccontextmanager
async def uploads_of(client):
    """Uploads one after the other during the block; the objects of those that were completed."""
    done, stop = [], asyncio.Event()

    async def send():
        while not stop.is_set():
            done.append(await Uploading(client).upload())
            # creates have a rate of 600 a minute
            await asyncio.sleep(0.5)

    sending = asyncio.create_task(send())
    try:
        yield done
    finally:
        stop.set()
        await sending


async def check_uploads(world, client, uploads):
    """Each has one File, with the bytes of its parts in their order."""
    assert uploads
    made = list_files(world)
    for upload in uploads:
        of_it = [file["name"] for file in made if file["upload"] == upload["id"].replace("_", "-")]
        assert of_it == [upload["file"]["id"]], "I5"
        answer = await client.request("GET", f"/v1/files/{upload['file']['id']}/content")
        assert (answer.status, answer.raw) == (200, b"".join(PIECES)), "I9"


async def test_all_processes_killed_at_once_lose_nothing(world, payer):
    await payer.simulate({"behaviour": "seconds", "seconds": "2-3"})
    ids = [await payer.create_surely(f"all-{n}", duration_seconds=3) for n in range(4)]
    victims = ("api", "operator", "redis", "kube-apiserver", "etcd", "media")
    for process in victims:
        world.run.kill(process)
    for process in reversed(victims):
        world.run.restart(process)
    await payer.wait_terminal(ids)
    await check_invariants(payer, jobs="exactly one")
    await check_money(world, payer, killed=True)


async def test_redis_emptied_gives_the_same_figures_again(world, payer):
    await payer.simulate()
    ids = [await payer.create_surely(f"flush-{n}", duration_seconds=3) for n in range(3)]
    await payer.wait_terminal(ids)
    await check_money(world, payer)
    before = (await payer.request("GET", "/api/v1/me/balance")).body
    world.run.kill("redis")
    world.run.restart("redis")

    async def tell():
        answer = await payer.request("GET", "/api/v1/me/balance")
        assert answer.status in (200, 503), answer.raw
        return answer.body if answer.status == 200 else None

    # until the money is rebuilt it is not told; what is told first is right
    assert await wait_for(tell, what="the balance") == before
    accepted = await payer.create_surely("flush-after")
    await payer.wait_terminal([accepted])
