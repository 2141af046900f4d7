"""F4: watches that are silent while objects are deleted and history is compacted, then cut.

API and operator resume from a version that is gone. Afterwards their caches hold what the record
holds: deleted keys are refused, deleted tasks are not found, and the counts of objects agree.
"""

import asyncio
import secrets
from contextlib import ExitStack

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.crash.observability.test_observation import scrape
from tests.crash.outages.test_watches import compact, restart_through
from tests.faults.machine import Stopwatch
from tests.servers.proxy import Proxy
from tests.servers.tenants import describe_key, open_tenant, wait_status
from tests.servers.world import World, check_invariants, list_tasks, wait_for
from tests.shares import long_run, share

pytestmark = [pytest.mark.timeout(900), long_run]

ROUNDS = 20
KEYS = 980
TASKS = 20
AT_ONCE = 16
SWEEP_SECONDS = 600


@pytest.fixture(scope="module")
def linked():
    """A gateway whose API and operator reach the Kubernetes API through a proxy each."""
    with ExitStack() as stack:
        world = stack.enter_context(World(restart=True))
        links = {
            process: stack.enter_context(Proxy(world.config.ports.kube_apiserver))
            for process in ("api", "operator")
        }
        for process, link in links.items():
            restart_through(world, process, link)
        yield world, list(links.values())


@pytest.mark.parametrize("number", range(share(ROUNDS)))
async def test_caches_equal_the_record_after_deletes_in_a_compacted_history(linked, tally, number):
    world, links = linked
    told = tally("F4", f"watches silent over {KEYS + TASKS} deletes and a compaction, then cut")
    async with open_tenant(world, unlimited=True, requestsPerMinute=1_000_000) as client:
        await client.simulate(
            {"behaviour": "stall", "match": {"prompt_contains": "gone"}},
            {"behaviour": "seconds", "seconds": "20"},
        )
        deleted = [
            await client.create_surely(f"gone-{number}-{n}", prompt="gone") for n in range(TASKS)
        ]
        kept = [await client.create_surely(f"kept-{number}-{n}", prompt="kept") for n in range(2)]
        keys = await make_keys(world, client)
        await wait_for(lambda: agrees(world), what="all known to both", seconds=60)
        tokens = [plaintext for plaintext, _ in keys[::20]]
        for token in tokens:
            await wait_status(client, 200, key=token, seconds=20)
        async with told.trial(client):
            for link in links:
                link.fall_silent()
            await delete(world, "gatewaykeys", [name for _, name in keys])
            await delete(world, "gatewaytasks", [task.replace("_", "-", 1) for task in deleted])
            compact(world)
            # its own cache would replay what etcd has forgotten
            await asyncio.to_thread(world.run.restart, "kube-apiserver")
            with Stopwatch() as timed:
                for link in links:
                    link.cut()
                    link.flow()
                await wait_for(lambda: agrees(world), what="both caches", seconds=SWEEP_SECONDS)
            told.note("caches agree after s", timed.seconds)
            for token in tokens:
                await wait_status(client, 401, key=token)
            for task in deleted:
                assert (await client.poll(task)).status == 404
            await client.simulate({"behaviour": "seconds", "seconds": "0.2"})
            for task in deleted:
                client.history.accepted.remove(task)
                client.history.polled.pop(task, None)
            ended = await client.wait_terminal(kept)
            assert {body["status"] for body in ended.values()} == {"completed"}
            fresh = await client.create_surely(secrets.token_hex(4), duration_seconds=3)
            await client.wait_terminal([fresh])
            await check_invariants(client, jobs="exactly one")
    told.check()


async def make_keys(world, client):
    """Keys of the account, straight into the record: plaintext and name of each."""
    made = [describe_key(world, client.account) for _ in range(KEYS)]
    slots = asyncio.Semaphore(AT_ONCE)
    async with world.kube() as kube:

        async def create(obj):
            async with slots:
                await kube.create("gatewaykeys", obj)

        await asyncio.gather(*(create(obj) for _, obj in made))
    return [(key.plaintext, key.name) for key, _ in made]


async def delete(world, plural, names):
    """Deletes objects at once, without what their finalizers stand for."""
    slots = asyncio.Semaphore(AT_ONCE)
    async with world.kube() as kube:

        async def remove(name):
            async with slots:
                obj = await kube.get(plural, name)
                if obj["metadata"].get("finalizers"):
                    await kube.patch(plural, obj, {"metadata": {"finalizers": None}})
                await kube.delete(plural, name)

        await asyncio.gather(*(remove(name) for name in names))


async def agrees(world) -> bool:
    """Whether each process knows as many keys as there are, and as many open tasks."""
    there = {
        "gatewaykeys": world.run.kubectl("get", "gatewaykeys", "-o", "name").count("\n"),
        "gatewaytasks": sum("work" not in t.get("status", {}) for t in list_tasks(world).values()),
    }
    for process in ("api", "operator"):
        try:
            known = await count_known(world, process)
        except OSError:
            return False  # the operator ends with a dead watch, and is started again
        if known != there:
            return False
    return True


async def count_known(world, process) -> dict[str, float]:
    """Keys and open tasks that a process knows; the operator counts its tasks by phase."""
    known = dict.fromkeys(("gatewaykeys", "gatewaytasks"), 0.0)
    for family in text_string_to_metric_families(await scrape(world, process)):
        for sample in family.samples:
            if sample.name == "gateway_watch_objects" and sample.labels["kind"] in known:
                known[sample.labels["kind"]] = sample.value
            elif sample.name == "gateway_tasks":
                known["gatewaytasks"] += sample.value
    return known
