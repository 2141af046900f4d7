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
from gateway_core.api.task import GatewayTask
from gateway_core.api.times import format_label_time
from gateway_core.api.usage import GatewayUsage
from gateway_core.billing.journal_reader import Backlog
from gateway_core.billing.ledger import read_ledger
from gateway_core.kube.records import (
    Object,
    Page,
    RecordOutcomeUnknown,
    RecordUnavailable,
    WatchExpired,
)
from gateway_operator.billing.dayclosing import Closing
from gateway_operator.failpoints import Failpoints
from gateway_operator.metrics import Metrics
from gateway_operator.retention.bytes import Expiry
from gateway_operator.retention.deletions import PER_SECOND, Deletions, Rules
from gateway_operator.retention.tasks import MOST_CANDIDATES, Removal
from tests.fakes.clock import in_virtual_time
from tests.fakes.objects import FakeObjects
from tests.fakes.records import FakeRecords, Fault

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
TASKS, USAGES = GatewayTask.plural, GatewayUsage.plural


def put_task(
    records: FakeRecords, number: int, age: float | None, *, work: str = "Settled", **meta: Any
) -> Object:
    """A finished task; `age` is the seconds since it was archived and folded, if it was."""
    labels = {ACCOUNT_LABEL: "demo"}
    if age is not None:
        labels[FOLDED_LABEL] = format_label_time(NOW - timedelta(seconds=age))
    status = {"phase": "Completed", **({"work": work} if work else {})}
    metadata = {"name": f"task-{number}", "labels": labels, **meta}
    obj: Object = {"metadata": metadata, "status": status}
    return records.put(TASKS, obj)


def build_removal(
    records: FakeRecords, most_candidates: int = MOST_CANDIDATES, **rules: Any
) -> Removal:
    return Removal(
        records,
        Rules(**rules),
        Metrics(),
        Deletions(records, Failpoints()),
        lambda: NOW,
        most_candidates=most_candidates,
    )


def names(records: FakeRecords) -> set[int]:
    return {int(obj["metadata"]["name"].split("-")[1]) for obj in records.list_objects(TASKS)}


