"""F4: a watch that is cut, compacted or silently dead is noticed and repaired.

After a compaction API and operator resume from a version that is gone. Then their caches hold what
the record holds: deleted keys are refused, deleted tasks are not found, and the counts agree.
"""

import asyncio
import json
import secrets
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.crash.commands import scrape
from tests.faults.machine import Stopwatch
from tests.servers.proxy import Proxy
from tests.servers.tenants import describe_key, open_tenant, wait_status
from tests.servers.world import World, check_invariants, list_tasks, wait_for
from tests.shares import IS_WHOLE, share

pytestmark = [pytest.mark.timeout(900 if IS_WHOLE else 300)]

ROUNDS = 20
KEYS, TASKS = (980, 20) if IS_WHOLE else (20, 3)
AT_ONCE = 16
SWEEP_SECONDS = 600
"""A list of the whole record repairs the caches at the latest."""


@pytest.fixture(scope="module")
def linked():
    """A gateway whose API and operator reach the Kubernetes API through a proxy each."""
    with (
        World(restart=True) as world,  # a dead watch ends the operator, and a supervisor is there
        Proxy(world.config.ports.kube_apiserver) as api_link,
        Proxy(world.config.ports.kube_apiserver) as operator_link,
    ):
        restart_through(world, "api", api_link)
        restart_through(world, "operator", operator_link)
        yield world, api_link, operator_link


def restart_through(world, process, proxy):
    """Restarts a process with a kubeconfig that names the proxy."""
    path = world.link_kubernetes(proxy.port)
    world.run.restart(process, {"KUBECONFIG": str(path), "GATEWAY_SWEEP_SECONDS": "2"})


def revoke_key_2(world):
    """Revokes the second account's key and waits for nothing."""
    found = json.loads(world.run.kubectl("get", "gatewaykeys", "-o", "json"))["items"]
    name = next(k["metadata"]["name"] for k in found if k["spec"]["accountName"] == "guest")
    patch = json.dumps({"spec": {"disabled": True}})
    world.run.kubectl("patch", "gatewaykey", name, "--type=merge", "-p", patch)
    return name


async def test_cut_watches_are_taken_up_again(linked):
    world, api_link, operator_link = linked
    async with world.client() as client:
        await client.simulate({"behaviour": "seconds", "seconds": "2-3"})
        ids = []
        for number in range(5):
            ids.append(await client.create_surely(f"cut-{number}", duration_seconds=3))
            api_link.cut()
            operator_link.cut()
        await client.wait_terminal(ids)
        await check_invariants(client, jobs="exactly one")


async def test_silently_dead_operator_watch_is_repaired(linked):
    world, _, operator_link = linked
    async with world.client() as client:
        await client.simulate()
        operator_link.freeze()
        ids = [await client.create_surely(f"dead-{n}", duration_seconds=3) for n in range(3)]
        await client.wait_terminal(ids)
        await check_invariants(client, jobs="exactly one")
    # with a feed that is dead still the operator would end in the next test
    restart_through(world, "operator", operator_link)


async def test_revoked_key_is_refused_soon_though_the_watch_is_silent(linked):
    world, api_link, _ = linked
    async with world.client(world.env["GATEWAY_API_KEY_2"]) as guest:
        assert (await guest.request("GET", "/api/v1/me")).status == 200
        api_link.freeze()
        name = revoke_key_2(world)

        async def refused():
            return (await guest.request("GET", "/api/v1/me")).status == 401

        # 5 s, and 4 s more where the read first takes an idle connection that is frozen too
        await wait_for(refused, what="401", seconds=12)
        world.run.kubectl(
            "patch", "gatewaykey", name, "--type=merge", "-p", '{"spec":{"disabled":false}}'
        )
        await wait_for(lambda: accepted(guest), what="200")


async def accepted(client):
    """Whether the client's key opens."""
    return (await client.request("GET", "/api/v1/me")).status == 200


@pytest.mark.parametrize("number", range(share(ROUNDS)))
async def test_caches_equal_the_record_after_deletes_in_a_compacted_history(linked, tally, number):
    world, *links = linked
    told = tally("F4", f"watches silent over {KEYS + TASKS} deletes and a compaction, then cut")
    async with open_tenant(world, unlimited=True, requestsPerMinute=1_000_000) as client:
        await client.simulate(
            {"behaviour": "stall", "match": {"prompt_contains": "gone"}},
            {"behaviour": "seconds", "seconds": "20" if IS_WHOLE else "8"},
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


def compact(world):
    """Compacts etcd at its newest revision."""
    base = f"http://127.0.0.1:{world.config.ports.etcd}"

    def call(path, body):
        request = urllib.request.Request(base + path, json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.load(answer)

    revision = call("/v3/kv/range", {"key": "AA=="})["header"]["revision"]
    call("/v3/kv/compaction", {"revision": revision, "physical": True})
