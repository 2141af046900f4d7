"""The journal is folded as fast as it can be, and past whatever cannot be folded now."""

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway_core.api.resource import Object
from gateway_core.api.usage import GatewayUsage
from gateway_core.billing.journal import name_object, parse_name
from gateway_core.kube.errors import KubernetesUnavailable
from gateway_core.storage.objects import Entry
from gateway_operator.billing.journalreader import JournalCursor, JournalReader
from gateway_operator.metrics import Metrics
from tests.fakes.clock import in_virtual_time
from tests.fakes.kubernetes import FakeKubernetes
from tests.shares import IS_WHOLE
from tests.unit.billing.journal_harness import NOW, SlowObjects, make_record, store_object
from tests.unit.operator.environment import StepKills
from tests.unit.operator.steps import JOURNAL_STEPS

USAGES = GatewayUsage.plural


class SlowRecords(FakeKubernetes):
    """Writes take 10 ms; those of some accounts are refused."""

    def __init__(self) -> None:
        super().__init__()
        self.refused: set[str] = set()

    async def patch_status(self, plural: str, obj: Object, status: Mapping[str, Any]) -> Object:
        await asyncio.sleep(0.01)
        if obj["spec"].get("accountName") in self.refused:
            raise KubernetesUnavailable("too large")
        return await super().patch_status(plural, obj, status)


