"""`Ready` of the standing kinds: False with a reason that says what to mend, True once mended."""

import base64
import copy

import pytest

from tests.servers.tenants import (
    describe,
    describe_account,
    describe_key,
    describe_model,
    read_ready,
    unique,
)
from tests.servers.world import wait_for

KINDS = {"GatewayAccount", "GatewayKey", "GatewayModel", "GatewayProvider"}


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


async def test_first_objects_are_ready(world):
    for kind in KINDS:
        listed = world.run.kubectl("get", kind.lower(), "-o", "name").split()
        assert listed
    for kind, name in (("GatewayProvider", "simulated"), ("GatewayAccount", "demo")):
        await wait_ready(
            world, describe(kind.removeprefix("Gateway"), name, {}), "True", "Available"
        )


@pytest.mark.full
async def test_secret_that_comes_later_mends_the_provider_without_a_restart(world):
    provider = describe_provider(world)
    secret = unique("secret")
    provider["spec"]["credentialsSecretRef"] = {"name": secret, "key": "token"}
    world.apply(provider)
    await wait_ready(world, provider, "False", "SecretNotFound", secret)
    data = {"token": base64.b64encode(b"whatever").decode()}
    world.apply({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": secret}, "data": data})
    # a touch of the provider has its Secret read again, as half a minute would
    world.patch("gatewayprovider", provider["metadata"]["name"], {"maxConcurrentRequests": 3})
    await wait_ready(world, provider, "True", "Available")
    world.run.kubectl("delete", f"gatewayprovider/{provider['metadata']['name']}")


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
    await wait_ready(world, mended, "True", "Available")
    await wait_ready(world, model, "True", "Available")
    world.run.kubectl("delete", f"gatewaymodel/{model['metadata']['name']}")
    world.run.kubectl("delete", f"gatewayprovider/{name}")


async def test_key_without_its_account_and_revoked(world):
    account = unique("acct")
    _, key = describe_key(world, account)
    world.apply(key)
    await wait_ready(world, key, "False", "AccountNotFound", account)
    owner = describe_account(account)
    world.apply(owner)
    await wait_ready(world, key, "True", "Available")
    world.patch("gatewayaccount", account, {"suspended": True})
    await wait_ready(world, owner, "False", "Suspended")
    await wait_ready(world, key, "False", "Suspended")
    world.patch("gatewayaccount", account, {"suspended": False})
    await wait_ready(world, owner, "True", "Available")
    world.patch("gatewaykey", key["metadata"]["name"], {"disabled": True})
    await wait_ready(world, key, "False", "Disabled")
    world.patch("gatewaykey", key["metadata"]["name"], {"revoked": True})
    await wait_ready(world, key, "False", "Revoked")
