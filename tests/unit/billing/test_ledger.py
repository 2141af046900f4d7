"""Ledger entries, and figures that are the same after the counters are lost (I7).

Tasks and calls begin and end at random, aggregation and moved days lag behind at random. The
counters are told of each hold and charge as it happens; then they are emptied and rebuilt.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from gateway_core.api.guardrail import GatewayGuardrail
from gateway_core.api.ids import ACCOUNT_LABEL, FOLDED_LABEL
from gateway_core.api.key import GatewayKey
from gateway_core.api.limits import list_subjects
from gateway_core.api.task import GatewayTask
from gateway_core.api.times import format_time
from gateway_core.billing import spending
from gateway_core.billing.counters import Budget, BudgetState, Hold, Ledger, Spending
from gateway_core.billing.journal import JournalObject, name_object
from gateway_core.billing.journal_store import JournalStore, aggregate_calls, divide_objects
from gateway_core.billing.ledger import Entry, read_entry, read_ledger, rebuild_ledger
from gateway_core.billing.usage_store import AggregationDeferred, aggregate_runs
from gateway_operator.retention.objects import RetentionRules
from gateway_operator.retention.usage import DayClosing
from tests.fakes.clock import in_virtual_time
from tests.fakes.counters import FakeCounters
from tests.fakes.kubernetes import FakeKubernetes
from tests.fakes.objects import FakeObjects
from tests.shares import IS_WHOLE
from tests.unit.billing.journal_harness import LATER, fold_round, make_record, store_object


def make(status: dict[str, Any] | None = None, **request: Any) -> dict[str, Any]:
    obj: dict[str, Any] = {"spec": {"request": {"accountName": "demo", **request}}}
    return obj if status is None else {**obj, "status": status}


COMPLETED = {"phase": "Completed", "completionTime": "2026-11-21T23:59:59Z"}
FAILED = {"phase": "Failed", "completionTime": "2026-11-21T10:00:00Z"}


@pytest.mark.parametrize(
    ("obj", "entry"),
    [
        (make(), Entry()),
        (make(reservedMicros=500), Entry(held=500)),
        (make({}, reservedMicros=500), Entry(held=500)),
        (make({"phase": "Submitting", "reservedMicros": 300}), Entry(held=300)),
        (make({"phase": "Running", "reservedMicros": 300}, reservedMicros=500), Entry(held=300)),
        (make({"phase": "Running", "reservedMicros": 0}, reservedMicros=500), Entry(held=0)),
        (
            make({**COMPLETED, "chargedMicros": 250, "reservedMicros": 300}),
            Entry(charged=250, day="2026-11-21"),
        ),
        (make({**FAILED, "chargedMicros": 0}), Entry(day="2026-11-21")),
        (make({"phase": "Failed"}, reservedMicros=500), Entry()),
    ],
)
def test_entry_of_a_task_is_its_hold_or_its_charge(obj: dict[str, Any], entry: Entry) -> None:
    assert read_entry(obj) == entry


START = datetime(2026, 2, 26, 22, 40, tzinfo=UTC)
WINDOWS = ("1h", "1d", "7d", "daily", "weekly", "monthly", "lifetime")
KEYS = ("key-a", "key-b", None)
GUARDRAILS = ((), ("grd-x",), ("grd-x", "grd-y"))
SUBJECTS = ("key/key-a", "key/key-b", "guardrail/grd-x", "guardrail/grd-y")
TASKS = GatewayTask.plural


class Town:
    """One account's record and counters, kept side by side."""

    def __init__(self) -> None:
        self.kube, self.store = FakeKubernetes(), FakeObjects()
        self.now = START
        self.counters = FakeCounters(START.timestamp())
        self.open: list[str] = []
        self.ended: list[dict[str, Any]] = []
        self.sequences = {"p": 0, "q": 0}
        self.number = 0

    async def begin(self) -> None:
        token = await self.counters.begin_rebuild("demo")
        assert token is not None
        assert await self.counters.finish_rebuild("demo", token, Ledger(0))

    def pass_time(self, minutes: int) -> None:
        self.now += timedelta(minutes=minutes)
        self.counters.now = self.now.timestamp()

    async def take(self, key: str | None, guardrails: tuple[str, ...], micros: int) -> None:
        """A task is admitted."""
        self.number += 1
        name = f"task-{self.number}"
        request = {
            "accountName": "demo",
            "service": "s",
            "action": "a",
            "modelId": "m",
            "keyName": key,
            "guardrailNames": list(guardrails),
            "reservedMicros": micros,
        }
        metadata = {"name": name, "labels": {ACCOUNT_LABEL: "demo"}}
        self.kube.put(TASKS, {"metadata": metadata, "spec": {"request": request}})
        await self.counters.hold("demo", Hold(name, micros, list_subjects(request)))
        self.open.append(name)

    async def end(self, place: int, micros: int) -> None:
        """A task ends, is settled, and waits to be folded."""
        if not self.open:
            return
        task = await self.kube.get(TASKS, self.open.pop(place % len(self.open)))
        status = {"phase": "Completed", "work": "Settled", "chargedMicros": micros}
        status["completionTime"] = format_time(self.now)
        self.ended.append(self.kube.put(TASKS, {**task, "status": status}))
        await self.counters.settle("demo", task["metadata"]["name"], micros, self.now)

    async def call(self, process: str, key: str | None, guardrails: tuple[str, ...]) -> None:
        """A call is made, settled, and written into its process's journal."""
        self.number += 1
        parts = {"time": self.now, "key_name": key, "guardrail_names": guardrails}
        record = make_record(self.number, self.number * 11, **parts)
        await self.counters.hold("demo", Hold(record.call, 10_000, record.to_charge().subjects))
        await self.counters.settle("demo", record.call, record.micros, record.time)
        self.sequences[process] += 1
        await store_object(self.store, process, self.sequences[process], record)

    async def fold(self, *, mark: bool) -> None:
        """The oldest ended tasks are folded, marked or not yet, and gone or not."""
        days = {task["status"]["completionTime"][:10] for task in self.ended[:3]}
        for day in days:
            part = [t for t in self.ended[:3] if t["status"]["completionTime"][:10] == day]
            with suppress(AggregationDeferred):
                await aggregate_runs(self.kube, "demo", day, part, (), self.now)
                if not mark:
                    continue
                for task in part:
                    self.ended.remove(task)
                    newest = await self.kube.get(TASKS, task["metadata"]["name"])
                    labels = {"labels": {FOLDED_LABEL: "20260101T000000Z"}}
                    await self.kube.patch(TASKS, newest, {"metadata": labels})

    async def move_days(self) -> None:
        await DayClosing(self.kube, self.store, RetentionRules(), lambda: self.now).sweep()

    async def figures(self) -> tuple[Spending, list[BudgetState]]:
        budgets = [Budget(subject, 10**9, window) for subject in SUBJECTS for window in WINDOWS]  # type: ignore[arg-type]
        today = self.now.date().isoformat()
        return (
            await self.counters.read_spending("demo", today),
            await self.counters.read_budgets("demo", budgets),
        )


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["take", "take", "end", "end", "call", "fold", "mark", "journal", "move"]),
        st.sampled_from([0, 0, 1, 7, 40, 61, 700, 1500, 6000]),
        st.sampled_from(KEYS),
        st.sampled_from(GUARDRAILS),
        st.integers(0, 2000),
    ),
    max_size=30,
)


