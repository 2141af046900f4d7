"""Callbacks as receivers see them, over real processes and sockets (contract §11)."""

import asyncio
import base64
import ssl
import subprocess

import pytest
from openai import OpenAI

from tests.callbacks.conftest import SCHEDULE
from tests.servers.receivers import Receiver, answer, check_one_event, trickle
from tests.servers.tenants import describe_account, describe_key, describe_task, unique, wait_known
from tests.servers.world import read_task, wait_for

pytestmark = pytest.mark.full


def callback_of(world, task):
    return read_task(world, task)["status"].get("callback") or {}


async def wait_state(world, task, state, *, seconds=30):
    """Waits until the task is settled with its callback in `state`; its object."""

    async def look():
        obj = await asyncio.to_thread(read_task, world, task)
        status = obj.get("status") or {}
        settled = status.get("work") == "Settled"
        return obj if settled and status["callback"]["state"] == state else None

    return await wait_for(look, seconds=seconds, what=f"{task} {state}")


async def run_task(client, url, **changes):
    """A task with a callback; its id and what GET tells of its end."""
    task = await client.create_surely(unique("cb"), callback_url=url, duration_seconds=3, **changes)
    return task, (await client.wait_terminal([task]))[task]


async def test_the_end_arrives_once_signed_and_readable_by_the_sdks(
    world, client, receiver, secret
):
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


async def test_a_failure_arrives_as_an_object(world, client, receiver):
    await client.simulate({"behaviour": "fail", "message": "No such image.", "count": 1})
    task, body = await run_task(client, receiver.locate("failed"))
    await wait_state(world, task, "Delivered")
    assert body["status"] == "failed"
    assert receiver.arrivals[0].json["error"] == {
        "code": "generation_failed",
        "message": body["error"],
    }


async def test_a_schedule_has_an_end_and_an_admin_can_begin_it_anew(world, client, receiver):
    url = receiver.plan("dead", *[answer(500)] * len(SCHEDULE))
    task, body = await run_task(client, url)
    obj = await wait_state(world, task, "Undelivered")
    assert len(receiver.arrivals) == len(SCHEDULE)
    conditions = {c["type"]: c for c in obj["status"]["conditions"]}
    assert conditions["CallbackDelivered"]["status"] == "False"
    name = obj["metadata"]["name"]
    world.patch("gatewaytask", name, {"redeliveries": 1})
    obj = await wait_state(world, task, "Delivered")
    check_one_event(receiver.of(task), task, body)
    assert len(receiver.arrivals) == len(SCHEDULE) + 1
    assert obj["status"]["callback"]["redeliveries"] == 1
    await wait_for(
        lambda: not read_task(world, task)["metadata"].get("finalizers"), what="closed again"
    )
    world.patch("gatewaytask", name, {"redeliveries": 2})
    await wait_for(lambda: len(receiver.arrivals) == len(SCHEDULE) + 2, what="a second one")
    with pytest.raises(Exception, match="may only be raised"):
        world.patch("gatewaytask", name, {"redeliveries": 1})


async def test_only_the_start_of_a_long_response_is_read(world, client, receiver):
    url = receiver.plan("flood", receiver.flood)
    task, _ = await run_task(client, url)
    await wait_state(world, task, "Delivered")
    assert receiver.written < 16 * 2**20, "socket buffers at most, of a gigabyte"
    trickling = receiver.plan("trickle", trickle)
    task, _ = await run_task(client, trickling)
    await wait_state(world, task, "Delivered")
    assert len(receiver.of(task)) == 1, "the status is the answer"


async def test_certificates_are_verified(world, client, receiver, tmp_path):
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    subject = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    files = ["-nodes", "-keyout", str(key), "-out", str(cert), "-days", "1"]
    subprocess.run([*command, *files, *subject], check=True, capture_output=True)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(cert, key)
    async with Receiver(ssl_context=context) as secure:
        task, _ = await run_task(client, secure.locate("tls"))
        obj = await wait_state(world, task, "Undelivered")
        assert obj["status"]["callback"]["lastAnswer"] == "the certificate is not valid"
        plain = receiver.locate("plain").replace("http:", "https:")
        task, _ = await run_task(client, plain)
        obj = await wait_state(world, task, "Undelivered")
        assert "lastStatus" not in obj["status"]["callback"]
        assert not secure.arrivals
        assert not receiver.arrivals


async def test_a_bad_address_is_refused_at_create_and_one_by_kubectl_is_never_called(world, client):
    refused = await client.create(callback_url="http://169.254.169.254/x")
    assert refused.status == 400
    assert list(refused.body["errors"]) == ["callback_url"]
    name = unique("task-meta")
    changes = {"callbackUrl": "http://169.254.169.254/x"}
    world.apply(describe_task(client, name, changes=changes), command="create")
    obj = await wait_state(world, name.replace("-", "_", 1), "Undelivered")
    assert obj["status"]["callback"]["lastAnswer"] == "the address is not allowed"


async def test_without_a_secret_it_waits_and_rotation_signs_twice(world, receiver):
    account = unique("acct")
    key, key_object = describe_key(world, account)
    world.apply(describe_account(account), key_object)
    async with world.client(key.plaintext, account) as client:
        await wait_known(client)
        task, _ = await run_task(client, receiver.locate("waits"))
        waiting = await wait_for(
            lambda: callback_of(world, task).get("lastAnswer"), what="word of what is missing"
        )
        assert waiting == f"GatewayAccount {account} has no spec.webhookSecretRef"
        events = world.run.kubectl(
            "get", "events", f"--field-selector=involvedObject.name={account}", "-o", "yaml"
        )
        assert "WebhookSecretMissing" in events
        assert not receiver.arrivals
        old, new = make_secret(b"o"), make_secret(b"n")
        for suffix, value in (("old", old), ("new", new)):
            world.secrets.add("x_" + value.removeprefix("whsec_"))
            make = ("create", "secret", "generic", f"{account}-{suffix}")
            world.run.kubectl(*make, f"--from-literal=secret={value}")
        current = {"name": f"{account}-old", "key": "secret"}
        world.patch("gatewayaccount", account, {"webhookSecretRef": current})
        await wait_state(world, task, "Delivered")
        receiver.arrivals[0].verify(old)
        next_one = {"name": f"{account}-new", "key": "secret"}
        previous = {**current, "expirationTime": "2999-01-01T00:00:00Z"}
        rotation = {"webhookSecretRef": next_one, "previousWebhookSecretRef": previous}
        world.patch("gatewayaccount", account, rotation)

        async def is_signed_twice():
            other, _ = await run_task(client, receiver.locate("rotated"))
            await wait_state(world, other, "Delivered")
            (arrival,) = receiver.of(other)
            both = len(arrival.headers["webhook-signature"].split(" ")) == 2
            return arrival if both else None

        arrival = await wait_for(is_signed_twice, what="both signatures")
        arrival.verify(old)
        arrival.verify(new)


def make_secret(letter):
    return "whsec_" + base64.b64encode(letter * 32).decode()
