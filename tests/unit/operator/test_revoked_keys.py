"""Revoked keys, and what is left of removed keys and guardrails, are bounded in number (I11)."""

from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
import pytest

from gateway_core.api.ids import REPLAYS_ANNOTATION, REVOKED_AT_ANNOTATION
from gateway_core.kube.errors import RequestRejected, WriteConflict, WriteOutcomeUnknown
from gateway_core.storage.objects import StoreUnavailable
from gateway_core.tasks.archive import archive_removed, read_removed
from gateway_operator.accounts.kinds import project_guardrail, project_key
from gateway_operator.context import Failpoints
from gateway_operator.retention.objects import Deletions, RetentionRules
from gateway_operator.retention.sweeps import Expiry, RemovedTrim, RevokedKeys
from tests.fakes.informer import FakeInformer
from tests.fakes.kubernetes import FakeKubernetes, Fault
from tests.fakes.objects import FakeObjects
from tests.unit.operator.declarations import Declarations

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


class Bench(Declarations):
    """The sweep on fakes, keeping two revoked keys of each account."""

    def __init__(self) -> None:
        self.kube = FakeKubernetes()
        self.store = FakeObjects()
        self.sweep = RevokedKeys(
            self.kube,
            self.store,
            Deletions(self.kube, Failpoints()),
            FakeInformer(self.kube, "gatewaykeys", project_key),
            FakeInformer(self.kube, "gatewayguardrails", project_guardrail),
            most=2,
        ).sweep

    def put_revoked(self, name: str, minute: int, **spec: Any) -> None:
        """Apply a key that was revoked at that minute."""
        self.put_key(name, revoked=True, **spec)
        obj = self.kube.find("gatewaykeys", name)
        assert obj is not None
        noted = {REVOKED_AT_ANNOTATION: f"2026-11-21T10:{minute:02}:00Z"}
        self.kube.put("gatewaykeys", {**obj, "metadata": {"name": name, "annotations": noted}})

    @property
    def names(self) -> list[str]:
        return sorted(o["metadata"]["name"] for o in self.kube.list_objects("gatewaykeys"))


async def test_keys_revoked_first_are_removed_first() -> None:
    bench = Bench()
    for name, minute in (("key-c", 1), ("key-b", 2), ("key-a", 3), ("key-d", 4)):
        bench.put_revoked(name, minute)
    bench.put_key("key-open")
    bench.put_revoked("key-other", 1, accountName="guest")
    declared = {"secretName": "s", "tokens": None}
    for n in range(3):
        bench.put_revoked(f"key-declared-{n}", 0, **declared)
    assert await bench.sweep() == 2
    assert [n for n in bench.names if "declared" not in n] == [
        "key-a",
        "key-d",
        "key-open",
        "key-other",
    ]
    assert len(bench.names) == 7
    assert await bench.sweep() == 0
    assert await read_removed(bench.store, "gatewaykeys", "demo", "key-c") is not None
    assert await read_removed(bench.store, "gatewaykeys", "demo", "key-a") is None


async def test_removed_key_leaves_its_place_in_guardrails() -> None:
    bench = Bench()
    for n in range(4):
        bench.put_revoked(f"key-{n}", n)
    bench.put_key("key-open")
    for account, name in (("demo", "grd-own"), ("guest", "grd-other")):
        bench.put_guardrail(name, "key-open", "key-0", "key-3", "key-1", accountName=account)
    assert await bench.sweep() == 2
    own = bench.kube.find("gatewayguardrails", "grd-own")
    other = bench.kube.find("gatewayguardrails", "grd-other")
    assert own is not None
    assert other is not None
    assert own["spec"]["keyNames"] == ["key-open", "key-3"]
    assert len(other["spec"]["keyNames"]) == 4