async def play(town: Town, steps: list[Any]) -> None:
    await town.begin()
    for what, minutes, key, guardrails, micros in steps:
        town.pass_time(minutes)
        match what:
            case "take":
                await town.take(key, guardrails, micros)
            case "end":
                await town.end(micros, micros)
            case "call":
                await town.call("pq"[micros % 2], key, guardrails)
            case "fold" | "mark":
                await town.fold(mark=what == "mark")
            case "journal":
                await fold_round(town.kube, town.store, most=1 + micros % 3, now=town.now)
            case "move":
                await town.move_days()


@settings(phases=[Phase.generate], max_examples=1500 if IS_WHOLE else 150)
@given(STEPS)
@in_virtual_time
async def test_figures_are_equal_before_and_after_a_loss(steps: list[Any]) -> None:
    town = Town()
    await play(town, steps)
    before = await town.figures()
    town.counters.lose()
    assert await rebuild_ledger(town.kube, JournalStore(town.store), town.counters, "demo")
    assert await town.figures() == before


@in_virtual_time
async def test_shared_entry_is_found_by_its_object() -> None:
    town = Town()
    await town.begin()
    for kind, name in ((GatewayKey, "key-a"), (GatewayKey, "key-b"), (GatewayGuardrail, "grd-x")):
        spec = {"accountName": "demo", "displayName": "x"}
        town.kube.put(kind.plural, {"metadata": {"name": name}, "spec": spec})
    spec = {"accountName": "other", "displayName": "x"}
    town.kube.put(GatewayKey.plural, {"metadata": {"name": "key-o"}, "spec": spec})
    was, spending.MOST_SUBJECTS = spending.MOST_SUBJECTS, 3
    try:
        for key in ("key-a", "key-b", "key-c"):
            await town.take(key, (), 50)
            await town.end(0, 30)
            await town.fold(mark=True)
    finally:
        spending.MOST_SUBJECTS = was
    ledger = await read_ledger(town.kube, JournalStore(town.store), "demo")
    totals = {subject: buckets.total for subject, buckets in ledger.spent.items()}
    assert totals == {"key/key-a": 30, "key/key-b": 60, "guardrail/grd-x": 0}


