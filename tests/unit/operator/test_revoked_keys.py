"""Revoked keys, and what is left of removed keys and guardrails, are bounded in number (I11)."""

from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
import pytest

from gateway_core.accounts.changes import Change, read_changes, read_ending
from gateway_core.accounts.remains import MOST_ROWS, archive_removed, list_removed, read_removed
from gateway_core.api.ids import REMAINS_FINALIZER, REPLAYS_ANNOTATION, REVOKED_AT_ANNOTATION
from gateway_core.kube.errors import RequestRejected, WriteConflict, WriteOutcomeUnknown
from gateway_core.kube.informer import unless_deleted
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
        self.sweep = RevokedKeys(
            self.kube,
            Deletions(self.kube, Failpoints()),
            FakeInformer(self.kube, "gatewaykeys", unless_deleted(project_key)),
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
        """Keys that are not being deleted: their finalizer keeps the others until archived."""
        found = (o["metadata"] for o in self.kube.list_objects("gatewaykeys"))
        return sorted(meta["name"] for meta in found if "deletionTimestamp" not in meta)


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
    removed = bench.kube.find("gatewaykeys", "key-c")
    assert removed is not None
    # its rows of the audit are archived before it goes
    assert removed["metadata"]["finalizers"] == [REMAINS_FINALIZER]
    end = read_ending(removed)
    assert (end.by, end.text) == ("gateway/", "deleted: 2 newer ones are revoked")


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
    obj = {"metadata": meta, "spec": spec}
    await archive_removed(store, "gatewayguardrails", "demo", obj, [])
    (content,) = store.contents.values()
    assert len(content) < 500
    assert orjson.loads(content)["metadata"]["name"] == "grd-a"


def make_removed(name: str, created: str) -> dict[str, Any]:
    meta = {"name": name, "creationTimestamp": created}
    return {"metadata": meta, "spec": {"displayName": name}}


async def read_rows(store: FakeObjects, name: str) -> list[Change]:
    found = await read_removed(store, "gatewaykeys", "demo", name)
    assert found is not None
    return read_changes(found)


async def test_next_object_of_a_name_keeps_the_rows_of_those_before() -> None:
    store = FakeObjects()
    rows: list[Change] = []
    for day in (1, 2, 3):
        created, deleted = f"2026-11-0{day}T10:00:00Z", f"2026-11-0{day}T11:00:00Z"
        own = [Change(created, "client/kubectl", "created"), Change(deleted, "client/", "deleted")]
        for _ in range(2):
            # a kill may have it archived twice
            await archive_removed(store, "gatewaykeys", "demo", make_removed("key-a", created), own)
        rows += own
    assert await read_rows(store, "key-a") == rows


async def test_end_of_an_interrupted_deletion_is_dropped() -> None:
    store = FakeObjects()
    obj, end = make_removed("key-a", "2026-11-01T10:00:00Z"), "2026-11-01T12:00:00Z"
    for at in ("2026-11-01T11:00:00Z", end):
        await archive_removed(
            store, "gatewaykeys", "demo", obj, [Change(at, "user/ann", "deleted")]
        )
    assert await read_rows(store, "key-a") == [Change(end, "user/ann", "deleted")]


async def test_rows_of_one_name_are_bounded() -> None:
    store = FakeObjects()
    rows = [Change(f"2026-11-01T10:{n // 60:02}:{n % 60:02}Z", "user/a", "x") for n in range(300)]
    obj = make_removed("key-a", "2026-11-01T10:00:00Z")
    await archive_removed(store, "gatewaykeys", "demo", obj, rows)
    assert await read_rows(store, "key-a") == rows[-MOST_ROWS:]


async def test_remains_removed_last_are_listed_over_all_kinds() -> None:
    store = FakeObjects()
    for n, plural in enumerate(("gatewaykeys", "gatewaygrants", "gatewayusers") * 2):
        await archive_removed(store, plural, "demo", make_removed(f"n-{n}", "2026"), [])
        await archive_removed(store, plural, "other", make_removed(f"n-{n}", "2026"), [])
        for key in store.contents:
            if key.endswith(f"/n-{n}.json"):
                store.modified[key] = NOW + timedelta(minutes=n)
    found = await list_removed(store, "demo", 4)
    names = sorted(obj["metadata"]["name"] for _, obj in found)
    assert names == ["n-2", "n-3", "n-4", "n-5"]


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
