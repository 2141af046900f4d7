"""A new secret for an account's callbacks: whoever is told of one has the one that signs."""

import asyncio
from datetime import datetime
from typing import Any

import orjson
import pytest

from gateway_core.api.ids import ACCOUNT_LABEL, API_VERSION
from gateway_core.api.key import Secret
from gateway_core.callbacks.orders import OrderRefused, OrderSigner
from gateway_core.callbacks.rotation import ENTRY, derive_secret
from gateway_operator.callbacks.orders import WebhookOrders
from tests.fakes.kubernetes import FakeKubernetes
from tests.fakes.secrets import FakeSecrets

ID_KEY = b"k" * 32
NOW = datetime.fromisoformat("2026-11-21T10:00:00Z")


class SlowSecrets(FakeSecrets):
    """Each call lets others go first; `after_find` runs once, after the first read."""

    after_find: Any = None

    async def find(self, name: str) -> Secret | None:
        found = await super().find(name)
        await asyncio.sleep(0)
        if self.after_find is not None:
            step, self.after_find = self.after_find, None
            await step()
        return found

    async def write(self, secret: Secret) -> None:
        await asyncio.sleep(0)
        await super().write(secret)


class Stage:
    """The account `demo`, whose secret its administrator made, and replicas of the operator."""

    def __init__(self) -> None:
        self.kube = FakeKubernetes()
        self.secrets = SlowSecrets()
        self.secrets.put(Secret("custom", {ENTRY: b"old"}))
        spec = {"displayName": "Demo", "webhookSecretRef": {"name": "custom", "key": ENTRY}}
        self.kube.put("gatewayaccounts", {"metadata": {"name": "demo"}, "spec": spec})

    def start(self) -> WebhookOrders:
        made: Any = self.secrets
        unused: Any = None
        return WebhookOrders(self.kube, made, unused, ID_KEY, lambda: NOW)

    async def rotate(self, orders: WebhookOrders, nonce: str) -> str:
        """What the caller is told: its secret, or why not."""
        values = {"nonce": nonce, "by": "dana"}
        body = orjson.dumps({"action": "rotate", "account": "demo", "values": values})
        try:
            await orders.take(body, OrderSigner(ID_KEY).sign(body))
        except OrderRefused as refusal:
            return str(refusal.status)
        return derive_secret(ID_KEY, "demo", nonce)

    @property
    def signing(self) -> str:
        obj: Any = self.kube.find("gatewayaccounts", "demo")
        name = obj["spec"]["webhookSecretRef"]["name"]
        return self.secrets.stored[name].data[ENTRY].decode()


@pytest.fixture
def stage() -> Stage:
    return Stage()


async def test_concurrent_rotations_leave_one_secret_that_signs(stage: Stage) -> None:
    orders = stage.start()
    told = await asyncio.gather(*(stage.rotate(orders, nonce) for nonce in "abc"))
    assert sorted(told) == sorted([stage.signing, "409", "409"])
    assert not orders.turns.held


async def test_rotation_of_another_replica_is_not_overwritten(stage: Stage) -> None:
    first, second = stage.start(), stage.start()
    told = []

    async def rotate_meanwhile() -> None:
        told.append(await stage.rotate(second, "b"))

    stage.secrets.after_find = rotate_meanwhile
    refused = await stage.rotate(first, "a")
    assert refused == "409"
    assert told == [stage.signing]


async def test_rotation_of_another_replica_after_the_account_is_read_is_not_overwritten(
    stage: Stage,
) -> None:
    read, told = stage.kube.get, []

    async def read_then_rotate(plural: str, name: str) -> Any:
        stage.kube.get = read  # type: ignore[method-assign]
        obj = await read(plural, name)
        told.append(await stage.rotate(stage.start(), "b"))
        return obj

    stage.kube.get = read_then_rotate  # type: ignore[method-assign]
    assert await stage.rotate(stage.start(), "a") == "503"
    assert told == [stage.signing]


async def test_rotation_is_refused_where_references_change_meanwhile(stage: Stage) -> None:
    orders = stage.start()
    read = stage.kube.get

    async def read_then_change(plural: str, name: str) -> Any:
        obj = await read(plural, name)
        changed = {**obj["spec"], "webhookSecretRef": {"name": "other", "key": ENTRY}}
        stage.kube.put(plural, {**obj, "spec": changed})
        return obj

    stage.secrets.put(Secret("other", {ENTRY: b"of the administrator"}))
    stage.kube.get = read_then_change  # type: ignore[method-assign]
    assert await stage.rotate(orders, "a") == "409"
    assert stage.signing == "of the administrator"


async def test_repetition_is_told_the_same_secret_and_writes_nothing(stage: Stage) -> None:
    first = await stage.rotate(stage.start(), "a")
    writes = stage.secrets.writes
    assert await stage.rotate(stage.start(), "a") == first == stage.signing
    assert stage.secrets.writes == writes


async def test_secret_of_another_account_is_not_written(stage: Stage) -> None:
    stage.secrets.put(Secret("demo-webhook-a", {ENTRY: b"theirs"}, {ACCOUNT_LABEL: "guest"}))
    assert await stage.rotate(stage.start(), "a") == "409"
    assert stage.secrets.stored["demo-webhook-a"].data[ENTRY] == b"theirs"


async def test_secret_is_owned_by_the_account_beside_its_other_owners(stage: Stage) -> None:
    obj: Any = stage.kube.find("gatewayaccounts", "demo")
    other = {"apiVersion": "v1", "kind": "ConfigMap", "name": "tool", "uid": "1"}
    gone = {"apiVersion": "x/v1", "kind": "GatewayAccount", "name": "demo", "uid": "2"}
    labels = {ACCOUNT_LABEL: "demo", "tool": "x"}
    stage.secrets.put(Secret("demo-webhook-a", {}, labels, owners=(other, gone)))
    await stage.rotate(stage.start(), "a")
    secret = stage.secrets.stored["demo-webhook-a"]
    mine = {"kind": "GatewayAccount", "name": "demo", "uid": obj["metadata"]["uid"]}
    assert [other, {"apiVersion": API_VERSION, **mine}] == [*secret.owners]
    assert secret.labels == labels
