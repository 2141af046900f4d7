"""Callbacks as receivers see them, over real processes and sockets (contract §11)."""

import base64
import ssl
import subprocess

import pytest

from tests.callbacks.conftest import SCHEDULE
from tests.callbacks.tasks import callback_of, run_task, wait_state
from tests.servers.receivers import Receiver, answer, check_one_event
from tests.servers.tenants import describe_account, describe_key, unique, wait_known
from tests.servers.world import read_task, wait_for

pytestmark = pytest.mark.full


async def test_schedule_ends_and_an_admin_can_begin_it_anew(world, client, receiver):
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


async def test_callback_waits_for_a_secret_and_rotation_signs_twice(world, receiver):
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