class TestFinishedTasks:
    @in_virtual_time
    async def test_go_after_their_time(self) -> None:
        records = FakeRecords()
        for number, age in enumerate((3599, 3600, 99_999)):
            put_task(records, number, age)
        assert await build_removal(records).sweep() == 2
        assert names(records) == {0}

    @in_virtual_time
    async def test_beyond_the_number_kept_the_oldest_go_first(self) -> None:
        records = FakeRecords()
        for number in range(10):
            put_task(records, number, 1000 + number)
        assert await build_removal(records, most=4).sweep() == 6
        assert names(records) == {0, 1, 2, 3}

    @in_virtual_time
    async def test_a_sweep_goes_on_while_there_is_more_than_it_can_remember(self) -> None:
        records = FakeRecords()
        for number in range(50):
            put_task(records, number, 1000 + number)
        begun = asyncio.get_running_loop().time()
        assert await build_removal(records, most_candidates=8, most=4).sweep() == 46
        assert names(records) == {0, 1, 2, 3}
        assert asyncio.get_running_loop().time() - begun >= 45 / PER_SECOND

    @in_virtual_time
    async def test_a_sweep_ends_where_nothing_that_is_beyond_can_go(self) -> None:
        records = FakeRecords()
        for number in range(20):
            put_task(records, number, 599)
        put_task(records, 20, 1000)
        assert await build_removal(records, most_candidates=1, most=4).sweep() == 1
        assert names(records) == set(range(20))

    @in_virtual_time
    async def test_a_sweep_lists_anew_where_its_list_has_aged(self) -> None:
        records = FakeRecords()
        for number in range(1200):
            put_task(records, number, 99_999)
        aged = Fault(WatchExpired("compacted"))
        records.order_faults("list_page", None, aged)
        assert await build_removal(records).sweep() == 1200
        assert names(records) == set()

    @pytest.mark.parametrize("rules", [{"finished": 0}, {"most": 0}])
    def test_none_goes_within_ten_minutes_of_its_archiving(self, rules: dict[str, Any]) -> None:
        @in_virtual_time
        async def play() -> None:
            records = FakeRecords()
            put_task(records, 0, 599)
            put_task(records, 1, 600)
            assert await build_removal(records, **rules).sweep() == 1
            assert names(records) == {0}

        play()

    @in_virtual_time
    async def test_what_is_not_archived_and_folded_stays(self) -> None:
        records = FakeRecords()
        put_task(records, 0, None)
        put_task(records, 1, None, finalizers=[TASK_FINALIZER])
        put_task(records, 2, 99_999, work="")
        put_task(records, 3, 99_999, finalizers=[TASK_FINALIZER])
        assert await build_removal(records, most=0).sweep() == 0
        assert names(records) == {0, 1, 2, 3}

    @in_virtual_time
    async def test_one_that_changes_while_it_is_listed_stays(self) -> None:
        records = FakeRecords()
        put_task(records, 0, 99_999)
        removal = build_removal(records)
        page = [task async for found in removal._list() for task in found]
        changed = records.list_objects(TASKS)[0]
        await records.patch_status(TASKS, changed, {"work": None})
        assert await removal._remove(page) == 0
        assert names(records) == {0}

    @in_virtual_time
    async def test_twice_at_a_time_is_once(self) -> None:
        records = FakeRecords()
        for number in range(700):
            put_task(records, number, 99_999)
        both = build_removal(records), build_removal(records)
        await asyncio.gather(*(removal.sweep() for removal in both))
        assert names(records) == set()

    @in_virtual_time
    async def test_a_sweep_that_was_cut_short_is_gone_on_with(self) -> None:
        records = FakeRecords()
        for number in range(20):
            put_task(records, number, 99_999)
        away = RecordUnavailable("away")
        records.order_faults("delete", None, None, Fault(away))
        with pytest.raises(RecordUnavailable):
            await build_removal(records).sweep()
        lost = Fault(RecordOutcomeUnknown("no answer"), applied=True)
        records.order_faults("delete", lost)
        await build_removal(records).sweep()
        assert names(records) == set()

    @in_virtual_time
    async def test_a_label_that_is_no_time_keeps_the_task(self) -> None:
        records = FakeRecords()
        put_task(records, 0, None, labels={FOLDED_LABEL: "by-hand"})
        assert await build_removal(records).sweep() == 0


def put_usage(records: FakeRecords, day: str, micros: int, **status: Any) -> Object:
    obj = {
        "metadata": {"name": f"demo-{day}", "labels": {ACCOUNT_LABEL: "demo"}},
        "spec": {"accountName": "demo", "day": day},
        "status": {"requests": 1, "failed": 0, "chargedMicros": micros, **status},
    }
    return records.put(USAGES, obj)


class Usage(dict[str, Any]):
    """An object that can be counted while it is held."""


class CountedRecords(FakeRecords):
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


