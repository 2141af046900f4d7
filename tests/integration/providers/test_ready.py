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
    wait_status,
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


async def test_provider_without_its_secret(world):
    provider = describe_provider(world)
    secret = unique("secret")
    provider["spec"]["credentialsSecretRef"] = {"name": secret, "key": "token"}
    world.apply(provider)
    await wait_ready(world, provider, "False", "SecretNotFound", secret)
    model = describe_model(
        world,
        unique("on-it"),
        routes=[
            {
                "name": "main",
                "providerName": provider["metadata"]["name"],
                "upstreamModel": "q4",
            }
        ],
    )
    world.apply(model)
    await wait_ready(world, model, "False", "ProviderNotReady", secret)
    world.run.kubectl("delete", f"gatewaymodel/{model['metadata']['name']}")
    world.run.kubectl("delete", f"gatewayprovider/{provider['metadata']['name']}")


@pytest.mark.slow
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


PROVIDERS = {
    "an expression that is none": ({"submit__body": "{model: "}, "InvalidExpression", "submit"),
    "an expression that calls what is not there": (
        {"poll__state": "nothing(job.state)"},
        "InvalidExpression",
        "poll",
    ),
    "a template with an unknown place": (
        {"poll__path": "/v1/jobs/{identifier}"},
        "InvalidTemplate",
        "identifier",
    ),
    "a template that is not closed": ({"poll__path": "/v1/jobs/{jobId"}, "InvalidTemplate", "poll"),
}


@pytest.mark.parametrize("case", PROVIDERS)
async def test_provider_with(world, case):
    changes, reason, text = PROVIDERS[case]
    provider = describe_provider(world, **changes)
    world.apply(provider)
    await wait_ready(world, provider, "False", reason, text)
    mended = {**describe_provider(world), "metadata": provider["metadata"]}
    world.apply(mended)
    await wait_ready(world, mended, "True", "Available")
    world.run.kubectl("delete", f"gatewayprovider/{provider['metadata']['name']}")


MODELS = {
    "a provider that is not there": (
        {"routes": [{"name": "main", "providerName": "nobody", "upstreamModel": "x"}]},
        "ProviderNotFound",
        "nobody",
    ),
    "no price": ({"prices": None}, "PriceMissing", "prices"),
    "a price for some resolutions": (
        {"prices": [{"perSecond": [{"resolution": "720p", "micros": 1}]}]},
        "PriceMissing",
        "540p",
    ),
    "a price by what it does not make": (
        {"prices": [{"inputPerMillionMicros": 1}]},
        "InvalidPrice",
        "by call and by second",
    ),
    "an unknown action": ({"action": "text_to_song"}, "UnknownAction", "reference_to_video"),
    "a rule for no field": (
        {"fields": [{"name": "colour", "supported": False}]},
        "InvalidField",
        "colour",
    ),
    "a default that is no JSON": (
        {"fields": [{"name": "output_resolution", "default": "1080p"}]},
        "InvalidField",
        "output_resolution",
    ),
    "itself disabled": ({"disabled": True}, "Disabled", "disabled"),
}


@pytest.mark.parametrize("case", MODELS)
async def test_model_with(world, case):
    changes, reason, text = MODELS[case]
    model = describe_model(world, unique("model"), **changes)
    world.apply(model)
    await wait_ready(world, model, "False", reason, text)
    world.run.kubectl("delete", f"gatewaymodel/{model['metadata']['name']}")


async def test_of_two_models_of_one_id_the_younger_is_not_ready(world, shared):
    first = describe_model(world, unique("twin"))
    service, model_id = first["spec"]["service"], first["spec"]["modelId"]
    second = describe_model(world, unique("twin"), service=service, modelId=model_id)
    world.apply(first)
    await wait_ready(world, first, "True", "Available")
    world.apply(second)
    # of the same second the name decides, so either may be it; one is, and it names the other
    names = [first["metadata"]["name"], second["metadata"]["name"]]

    def find_younger():
        found = {name: read_ready(world, "gatewaymodel", name) for name in names}
        late = [n for n, ready in found.items() if ready and ready["reason"] == "DuplicateModel"]
        return late if len(late) == 1 and all(found.values()) else None

    (younger,) = await wait_for(find_younger, what="DuplicateModel")
    (older,) = set(names) - {younger}
    assert older in read_ready(world, "gatewaymodel", younger)["message"]
    assert read_ready(world, "gatewaymodel", older)["status"] == "True"
    path = f"/api/v1/{service}/reference_to_video"
    body = shared.body(model=model_id)
    await wait_status(shared, 202, path, method="POST", body=body)
    world.run.kubectl("delete", "gatewaymodel", older)
    # the other takes its place
    await wait_ready(
        world, {"kind": "GatewayModel", "metadata": {"name": younger}}, "True", "Available"
    )
    await wait_status(shared, 202, path, method="POST", body=body)
    world.run.kubectl("delete", "gatewaymodel", younger)


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


async def test_key_that_has_expired(world, client):
    _, key = describe_key(world, client.account, expirationTime="2020-01-01T00:00:00Z")
    world.apply(key)
    await wait_ready(world, key, "False", "Expired")
