"""The processes under the chart's own roles: what they lack is told, and nothing else stops."""

import json

from tests.chart.conftest import NAMED
from tests.servers.mcp import call_tool
from tests.servers.receivers import Receiver, answer
from tests.servers.tenants import (
    describe,
    describe_declared_key,
    open_tenant,
    read_declared,
    read_ready,
    unique,
)
from tests.servers.world import read_task, wait_for


async def wait_forbidden(world, kind, name):
    """The message of `Ready` once it says that a right is missing."""

    def look():
        ready = read_ready(world, kind, name)
        return ready if ready and ready["reason"] == "SecretForbidden" else None

    return (await wait_for(look, seconds=20, what=f"{kind} {name} SecretForbidden"))["message"]


async def test_tasks_callbacks_and_moderations_work_with_named_secrets(client):
    async with Receiver() as receiver:
        url = receiver.plan("done", answer(204))
        task = await client.create_surely(unique("least"), callback_url=url, duration_seconds=3)
        assert (await client.wait_terminal([task]))[task]["status"] == "completed"
        await wait_for(lambda: receiver.arrivals, what="the callback")
    judged = await client.request("POST", "/v1/moderations", body={"input": "a text"})
    assert judged.status == 200


async def test_tool_makes_a_task_and_reads_it(world, client):
    task = {
        "service": client.service,
        "action": "reference_to_video",
        "idempotency_key": unique("least-tool"),
        "params": {name: value for name, value in client.body().items() if name != "model"},
        "model": client.model,
    }
    url = world.env["GATEWAY_MCP_URL"]
    made = await call_tool(url, client.key, "create_task", task)
    assert made["status"] == "completed"
    found = {"service": client.service, "action": task["action"], "task_id": made["task_id"]}
    assert (await call_tool(url, client.key, "get_task", found))["task"] == made["result"]


async def test_declared_key_is_written_into_a_named_secret_only(world):
    world.apply(describe_declared_key("demo", NAMED))
    assert await read_declared(world, NAMED)
    secret = unique("other-key")
    declared = describe_declared_key("demo", secret)
    world.apply(declared)
    message = await wait_forbidden(world, "gatewaykey", declared["metadata"]["name"])
    assert f"RBAC lacks get, create or patch of Secret {secret}" in message
    assert "operator.keySecretNames" in message
    assert 'cannot get resource "secrets"' in message


async def test_provider_with_an_unnamed_secret_reports_the_value_to_set(world):
    spec = world.read("gatewayprovider", "simulated")["spec"]
    spec["credentialsSecretRef"] = {"name": unique("secret"), "key": "token"}
    provider = describe("Provider", unique("prov"), spec)
    world.apply(provider)
    message = await wait_forbidden(world, "gatewayprovider", provider["metadata"]["name"])
    assert f"RBAC lacks get of Secret {spec['credentialsSecretRef']['name']}" in message
    assert "operator.secretNames" in message


async def test_callback_whose_secret_may_not_be_read_causes_an_event(world):
    secret = unique("webhook")
    ref = {"name": secret, "key": "secret"}
    async with (
        open_tenant(world, unlimited=True, webhookSecretRef=ref) as client,
        Receiver() as receiver,
    ):
        url = receiver.plan("never", answer(204))
        task = await client.create_surely(unique("mute"), callback_url=url, duration_seconds=3)
        assert (await client.wait_terminal([task]))[task]["status"] == "completed"

        def find_event():
            listed = world.run.kubectl("get", "events", "-o", "json")
            return [
                event["message"]
                for event in json.loads(listed)["items"]
                if event["involvedObject"]["name"] == client.account
                and event["reason"] == "WebhookSecretMissing"
            ]

        [message] = await wait_for(find_event, seconds=20, what="the Event")
        assert f"RBAC lacks get of Secret {secret}" in message
        assert "operator.secretNames" in message
        assert read_task(world, task)["status"]["callback"]["state"] == "Pending"
        assert not receiver.arrivals