class BusyBacklog(JournalStore):
    """Something happens right after the journal was read, the first `times`."""

    def __init__(self, store: FakeObjects, happen: Callable[[], Awaitable[None]], times: int = 1):
        super().__init__(store)
        self._happen, self._left = happen, times

    async def read_all(self) -> list[JournalObject]:
        found = await super().read_all()
        if self._left:
            self._left -= 1
            await self._happen()
        return found


@pytest.mark.parametrize("removed", [False, True])
@pytest.mark.parametrize("first", ["2026-11-21", "2026-11-22"])
@in_virtual_time
async def test_partly_aggregated_object_of_two_days_counts_whole(first: str, removed: bool) -> None:
    kube, store = FakeKubernetes(), FakeObjects()
    # a journal of which all is folded and removed
    await store_object(store, "p", 1, make_record(1, 5))
    await fold_round(kube, store)
    halves = [make_record(2, 30), make_record(3, 700, time=LATER)]

    async def fold(*days: str) -> None:
        backlog = JournalStore(store)
        found = await backlog.read([("p", 2)])
        for part in divide_objects(found.objects):
            if part.day in days:
                await aggregate_calls(kube, backlog, part, lambda _: False, LATER)

    async def store_and_fold() -> None:
        if store.contents:
            await fold("2026-11-21", "2026-11-22")
            await store.delete(name_object("p", 2))
        else:
            await store_object(store, "p", 2, *halves)
            await fold(first)

    backlog = BusyBacklog(store, store_and_fold, 2 if removed else 1)
    ledger = await read_ledger(kube, backlog, "demo")
    assert (ledger.charged, ledger.journals) == (735, {"p": 2})
    assert ledger.by_day == {"2026-11-21": 35, "2026-11-22": 700}


@in_virtual_time
async def test_aggregated_and_removed_journal_is_read_once() -> None:
    kube, store, reads = FakeKubernetes(), FakeObjects(), list[int]()
    await store_object(store, "p", 1, make_record(1, 5))
    await fold_round(kube, store)

    async def count() -> None:
        reads.append(1)

    ledger = await read_ledger(kube, BusyBacklog(store, count, 9), "demo")
    assert (ledger.charged, ledger.journals, len(reads)) == (5, {"p": 1}, 1)
