"""F2, F3: processes are killed at random under load, or away for a while (I1, I2, I3, I5, I7, I9).

While the record is away, creates are refused with 503 within two seconds; one under way when it
went may get 504, its outcome unknown (contract §2.1). Recovery needs no action of an admin. The
objects are in a bucket, whose server is killed as well.
"""

import asyncio
import random
import re
import time
from collections.abc import Iterator
from contextlib import asynccontextmanager

import pytest

from gateway_core.api.crd import KINDS
from gateway_core.kube.client import KubernetesClient
from gateway_core.kube.errors import KubernetesError
from gateway_core.kube.kubeconfig import find_connection
from tests.crash.history import check_money
from tests.crash.storage import PIECES, Uploading, list_files
from tests.crash.traffic import traffic
from tests.faults.machine import Stopwatch
from tests.servers.s3 import S3Server
from tests.servers.world import World, check_invariants, wait_for
from tests.shares import IS_WHOLE, long_run, share

pytestmark = [pytest.mark.timeout(3600 if IS_WHOLE else 400)]

KILLS = 50
PROBE = "a probe"
REACTION_SECONDS = {"kube-apiserver": 25.0, "etcd": 25.0}
"""From the return of a process to the end of a task made then; 10 for the others."""
OUTAGES = {5: 17, 60: 10, 300: 3}
"""How many, by their seconds."""
REFUSAL_SECONDS = 2.0
HEAL_SECONDS = 25.0
RETURN_SECONDS = 150.0
"""kube-apiserver connects to etcd again with a back-off of up to 120 s, for each kind by itself."""
NOTICE_SECONDS = 3.0
"""A create sent later than that into an outage is refused, since it is known by then."""

CASES = [
    (process, seconds)
    for process in ("etcd", "kube-apiserver")
    for seconds in (OUTAGES if IS_WHOLE else (5,))
]
TASKS = 500
VOLUME_SECONDS = 30
MOST_LINES = 200
_REQUEST = re.compile(r"\banswered\b")
"""The line that each request leaves; their number is the client's to choose."""


@pytest.fixture(scope="module")
def bucket() -> Iterator[S3Server]:
    """The server of the gateway's objects."""
    with S3Server() as running:
        yield running


@pytest.fixture(scope="module")
def world(bucket: S3Server) -> Iterator[World]:
    """All processes with a control plane of their own, none restarted automatically."""
    users = dict.fromkeys(("api", "operator", "media"), bucket.settings())
    with World(extra_env=users) as running:
        yield running


@pytest.mark.parametrize("process", ["api", "operator", "kube-apiserver", "etcd", "redis", "s3"])
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


@pytest.mark.parametrize(("process", "seconds"), CASES)
async def test_outage_is_reported_at_once_and_ends_without_a_restart(
    world, payer, tally, process, seconds
):
    told = tally("F3", f"{process} away for {seconds} s")
    for _ in range(share(OUTAGES[seconds])):
        await payer.simulate({"behaviour": "seconds", "seconds": f"1-{seconds + 3}"})
        running = [
            await payer.create_surely(f"before-{time.time()}-{n}", duration_seconds=3)
            for n in range(6)
        ]
        async with told.trial(payer):
            await asyncio.to_thread(world.run.kill, process)
            again = await call_during(payer, told, seconds)
            await asyncio.to_thread(world.run.restart, process)
            with Stopwatch() as returning:
                await wait_served(world)
            told.note("kube-apiserver back within s", returning.seconds)
            with Stopwatch() as healing:
                await payer.simulate({"behaviour": "seconds", "seconds": "0.1"})
                fresh = await payer.create_surely(f"after-{time.time()}", duration_seconds=3)
                asked = [await payer.create_surely(key, duration_seconds=3) for key in again]
                await payer.wait_terminal([fresh, *asked, *running])
            told.judge("healed within s", healing, at_most=HEAL_SECONDS)
            await check_invariants(payer, jobs="exactly one")
            await check_money(world, payer, told, killed=True)
    told.check()


async def wait_served(world):
    """Waits until kube-apiserver serves every kind from etcd again."""
    connection = find_connection(world.config.cluster_kubeconfig)
    async with KubernetesClient(connection, world.config.namespace, call_seconds=3) as kube:

        async def is_served():
            try:
                await kube.call_core("GET", "secrets")
                for kind in KINDS:
                    await kube.list_page(kind.plural, limit=1)
            except KubernetesError:
                return False
            return True

        await wait_for(is_served, what="kube-apiserver", seconds=RETURN_SECONDS)


async def call_during(client, told, seconds):
    """Creates twice a second, each answer as it must be; the keys that are to be sent again.

    By turns with a key and without, without one only once the outage is known: a hold that was left
    for a repeat stays for minutes where nobody repeats.
    """
    begin, calls, again = time.monotonic(), [], []

    async def call(number):
        sent = time.monotonic()
        is_known = sent - begin > NOTICE_SECONDS
        key = None if is_known and number % 2 else f"during-{begin}-{number}"
        with Stopwatch() as timed:
            answer = await client.create(idempotency_key=key, duration_seconds=3)
        if answer.status == 504:
            told.note("unknown (504) within s", timed.seconds)
            since = sent - begin
            told.judge(
                "creates sent before s are 504", timed, at_most=NOTICE_SECONDS, seconds=since
            )
            if key is not None:
                again.append(key)
            return
        assert answer.status == 503, (answer.status, answer.raw)
        assert int(answer.headers["Retry-After"]) >= 1
        if not is_known:
            again.append(key)
        told.judge("refused (503) within s", timed, at_most=REFUSAL_SECONDS)

    while time.monotonic() - begin < seconds:
        calls.append(asyncio.create_task(call(len(calls))))
        await asyncio.sleep(0.5)
    await asyncio.gather(*calls)
    return again


def count_lines(world, process):
    return sum(not _REQUEST.search(line) for line in world.log(process).splitlines())


@long_run
async def test_outage_leaves_one_line_for_each_cause_and_period(world, payer, tally):
    told = tally("F3", f"log lines of {TASKS} tasks in {VOLUME_SECONDS} s without the API server")
    await payer.simulate({"behaviour": "seconds", "seconds": f"5-{VOLUME_SECONDS}"})
    slots = asyncio.Semaphore(16)

    async def create(number):
        async with slots:
            return await payer.create_surely(f"volume-{time.time()}-{number}", duration_seconds=3)

    running = await asyncio.gather(*map(create, range(TASKS)))
    before = {process: count_lines(world, process) for process in ("api", "operator")}
    async with told.trial(payer):
        await asyncio.to_thread(world.run.kill, "kube-apiserver")
        await asyncio.sleep(VOLUME_SECONDS)
        await asyncio.to_thread(world.run.restart, "kube-apiserver")
        await payer.wait_terminal(running, seconds=120)
        for process, count in before.items():
            lines = count_lines(world, process) - count
            told.note(f"lines of {process}", lines)
            assert lines <= MOST_LINES, f"{process} wrote {lines} lines"
        failed = await wait_for(lambda: "repeated=" in world.log("operator"))
        assert failed
    told.check()