@pytest.mark.parametrize("error", [RequestRejected, WriteConflict, WriteOutcomeUnknown])
async def test_key_stays_while_guardrail_cannot_be_changed(
    error: type[Exception],
) -> None:
    bench = Bench()
    for account in ("demo", "guest"):
        for n in range(4):
            bench.put_revoked(f"key-{account}-{n}", n, accountName=account)
    bench.put_guardrail("grd-a", "key-demo-0")
    bench.kube.order_faults("patch", Fault(error("no")))
    assert await bench.sweep() == 3
    assert bench.names == [
        "key-demo-0",
        *(f"key-{a}-{n}" for a in ("demo", "guest") for n in (2, 3)),
    ]
    assert await bench.sweep() == 1
    guardrail = bench.kube.find("gatewayguardrails", "grd-a")
    assert guardrail is not None
    assert guardrail["spec"]["keyNames"] == []


async def test_refused_account_delays_no_other() -> None:
    bench = Bench()
    for account in ("demo", "guest"):
        for n in range(3):
            bench.put_revoked(f"key-{account}-{n}", n, accountName=account)
    bench.kube.order_faults("delete", Fault(RequestRejected("a webhook refuses")))
    assert await bench.sweep() == 1
    assert await bench.sweep() == 1


async def test_key_stays_while_its_archive_cannot_be_written() -> None:
    bench = Bench()
    for n in range(3):
        bench.put_revoked(f"key-{n}", n)
    bench.store.away = True
    with pytest.raises(StoreUnavailable):
        await bench.sweep()
    assert len(bench.names) == 3
    bench.store.away = False
    assert await bench.sweep() == 1


async def test_interrupted_sweep_is_continued() -> None:
    bench = Bench()
    for n in range(4):
        bench.put_revoked(f"key-{n}", n)
    lost = Fault(WriteOutcomeUnknown("lost"), applied=True)
    bench.kube.order_faults("delete", lost, Fault(WriteConflict("changed")))
    assert await bench.sweep() == 0
    assert await bench.sweep() == 1
    assert bench.names == ["key-2", "key-3"]


async def test_archived_key_is_small() -> None:
    store = FakeObjects()
    spec = {"accountName": "demo", "displayName": "x" * 100, "allowedModels": ["x" * 253] * 60}
    spec["keyNames"] = [f"key-{n:026}" for n in range(1000)]
    meta = {
        "name": "grd-a",
        "creationTimestamp": "2026-11-21T10:00:00Z",
        "annotations": {REPLAYS_ANNOTATION: "x" * 6000},
        "managedFields": [{"x": "y" * 10_000}],
    }
    await archive_removed(store, "gatewayguardrails", "demo", {"metadata": meta, "spec": spec})
    (content,) = store.contents.values()
    assert len(content) < 500
    assert orjson.loads(content)["metadata"]["name"] == "grd-a"


async def test_newest_archived_keys_of_account_are_kept() -> None:
    store = FakeObjects()
    for account in ("a", "a-b", "b"):
        for n in range(6 if account != "b" else 2):
            for folder in ("keys", "guardrails"):
                key = f"{folder}/{account}/n-{n}.json"
                await store.put(key, b"{}")
                # the order of names is not that of time
                store.modified[key] = NOW - timedelta(hours=(n * 5) % 7)
    assert await RemovedTrim(store, most=4).sweep() == 8
    left = set(store.contents)
    newest = sorted(range(6), key=lambda n: (n * 5) % 7)[:4]
    for account in ("a", "a-b"):
        kept = {key for key in left if key.startswith(f"keys/{account}/")}
        assert kept == {f"keys/{account}/n-{n}.json" for n in newest}
    assert sum(key.startswith("guardrails/b/") for key in left) == 2
    assert await RemovedTrim(store, most=4).sweep() == 0


async def test_archived_keys_expire() -> None:
    store = FakeObjects()
    for folder in ("keys", "guardrails"):
        for days in (30, 32):
            key = f"{folder}/demo/{days}.json"
            await store.put(key, b"{}")
            store.modified[key] = NOW - timedelta(days=days)
    assert await Expiry(store, RetentionRules(), lambda: NOW).sweep() == 2
    assert sorted(store.contents) == ["guardrails/demo/30.json", "keys/demo/30.json"]
