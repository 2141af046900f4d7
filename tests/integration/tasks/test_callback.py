"""A callback as its receiver sees it; tests/callbacks has faults, schedules and networks (§11)."""

import pytest
from openai import OpenAI

from tests.callbacks.tasks import run_task, wait_state
from tests.servers.receivers import Receiver, answer, check_one_event
from tests.servers.tenants import open_tenant


@pytest.fixture
async def receiver():
    async with Receiver() as server:
        yield server


@pytest.fixture
async def client(world):
    """A client of an account that signs with the secret of the first one."""
    reference = world.read("gatewayaccount", "demo")["spec"]["webhookSecretRef"]
    async with open_tenant(world, webhookSecretRef=reference) as own:
        yield own


async def test_end_arrives_once_signed_and_readable_by_the_sdks(world, client, receiver):
    secret = world.env["GATEWAY_WEBHOOK_SECRET"]
    answers = []

    async def look_up(request):
        task = (await request.json())["id"]
        answers.append((await client.poll(task)).body)
        return await answer(204)(request)

    url = receiver.plan("done", look_up)
    task, body = await run_task(client, url)
    obj = await wait_state(world, task, "Delivered")
    (arrival,) = receiver.arrivals
    check_one_event([arrival], task, body)
    assert answers == [body], "a GET inside the handler sees the end"
    assert arrival.verify(secret) == body
    OpenAI(api_key="none", webhook_secret=secret).webhooks.verify_signature(
        arrival.body.decode(), dict(arrival.headers)
    )
    sent = {name.lower() for name in arrival.headers}
    assert sent == {
        "connection",
        "host",
        "content-type",
        "content-length",
        "user-agent",
        "webhook-id",
        "webhook-timestamp",
        "webhook-signature",
    }
    assert obj["status"]["callback"] == {
        "id": arrival.id,
        "state": "Delivered",
        "attempts": 1,
        "lastAttemptTime": obj["status"]["callback"]["lastAttemptTime"],
        "lastStatus": 204,
        "lastAnswer": "answered 204",
        "redeliveries": 0,
    }
    wide = world.run.kubectl("get", "gatewaytask", obj["metadata"]["name"], "-o", "wide")
    assert "Delivered" in wide
    assert "answered 204" in wide
