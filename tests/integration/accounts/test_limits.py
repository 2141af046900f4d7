"""What keys and guardrails restrict, as kubectl declares it and clients meet it (contract §9.1)."""

import asyncio
import json

import pytest

from tests.servers.receivers import Receiver
from tests.servers.tenants import (
    describe,
    describe_key,
    describe_model,
    describe_task,
    list_objects,
    make_key,
    open_tenant,
    read_balance,
    unique,
    wait_known,
    wait_status,
)
from tests.servers.world import wait_for

EFFECTIVE_SECONDS = 5
"""How soon every replica knows of a change."""


def describe_guardrail(account, *keys, **spec):
    """A guardrail over keys of an account."""
    named = {"accountName": account, "displayName": "Team", "keyNames": [key.name for key in keys]}
    return describe("Guardrail", unique("grd"), {**named, **spec})


def post(client, key, **changes):
    """A create with another key of the client's account."""
    return client.request("POST", client.tasks_path, key=key, body=client.body(**changes))


@pytest.fixture(scope="module")
def price(world):
    """Micro-dollars that a create of the client's reserves."""

    async def find():
        async with open_tenant(world) as client:
            await client.create()
            [task] = list_objects(client)
            return task["spec"]["request"]["reservedMicros"]

    return asyncio.run(find())


def check_refusal(answer):
    assert answer.status == 429, answer.raw
    assert set(answer.body) == {"error"}
    assert answer.headers["x-should-retry"] == "false"
    assert "Retry-After" not in answer.headers
    assert not any(name.lower().startswith("x-ratelimit") for name in answer.headers)


async def test_a_pool_is_shared_by_two_keys(world, client, price):
    (one, first), (two, second) = (describe_key(world, client.account) for _ in range(2))
    pool = describe_guardrail(
        client.account, one, two, limit={"micros": 2 * price, "window": "1d"}, requestsPerMinute=9
    )
    world.apply(first, second, pool)
    await wait_known(client, one.plaintext)
    await wait_known(client, two.plaintext)

    async def is_pooled():
        # refused, so that it spends nothing, and counted in the pool's rate once that is known
        answer = await post(client, one.plaintext, prompt="")
        return answer.headers["X-RateLimit-Limit-RPM"] == "9"

    await wait_for(is_pooled, seconds=EFFECTIVE_SECONDS, what="the guardrail")
    assert (await post(client, one.plaintext)).status == 202
    assert (await post(client, two.plaintext)).status == 202
    for key in (one, two):
        refused = await post(client, key.plaintext)
        check_refusal(refused)
        assert refused.body["error"].startswith('The credit limit of guardrail "Team", ')
    assert (await client.create()).status == 202, "a key that is not in the pool"
    recorded = [task["spec"]["request"].get("guardrailNames") for task in list_objects(client)]
    assert sorted(recorded, key=str) == sorted([None, *[[pool["metadata"]["name"]]] * 2], key=str)


@pytest.mark.full
async def test_a_limit_that_is_lowered_ends_a_task_that_waits(world, price):
    """Its callback has the object error with the limit's fields, polling the text (§11.1, B.6)."""
    name = unique("far")
    route = {"name": "main", "providerName": name, "upstreamModel": "q4"}
    world.apply(describe_model(world, name, routes=[route]))
    path = f"/api/v1/{name}/reference_to_video"
    first_account = world.read("gatewayaccount", world.client().account)["spec"]
    secret = {"webhookSecretRef": first_account["webhookSecretRef"]}
    async with Receiver() as receiver, open_tenant(world, **secret) as client:
        key = make_key(world, client.account, limit={"micros": price, "window": "monthly"})
        await wait_known(client, key.plaintext)
        body = client.body(model=name, callback_url=receiver.locate("hook"))
        call = {"method": "POST", "key": key.plaintext, "body": body}
        accepted = await wait_status(client, 202, path, **call)
        lowered = {"limit": {"micros": 50_000, "window": "monthly"}}
        world.patch("gatewaykey", key.name, lowered)
        task = accepted.body["id"]
        await wait_for(lambda: receiver.of(task), seconds=20, what="the callback")
        [arrival] = receiver.of(task)
        told = arrival.json["error"]
        assert list(arrival.json) == ["id", "status", "error"]
        assert list(told) == [
            "code",
            "message",
            "limit_cents",
            "used_cents",
            "reset_at",
            "window",
        ]
        assert told["code"] == "credit_limit_exceeded"
        assert (told["limit_cents"], told["used_cents"]) == (5, 0)
        assert told["window"] == "monthly"
        assert told["reset_at"].endswith("-01T00:00:00Z")
        expected = {"id": task, "status": "failed", "error": told}
        assert arrival.body == json.dumps(expected, separators=(",", ":")).encode()
        shown = await client.request("GET", f"{path}/{task}")
        assert shown.body == {"id": task, "status": "failed", "error": told["message"]}
        balance = await read_balance(client)
        assert balance["balance_cents"] == 10_000, "its hold is released"
    world.run.kubectl("delete", "gatewaymodel", name)


@pytest.mark.full
async def test_a_task_made_with_kubectl_is_held_against_the_key_that_it_names(world, client):
    revoked = make_key(world, client.account, revoked=True)
    denied = make_key(world, client.account, allowedModels=["other"])
    good = make_key(world, client.account)
    keys = {unique("task-kubectl"): key.name for key in (revoked, denied, good)}
    tasks = [describe_task(client, name, changes={"keyName": key}) for name, key in keys.items()]
    world.apply(*tasks, command="create")
    names = [f"gatewaytask/{name}" for name in keys]
    world.run.kubectl("wait", "--for=condition=Finished", "--timeout=60s", *names)
    shown = [world.read("gatewaytask", name)["status"] for name in keys]
    assert [status["phase"] for status in shown] == ["Failed", "Failed", "Completed"]
    assert (
        shown[0]["failure"]["message"] == f"Key {revoked.name} opens nothing: the key is revoked."
    )
    assert shown[1]["failure"]["code"] == "model_not_allowed"
