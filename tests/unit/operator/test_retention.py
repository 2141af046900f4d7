"""What goes and what stays: finished tasks, days of usage, bytes of the past."""

import asyncio
import dataclasses
import weakref
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
import pytest

from gateway_core.api.ids import ACCOUNT_LABEL, FOLDED_LABEL, TASK_FINALIZER
from gateway_core.api.resource import Object
from gateway_core.api.task import GatewayTask
from gateway_core.api.times import format_label_time
from gateway_core.api.usage import GatewayUsage
from gateway_core.billing.journal_store import JournalStore
from gateway_core.billing.ledger import read_ledger
from gateway_core.kube.client import Page
from gateway_core.kube.errors import KubernetesUnavailable, VersionExpired, WriteOutcomeUnknown
from gateway_operator.context import Failpoints
from gateway_operator.metrics import Metrics
from gateway_operator.retention.objects import (
    MOST_CANDIDATES,
    PER_SECOND,
    Deletions,
    RetentionRules,
    TaskRemoval,
)
from gateway_operator.retention.sweeps import Expiry
from gateway_operator.retention.usage import DayClosing
from tests.fakes.clock import in_virtual_time
from tests.fakes.kubernetes import FakeKubernetes, Fault
from tests.fakes.objects import FakeObjects

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
TASKS, USAGES = GatewayTask.plural, GatewayUsage.plural


def put_task(
    kube: FakeKubernetes, number: int, age: float | None, *, work: str = "Settled", **meta: Any
) -> Object:
    """A finished task; `age` is the seconds since it was archived and folded, if it was."""
    labels = {ACCOUNT_LABEL: "demo"}
    if age is not None:
        labels[FOLDED_LABEL] = format_label_time(NOW - timedelta(seconds=age))
    status = {"phase": "Completed", **({"work": work} if work else {})}
    metadata = {"name": f"task-{number}", "labels": labels, **meta}
    obj: Object = {"metadata": metadata, "status": status}
    return kube.put(TASKS, obj)


def build_removal(
    kube: FakeKubernetes, most_candidates: int = MOST_CANDIDATES, **rules: Any
) -> TaskRemoval:
    return TaskRemoval(
        kube,
        RetentionRules(**rules),
        Metrics(),
        Deletions(kube, Failpoints()),
        lambda: NOW,
        most_candidates=most_candidates,
    )


def names(kube: FakeKubernetes) -> set[int]:
    return {int(obj["metadata"]["name"].split("-")[1]) for obj in kube.list_objects(TASKS)}


