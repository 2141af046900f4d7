"""A watch that is cut, compacted or silently dead is noticed and repaired."""

import json
import time
import urllib.request

import pytest

from tests.crash.history import is_closed
from tests.servers.proxy import Proxy
from tests.servers.world import World, check_invariants, wait_for

pytestmark = [pytest.mark.timeout(300)]


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


async def test_revoked_key_is_refused_in_5_s_though_the_watch_is_silent(linked):
    world, api_link, _ = linked
    async with world.client(world.env["GATEWAY_API_KEY_2"]) as guest:
        assert (await guest.request("GET", "/api/v1/me")).status == 200
        api_link.freeze()
        revoked_at = time.monotonic()
        name = revoke_key_2(world)

        async def refused():
            return (await guest.request("GET", "/api/v1/me")).status == 401

        await wait_for(refused, what="401", seconds=5)
        assert time.monotonic() - revoked_at < 6
        world.run.kubectl(
            "patch", "gatewaykey", name, "--type=merge", "-p", '{"spec":{"disabled":false}}'
        )
        await wait_for(lambda: accepted(guest), what="200")


async def accepted(client):
    """Whether the client's key opens."""
    return (await client.request("GET", "/api/v1/me")).status == 200


async def test_compacted_history_leads_to_a_list_that_finds_every_change(linked):
    world, api_link, operator_link = linked
    async with world.client() as client:
        await client.simulate()
        ids = [await client.create_surely(f"compact-{n}", duration_seconds=3) for n in range(3)]
        await client.wait_terminal(ids)
        await wait_for(lambda: is_closed(world, client), what="all finalizers gone", seconds=60)
        # a task that ends and a model that goes while the API and the operator see nothing
        api_link.fall_silent()
        operator_link.fall_silent()
        model = world.env["GATEWAY_MODEL"]
        patch = '{"spec":{"disabled":true}}'
        world.run.kubectl("patch", "gatewaymodel", model, "--type=merge", "-p", patch)
        world.run.kubectl("delete", "gatewaytask", ids[0].replace("_", "-", 1))
        compact(world)
        world.run.restart("kube-apiserver")
        api_link.cut()
        operator_link.cut()
        api_link.flow()
        operator_link.flow()

        async def model_is_gone():
            return (await client.create()).status in (400, 404)

        await wait_for(model_is_gone, what="the model's end", seconds=60)
        answer = await client.poll(ids[0])
        assert answer.status == 200
        assert answer.body["status"] == "completed"  # from the archive: the object is gone
        world.run.kubectl(
            "patch", "gatewaymodel", model, "--type=merge", "-p", '{"spec":{"disabled":false}}'
        )

        async def model_is_back():
            return (await client.create()).status == 202

        await wait_for(model_is_back, what="the model's return")
        client.history.accepted.remove(ids[0])  # its object is gone, there is no uid to look for
        await check_invariants(client, jobs="exactly one")


def compact(world):
    """Compacts etcd at its newest revision."""
    base = f"http://127.0.0.1:{world.config.ports.etcd}"

    def call(path, body):
        request = urllib.request.Request(base + path, json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.load(answer)

    revision = call("/v3/kv/range", {"key": "AA=="})["header"]["revision"]
    call("/v3/kv/compaction", {"revision": revision, "physical": True})
