"""`Ready` of the standing kinds: False with a reason that says what to mend, True once mended."""

import copy

from tests.servers.tenants import (
    describe,
    describe_account,
    describe_key,
    describe_model,
    open_tenant,
    read_ready,
    unique,
)
from tests.servers.world import wait_for


async def wait_ready(world, obj, status, reason, text="", *, seconds=20):
    """Waits for the condition, and checks that the admin's columns show it."""
    kind, name = obj["kind"].lower(), obj["metadata"]["name"]

    def is_so():
        ready = read_ready(world, kind, name)
        return ready and (ready["status"], ready["reason"]) == (status, reason)

    await wait_for(is_so, seconds=seconds, what=f"{kind} {name} {status} {reason}")
    ready = read_ready(world, kind, name)
    assert text in ready["message"]
    narrow = world.run.kubectl("get", kind, name)
    assert f" {status} " in narrow
    assert reason in narrow
    assert ready["message"] in world.run.kubectl("get", kind, name, "-o", "wide")


def describe_provider(world, **changes):
    """A provider like the simulated one; `changes` go into `http`."""
    spec = copy.deepcopy(world.read("gatewayprovider", "simulated")["spec"])
    for path, value in changes.items():
        *parents, last = path.split("__")
        part = spec["http"]
        for parent in parents:
            part = part[parent]
        part[last] = value
    return describe("Provider", unique("prov"), spec)


async def test_mended_provider_makes_its_model_ready(world):
    """A smoke test; tests/unit/operator/test_readiness.py has every reason."""
    provider = describe_provider(world, poll__state="nothing(job.state)")
    name = provider["metadata"]["name"]
    routes = [{"name": "main", "providerName": name, "upstreamModel": "q4"}]
    model = describe_model(world, unique("on-it"), routes=routes)
    world.apply(provider, model)
    await wait_ready(world, provider, "False", "InvalidExpression", "poll")
    await wait_ready(world, model, "False", "ProviderNotReady", "poll")
    mended = {**describe_provider(world), "metadata": provider["metadata"]}
    world.apply(mended)
    await wait_ready(world, mended, "True", "NotTested", "not tested")
    await wait_ready(world, model, "True", "Available")
    world.run.kubectl("delete", f"gatewaymodel/{model['metadata']['name']}")
    world.run.kubectl("delete", f"gatewayprovider/{name}")


async def test_provider_is_available_once_a_call_has_succeeded(world):
    async with open_tenant(world) as client:
        task = (await client.create()).body["id"]
        await client.wait_terminal([task])
    simulated = world.read("gatewayprovider", "simulated")
    # by the report of the operator's calls and the sweep that writes their outcome
    await wait_ready(world, simulated, "True", "Available", "a call succeeded at 20", seconds=90)


async def test_key_tells_of_a_model_until_it_exists(world):
    account, model = unique("acct"), unique("later")
    _, key = describe_key(world, account, allowedModels=[model])
    world.apply(describe_account(account), key)
    text = f"allowedModels: {model} is not a model of this gateway"
    await wait_ready(world, key, "True", "NameNotFound", text)
    world.apply(describe_model(world, model))
    await wait_ready(world, key, "True", "Available")
    world.run.kubectl("delete", f"gatewaymodel/{model}")