class RefusingRecords(FakeRecords):
    """Takes no status of one object."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._refused = name

    async def patch_status(self, plural: str, obj: Object, status: Mapping[str, Any]) -> Object:
        if obj["metadata"]["name"] == self._refused:
            raise RecordUnavailable("too large")
        return await super().patch_status(plural, obj, status)


class TestDaysOfUsage:
    @in_virtual_time
    async def test_those_past_are_moved_and_the_sum_stays(self) -> None:
        records, store = FakeRecords(), FakeObjects()
        for day in range(1, 22):
            put_usage(records, f"2026-11-{day:02}", day)
        before = (await read_ledger(records, Backlog(store), "demo")).charged
        assert await Closing(records, store, Rules(), lambda: NOW).sweep() == 12
        ledger = await read_ledger(records, Backlog(store), "demo")
        assert ledger.charged == before == sum(range(1, 22))
        assert set(ledger.by_day) == {f"2026-11-{day}" for day in range(13, 22)}
        assert len(store.contents) == 12
        [key] = [key for key in store.contents if key.startswith("usage/demo/2026-11-05.")]
        assert orjson.loads(store.contents[key])["status"]["chargedMicros"] == 5
        assert await Closing(records, store, Rules(), lambda: NOW).sweep() == 0

    @pytest.mark.parametrize("method", ["patch_status", "delete", "create"])
    @pytest.mark.parametrize("applied", [True, False])
    @pytest.mark.parametrize("number", [0, 1])
    def test_a_death_in_between_moves_nothing_twice(
        self, method: str, applied: bool, number: int
    ) -> None:
        @in_virtual_time
        async def play() -> None:
            records, store = FakeRecords(), FakeObjects()
            put_usage(records, "2026-11-01", 5)
            put_usage(records, "2026-11-02", 7)
            fault = Fault(RecordUnavailable("killed"), applied=applied)
            records.order_faults(method, *[None] * number, fault)
            for _ in range(3):
                try:
                    await Closing(records, store, Rules(), lambda: NOW).sweep()
                except RecordUnavailable:
                    assert (await read_ledger(records, Backlog(store), "demo")).charged == 12
            assert (await read_ledger(records, Backlog(store), "demo")).charged == 12
            [obj] = records.list_objects(USAGES)
            assert obj["metadata"]["name"] == "demo-before"
            assert obj["status"]["throughDay"] == "2026-11-02"
            assert len(store.contents) == 2

        play()

    @in_virtual_time
    async def test_no_more_than_a_page_of_days_is_held_in_memory(self) -> None:
        """The days of all accounts fall due at the same midnight."""
        records = CountedRecords()
        for account in range(450):
            day = {"accountName": f"demo-{account}", "day": "2026-11-01"}
            metadata = {"name": f"demo-{account}-2026-11-01"}
            records.put(USAGES, {"metadata": metadata, "spec": day, "status": {"chargedMicros": 1}})
        assert await Closing(records, FakeObjects(), Rules(), lambda: NOW).sweep() == 450
        assert records.most_held <= 200

    @in_virtual_time
    async def test_what_is_refused_for_one_account_holds_up_no_other(self) -> None:
        records = RefusingRecords("demo-0-before")
        for account, day in ((0, "2026-11-01"), (0, "2026-11-03"), (1, "2026-11-02")):
            spec = {"accountName": f"demo-{account}", "day": day}
            metadata = {"name": f"demo-{account}-{day}"}
            status = {"chargedMicros": 1}
            records.put(USAGES, {"metadata": metadata, "spec": spec, "status": status})
        with pytest.raises(RecordUnavailable, match="too large"):
            await Closing(records, FakeObjects(), Rules(), lambda: NOW).sweep()
        left = {obj["metadata"]["name"]: obj for obj in records.list_objects(USAGES)}
        assert left["demo-1-before"]["status"]["throughDay"] == "2026-11-02"
        assert "demo-1-2026-11-02" not in left
        assert {"demo-0-2026-11-01", "demo-0-2026-11-03"} <= set(left), "none goes out of turn"

    @in_virtual_time
    async def test_a_day_waits_for_runs_that_are_not_marked(self) -> None:
        records, store = FakeRecords(), FakeObjects()
        task = put_task(records, 0, None)
        pending = [{"name": "task-0", "uid": task["metadata"]["uid"]}]
        put_usage(records, "2026-11-01", 5, pending=pending)
        closing = Closing(records, store, Rules(), lambda: NOW)
        assert await closing.sweep() == 0
        records.remove(TASKS, "task-0")
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
        young = Expiry(store, Rules(), lambda: written + timedelta(days=30))
        assert await young.sweep() == 0
        old = Expiry(store, Rules(), lambda: written + timedelta(days=31, seconds=60))
        assert await old.sweep() == 3
        assert set(store.contents) == {"usage/demo/2026-11-01.u.json", "files/demo/a"}
        assert await old.sweep() == 0