class TestFinishedTasks:
    @in_virtual_time
    async def test_go_after_their_time(self) -> None:
        kube = FakeKubernetes()
        for number, age in enumerate((3599, 3600, 99_999)):
            put_task(kube, number, age)
        assert await build_removal(kube).sweep() == 2
        assert names(kube) == {0}

    @in_virtual_time
    async def test_beyond_the_number_kept_the_oldest_go_first(self) -> None:
        kube = FakeKubernetes()
        for number in range(10):
            put_task(kube, number, 1000 + number)
        assert await build_removal(kube, most=4).sweep() == 6
        assert names(kube) == {0, 1, 2, 3}

    @in_virtual_time
    async def test_a_sweep_goes_on_while_there_is_more_than_it_can_remember(self) -> None:
        kube = FakeKubernetes()
        for number in range(50):
            put_task(kube, number, 1000 + number)
        begun = asyncio.get_running_loop().time()
        assert await build_removal(kube, most_candidates=8, most=4).sweep() == 46
        assert names(kube) == {0, 1, 2, 3}
        assert asyncio.get_running_loop().time() - begun >= 45 / PER_SECOND

    @in_virtual_time
    async def test_a_sweep_ends_where_nothing_that_is_beyond_can_go(self) -> None:
        kube = FakeKubernetes()
        for number in range(20):
            put_task(kube, number, 599)
        put_task(kube, 20, 1000)
        assert await build_removal(kube, most_candidates=1, most=4).sweep() == 1
        assert names(kube) == set(range(20))

    @in_virtual_time
    async def test_a_sweep_lists_anew_where_its_list_has_aged(self) -> None:
        kube = FakeKubernetes()
        for number in range(1200):
            put_task(kube, number, 99_999)
        aged = Fault(VersionExpired("compacted"))
        kube.order_faults("list_page", None, aged)
        assert await build_removal(kube).sweep() == 1200
        assert names(kube) == set()

    @pytest.mark.parametrize("rules", [{"finished": 0}, {"most": 0}])
    def test_none_goes_within_ten_minutes_of_its_archiving(self, rules: dict[str, Any]) -> None:
        @in_virtual_time
        async def play() -> None:
            kube = FakeKubernetes()
            put_task(kube, 0, 599)
            put_task(kube, 1, 600)
            assert await build_removal(kube, **rules).sweep() == 1
            assert names(kube) == {0}

        play()

    @in_virtual_time
    async def test_what_is_not_archived_and_folded_stays(self) -> None:
        kube = FakeKubernetes()
        put_task(kube, 0, None)
        put_task(kube, 1, None, finalizers=[TASK_FINALIZER])
        put_task(kube, 2, 99_999, work="")
        put_task(kube, 3, 99_999, finalizers=[TASK_FINALIZER])
        assert await build_removal(kube, most=0).sweep() == 0
        assert names(kube) == {0, 1, 2, 3}

    @in_virtual_time
    async def test_one_that_changes_while_it_is_listed_stays(self) -> None:
        kube = FakeKubernetes()
        put_task(kube, 0, 99_999)
        removal = build_removal(kube)
        page = [task async for found in removal._list() for task in found]
        changed = kube.list_objects(TASKS)[0]
        await kube.patch_status(TASKS, changed, {"work": None})
        assert await removal._remove(page) == 0
        assert names(kube) == {0}

    @in_virtual_time
    async def test_twice_at_a_time_is_once(self) -> None:
        kube = FakeKubernetes()
        for number in range(700):
            put_task(kube, number, 99_999)
        both = build_removal(kube), build_removal(kube)
        await asyncio.gather(*(removal.sweep() for removal in both))
        assert names(kube) == set()

    @in_virtual_time
    async def test_a_sweep_that_was_cut_short_is_gone_on_with(self) -> None:
        kube = FakeKubernetes()
        for number in range(20):
            put_task(kube, number, 99_999)
        away = KubernetesUnavailable("away")
        kube.order_faults("delete", None, None, Fault(away))
        with pytest.raises(KubernetesUnavailable):
            await build_removal(kube).sweep()
        lost = Fault(WriteOutcomeUnknown("no answer"), applied=True)
        kube.order_faults("delete", lost)
        await build_removal(kube).sweep()
        assert names(kube) == set()

    @in_virtual_time
    async def test_a_label_that_is_no_time_keeps_the_task(self) -> None:
        kube = FakeKubernetes()
        put_task(kube, 0, None, labels={FOLDED_LABEL: "by-hand"})
        assert await build_removal(kube).sweep() == 0


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
    async def test_those_past_are_moved_and_the_sum_stays(self) -> None:
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
    def test_a_death_in_between_moves_nothing_twice(
        self, method: str, applied: bool, number: int
    ) -> None:
        @in_virtual_time
        async def play() -> None:
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

        play()

    @in_virtual_time
    async def test_no_more_than_a_page_of_days_is_held_in_memory(self) -> None:
        """The days of all accounts fall due at the same midnight."""
        kube = CountedRecords()
        for account in range(450):
            day = {"accountName": f"demo-{account}", "day": "2026-11-01"}
            metadata = {"name": f"demo-{account}-2026-11-01"}
            kube.put(USAGES, {"metadata": metadata, "spec": day, "status": {"chargedMicros": 1}})
        assert await DayClosing(kube, FakeObjects(), RetentionRules(), lambda: NOW).sweep() == 450
        assert kube.most_held <= 200

    @in_virtual_time
    async def test_what_is_refused_for_one_account_holds_up_no_other(self) -> None:
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
    async def test_a_day_waits_for_runs_that_are_not_marked(self) -> None:
        kube, store = FakeKubernetes(), FakeObjects()
        task = put_task(kube, 0, None)
        pending = [{"name": "task-0", "uid": task["metadata"]["uid"]}]
        put_usage(kube, "2026-11-01", 5, pending=pending)
        closing = DayClosing(kube, store, RetentionRules(), lambda: NOW)
        assert await closing.sweep() == 0
        kube.remove(TASKS, "task-0")
        assert await closing.sweep() == 1


class TestBytesOfThePast:
    @in_virtual_time
    async def test_go_when_no_result_can_be_asked_for_any_more(self) -> None:
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