class Bench:
    """The journal's folder on a slow store and a slow record."""

    def __init__(
        self,
        most: int = 4,
        store: SlowObjects | None = None,
        kube: SlowRecords | None = None,
        failpoints: StepKills | None = None,
    ) -> None:
        self.failpoints = failpoints or StepKills()
        self.store, self.kube = store or SlowObjects(), kube or SlowRecords()
        self.metrics, self.now = Metrics(), NOW
        context: Any = SimpleNamespace(
            store=self.store,
            kube=self.kube,
            metrics=self.metrics,
            failpoints=self.failpoints,
            now=lambda: self.now,
        )
        self.reader = JournalReader(context, 0.5, most=most)
        self.calls = 0

    async def add(self, process: str, sequence: int, *accounts: str) -> None:
        records = []
        for account in accounts:
            self.calls += 1
            records.append(make_record(self.calls, account=account))
        await store_object(self.store, process, sequence, *records)

    def left(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = defaultdict(list)
        for key in sorted(self.store.contents):
            name = parse_name(key)
            if name is not None:
                found[name[0]].append(name[1])
        return dict(found)

    def charged(self) -> dict[str, int]:
        objects = self.kube.list_objects(USAGES)
        return {
            o["spec"]["accountName"]: (o.get("status") or {}).get("chargedMicros", 0) // 5
            for o in objects
        }

    def read(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(name, labels)

    async def run_for(self, seconds: float) -> None:
        running = asyncio.create_task(self.reader.run())
        await asyncio.wait({running}, timeout=seconds)
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


class PagedObjects(SlowObjects):
    """A listing takes 50 ms for each hundred objects."""

    async def list_entries(self, prefix: str, *, start_after: str | None = None) -> Any:
        entries: list[Entry] = [e async for e in super().list_entries(prefix)]
        await asyncio.sleep(0.05 * len(entries) / 100)
        for entry in entries:
            yield entry


@in_virtual_time
async def test_large_backlog_is_aggregated_without_pause() -> None:
    """1,500 objects in rounds of 10, listings as slow as those of ten times as many."""
    bench = Bench(10, PagedObjects())
    for n in range(1, 501):
        for process in "pqr":
            await bench.add(process, n, "demo")
    # 150 rounds of some 50 ms each, and one slow listing: with a pause after each it is minutes
    await bench.run_for(12)
    assert bench.left() == {}
    assert bench.charged() == {"demo": 1500}


@in_virtual_time
async def test_unwritable_day_delays_itself_alone() -> None:
    bench = Bench(most=4)
    bench.kube.refused = {"stuck"}
    for n in range(1, 31):
        await bench.add("p", n, "demo", *(["stuck"] if n % 3 == 2 else []))
    await bench.run_for(60)
    assert bench.charged()["demo"] == 30
    assert bench.left() == {"p": list(range(2, 31))}, "removal stays in order"
    assert bench.read("gateway_journal_objects") == 29
    for n in range(31, 35):
        await bench.add("p", n, "demo", "stuck")
    await bench.run_for(30)
    assert bench.charged()["demo"] == 34
    bench.kube.refused = set()
    await bench.run_for(120)
    assert bench.left() == {}
    assert bench.charged() == {"demo": 34, "stuck": 14}


@in_virtual_time
async def test_successor_of_stuck_reader_counts_nothing_twice() -> None:
    bench = Bench(most=4)
    bench.kube.refused = {"stuck"}
    for n in range(1, 21):
        await bench.add("p", n, "demo", "stuck")
    await bench.run_for(30)
    other = Bench(3, bench.store, bench.kube)
    bench.kube.refused = set()
    await asyncio.gather(other.run_for(60), bench.run_for(60))
    assert bench.charged() == {"demo": 20, "stuck": 20}
    assert bench.left() == {}


async def aggregate_killed(steps: Iterable[str]) -> StepKills:
    """Aggregate a journal with a new process after each kill; what was not killed at."""
    bench = Bench(most=4, failpoints=StepKills(steps))
    for n in range(1, 13):
        await bench.add("p", n, "demo", "other")
    while bench.left():
        bench.failpoints.is_dead = False
        bench = Bench(4, bench.store, bench.kube, bench.failpoints)
        await bench.run_for(60)
    assert bench.charged() == {"demo": 12, "other": 12}
    return bench.failpoints


@in_virtual_time
async def test_kill_at_each_step_aggregates_each_charge_once() -> None:
    failpoints = await aggregate_killed(JOURNAL_STEPS * 2)
    assert not +failpoints.left


@settings(max_examples=1000 if IS_WHOLE else 8, deadline=None)
@given(st.lists(st.sampled_from(JOURNAL_STEPS), max_size=12))
@in_virtual_time
async def test_kills_at_any_steps_aggregate_each_charge_once(steps: list[str]) -> None:
    await aggregate_killed(steps)


def test_journal_is_read_up_to_the_first_of_several_damaged_objects() -> None:
    cursor = JournalCursor()
    cursor.relist([1, 2, 3, 4])
    for sequence in (3, 2, 4):
        cursor.halt(sequence)
    assert [cursor.is_behind(sequence) for sequence in (1, 2, 3, 4)] == [False, True, True, True]


@in_virtual_time
async def test_damaged_object_stops_its_process_alone_until_it_is_moved_away() -> None:
    bench = Bench()
    for n in range(1, 8):
        await bench.add("p", n, "demo")
        await bench.add("q", n, "demo")
    bench.store.contents[name_object("p", 4)] = b"{}"
    await bench.run_for(60)
    assert bench.left() == {"p": [4, 5, 6, 7]}
    assert bench.charged() == {"demo": 10}
    assert bench.read("gateway_journals_damaged") == 1
    assert len(bench.store.reads) < 200, "it is not looked at all the time"
    await bench.store.put("journal-damaged/p/4.json", bench.store.contents[name_object("p", 4)])
    await bench.store.delete(name_object("p", 4))
    await bench.run_for(60)
    assert bench.left() == {}
    assert bench.charged() == {"demo": 13}
    assert bench.read("gateway_journals_damaged") == 0


@in_virtual_time
async def test_repaired_object_is_aggregated() -> None:
    bench = Bench()
    for n in range(1, 8):
        await bench.add("p", n, "demo")
    good = bench.store.contents[name_object("p", 4)]
    bench.store.contents[name_object("p", 4)] = b"{}"
    await bench.run_for(60)
    bench.store.contents[name_object("p", 4)] = good
    await bench.run_for(60)
    assert bench.charged() == {"demo": 7}
    assert bench.left() == {}


@in_virtual_time
async def test_success_is_noted_and_failure_is_not() -> None:
    bench = Bench()
    name = "gateway_sweep_last_success_timestamp_seconds"
    assert bench.read(name, sweep="journal") == NOW.timestamp(), "from the start on"
    bench.store.away = True
    bench.now = NOW.replace(hour=1, day=22)
    await bench.run_for(60)
    assert bench.read(name, sweep="journal") == NOW.timestamp()
    bench.store.away = False
    await bench.run_for(60)
    assert bench.read(name, sweep="journal") == bench.now.timestamp()
