"""Retention of days of usage and of bytes in the object store."""

import dataclasses
import weakref
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
import pytest

from gateway_core.api.ids import ACCOUNT_LABEL
from gateway_core.api.resource import Object
from gateway_core.api.task import GatewayTask
from gateway_core.api.usage import GatewayUsage
from gateway_core.billing.journal_store import JournalStore
from gateway_core.billing.ledger import read_ledger
from gateway_core.kube.client import Page
from gateway_core.kube.errors import KubernetesUnavailable
from gateway_operator.retention.objects import RetentionRules
from gateway_operator.retention.sweeps import Expiry
from gateway_operator.retention.usage import DayClosing
from tests.fakes.clock import in_virtual_time
from tests.fakes.kubernetes import FakeKubernetes, Fault
from tests.fakes.objects import FakeObjects

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
TASKS, USAGES = GatewayTask.plural, GatewayUsage.plural


def put_usage(kube: FakeKubernetes, day: str, micros: int, **status: Any) -> Object:
    obj = {
        "metadata": {"name": f"demo-{day}", "labels": {ACCOUNT_LABEL: "demo"}},
        "spec": {"accountName": "demo", "day": day},
        "status": {"requests": 1, "failed": 0, "chargedMicros": micros, **status},
    }
    return kube.put(USAGES, obj)


class Usage(dict[str, Any]):
    """An object that can be counted while it is held."""


class CountedRecords(FakeKubernetes):
    """Counts how many of the objects that it has listed are held at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.held = self.most_held = 0

    async def list_page(self, *given: Any, **named: Any) -> Page:
        page = await super().list_page(*given, **named)
        items: list[Object] = []
        for item in map(Usage, page.items):
            weakref.finalize(item, self._let_go)
            items.append(item)
        self.held += len(items)
        self.most_held = max(self.most_held, self.held)
        return dataclasses.replace(page, items=items)

    def _let_go(self) -> None:
        self.held -= 1


class RefusingRecords(FakeKubernetes):
    """Takes no status of one object."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._refused = name

    async def patch_status(self, plural: str, obj: Object, status: Mapping[str, Any]) -> Object:
        if obj["metadata"]["name"] == self._refused:
            raise KubernetesUnavailable("too large")
        return await super().patch_status(plural, obj, status)


class TestDaysOfUsage:
    @in_virtual_time
    async def test_past_days_move_into_the_sum(self) -> None:
        kube, store = FakeKubernetes(), FakeObjects()
        for day in range(1, 22):
            put_usage(kube, f"2026-11-{day:02}", day)
        before = (await read_ledger(kube, JournalStore(store), "demo")).charged
        assert await DayClosing(kube, store, RetentionRules(), lambda: NOW).sweep() == 12
        ledger = await read_ledger(kube, JournalStore(store), "demo")
        assert ledger.charged == before == sum(range(1, 22))
        assert set(ledger.by_day) == {f"2026-11-{day}" for day in range(13, 22)}
        assert len(store.contents) == 12
        [key] = [key for key in store.contents if key.startswith("usage/demo/2026-11-05.")]
        assert orjson.loads(store.contents[key])["status"]["chargedMicros"] == 5
        assert await DayClosing(kube, store, RetentionRules(), lambda: NOW).sweep() == 0

    @pytest.mark.parametrize("method", ["patch_status", "delete", "create"])
    @pytest.mark.parametrize("applied", [True, False])
    @pytest.mark.parametrize("number", [0, 1])
    @in_virtual_time
    async def test_kill_between_steps_moves_nothing_twice(
        self, method: str, applied: bool, number: int
    ) -> None:
        kube, store = FakeKubernetes(), FakeObjects()
        put_usage(kube, "2026-11-01", 5)
        put_usage(kube, "2026-11-02", 7)
        fault = Fault(KubernetesUnavailable("killed"), applied=applied)
        kube.order_faults(method, *[None] * number, fault)
        for _ in range(3):
            try:
                await DayClosing(kube, store, RetentionRules(), lambda: NOW).sweep()
            except KubernetesUnavailable:
                assert (await read_ledger(kube, JournalStore(store), "demo")).charged == 12
        assert (await read_ledger(kube, JournalStore(store), "demo")).charged == 12
        [obj] = kube.list_objects(USAGES)
        assert obj["metadata"]["name"] == "demo-before"
        assert obj["status"]["throughDay"] == "2026-11-02"
        assert len(store.contents) == 2

    @in_virtual_time
    async def test_memory_is_bounded_by_a_page_of_days(self) -> None:
        """The days of all accounts fall due at the same midnight."""
        kube = CountedRecords()
        for account in range(450):
            day = {"accountName": f"demo-{account}", "day": "2026-11-01"}
            metadata = {"name": f"demo-{account}-2026-11-01"}
            kube.put(USAGES, {"metadata": metadata, "spec": day, "status": {"chargedMicros": 1}})
        assert await DayClosing(kube, FakeObjects(), RetentionRules(), lambda: NOW).sweep() == 450
        assert kube.most_held <= 200

    @in_virtual_time
    async def test_refused_account_delays_no_other(self) -> None:
        kube = RefusingRecords("demo-0-before")
        for account, day in ((0, "2026-11-01"), (0, "2026-11-03"), (1, "2026-11-02")):
            spec = {"accountName": f"demo-{account}", "day": day}
            metadata = {"name": f"demo-{account}-{day}"}
            status = {"chargedMicros": 1}
            kube.put(USAGES, {"metadata": metadata, "spec": spec, "status": status})
        with pytest.raises(KubernetesUnavailable, match="too large"):
            await DayClosing(kube, FakeObjects(), RetentionRules(), lambda: NOW).sweep()
        left = {obj["metadata"]["name"]: obj for obj in kube.list_objects(USAGES)}
        assert left["demo-1-before"]["status"]["throughDay"] == "2026-11-02"
        assert "demo-1-2026-11-02" not in left
        assert {"demo-0-2026-11-01", "demo-0-2026-11-03"} <= set(left), "none goes out of turn"

    @in_virtual_time
    async def test_day_waits_for_unmarked_runs(self) -> None:
        kube, store = FakeKubernetes(), FakeObjects()
        task = kube.put(TASKS, {"metadata": {"name": "task-0"}, "status": {"phase": "Completed"}})
        pending = [{"name": "task-0", "uid": task["metadata"]["uid"]}]
        put_usage(kube, "2026-11-01", 5, pending=pending)
        closing = DayClosing(kube, store, RetentionRules(), lambda: NOW)
        assert await closing.sweep() == 0
        kube.remove(TASKS, "task-0")
        assert await closing.sweep() == 1


class TestBytesOfThePast:
    @in_virtual_time
    async def test_bytes_are_removed_after_31_days(self) -> None:
        store = FakeObjects()
        keys = ["tasks/demo/task-a.json", "media/uid/0", "inputs/demo/task-a-1.json"]
        for key in (*keys, "usage/demo/2026-11-01.u.json", "files/demo/a"):
            await store.put(key, b"x")
        entries = [entry async for entry in store.list_entries("")]
        written = entries[0].modified
        young = Expiry(store, RetentionRules(), lambda: written + timedelta(days=30))
        assert await young.sweep() == 0
        old = Expiry(store, RetentionRules(), lambda: written + timedelta(days=31, seconds=60))
        assert await old.sweep() == 3
        assert set(store.contents) == {"usage/demo/2026-11-01.u.json", "files/demo/a"}
        assert await old.sweep() == 0
