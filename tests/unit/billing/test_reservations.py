"""Holds and charges of calls without objects, with the counters lost at any time.

At the end the counters say what the record says, which is what the calls have cost: each once.
"""

import asyncio
import random
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway_core.accounts.guardrails import Rules, build_policy
from gateway_core.billing.counters import Hold
from gateway_core.billing.journal import JournalClosed
from gateway_core.billing.journal_store import JournalStore
from gateway_core.billing.ledger import read_ledger, rebuild_ledger
from gateway_core.billing.reservations import KEEP_SECONDS, CallReservations
from gateway_core.redis.link import CountersStale, CountersUnavailable
from tests.fakes.clock import in_virtual_time
from tests.fakes.counters import FakeCounters
from tests.fakes.kubernetes import FakeKubernetes
from tests.unit.billing.journal_harness import FaultyStore, fold_round, make_record
from tests.unit.billing.lease_harness import Limits, SlowCounters, make_account

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
TODAY = "2026-11-21"
SUBJECTS = ("key/key-a",)


ACCOUNT = make_account(Limits(funds=1_000_000))
POLICY = build_policy("key-a", Rules(limit=500_000, window="daily"), ())


class Bench:
    """One process's calls on counters that can be lost; `kill` leaves nothing of it."""

    def __init__(
        self, name: str = "p", *, store: FaultyStore | None = None, counters: Any = None
    ) -> None:
        self.kube, self.store = FakeKubernetes(), store or FaultyStore(seconds=0.05)
        self.counters = counters or FakeCounters(NOW.timestamp())
        self.leased = 0
        self.start(name)

    @property
    def running(self) -> int:
        """Calls under way, as the reservations know them."""
        return sum(len(group.running) for group in self.live._groups)

    def start(self, name: str) -> None:
        self.live = CallReservations(self.counters, self.rebuild, self.store, name)
        self.task = asyncio.create_task(self.live.run())

    async def kill(self) -> None:
        self.task.cancel()
        with suppress(asyncio.CancelledError):
            await self.task

    async def rebuild(self, account: str) -> bool:
        await asyncio.sleep(0.01)
        return await rebuild_ledger(self.kube, JournalStore(self.store), self.counters, account)

    async def begin(self, call: str, micros: int = 100) -> None:
        """Admission: the hold is taken, or the call is admitted from a lease."""
        hold = Hold(call, micros, SUBJECTS)
        if self.live.leases.take(ACCOUNT, POLICY, hold) is not None:
            self.leased += 1
            return
        while True:
            try:
                await self.counters.hold("demo", hold)
                break
            except CountersStale:
                await self.rebuild("demo")
            except CountersUnavailable:
                await asyncio.sleep(0.1)
        self.live.begin("demo", hold)

    async def end(self, call: str, micros: int) -> None:
        await self.live.end(make_record(0, micros, call=call, time=NOW, guardrail_names=()))

    async def figures(self) -> tuple[int, int, int]:
        """Charged, held, and what the key was charged; by the counters."""
        spending = await self.counters.read_spending("demo", TODAY)
        spent = self.counters._money["demo"].spent
        return spending.charged, spending.held, spent["key/key-a"].total if spent else 0


@in_virtual_time
async def test_call_is_charged_at_its_end_and_forgotten_once_stored() -> None:
    bench = Bench()
    await bench.begin("call-a")
    assert await bench.figures() == (0, 100, 0)
    await bench.end("call-a", 30)
    assert await bench.figures() == (30, 0, 30)
    await asyncio.sleep(1)
    assert (len(bench.live), await bench.figures()) == (0, (30, 0, 30))
    await bench.kill()


@in_virtual_time
async def test_holds_are_taken_again_after_a_rebuild() -> None:
    bench = Bench()
    await bench.begin("call-a")
    await bench.begin("call-b", 50)
    bench.counters.lose()
    await bench.rebuild("demo")
    await bench.live.retake("demo")
    assert await bench.figures() == (0, 150, 0)
    bench.counters.lose()
    await asyncio.sleep(KEEP_SECONDS + 1)
    assert await bench.figures() == (0, 150, 0)
    await bench.kill()


@in_virtual_time
async def test_hold_of_a_long_call_is_kept_alive() -> None:
    bench = Bench()
    await bench.begin("call-a")
    for _ in range(30):
        bench.counters.now += 10
        await asyncio.sleep(10)
        assert await bench.counters.list_holds("demo", 120) == []
    await bench.kill()


@in_virtual_time
async def test_holds_of_a_killed_process_grow_old() -> None:
    bench = Bench()
    await bench.begin("call-a")
    await bench.kill()
    bench.counters.now += 130
    await asyncio.sleep(130)
    assert [hold.task for hold in await bench.counters.list_holds("demo", 120)] == ["call-a"]


@in_virtual_time
async def test_call_ended_without_counters_is_charged_when_they_are_back() -> None:
    bench = Bench()
    await bench.begin("call-a")
    bench.counters.away = True
    await bench.end("call-a", 30)
    await asyncio.sleep(30)
    assert len(bench.store.list_records()) == 1, "the record waits for no counters"
    bench.counters.away = False
    await asyncio.sleep(2)
    assert await bench.figures() == (30, 0, 30)
    await bench.kill()


STEP_NAMES = "burst begin begin end end lose rebuild away fold wait flush"
STEPS = st.lists(st.sampled_from(STEP_NAMES.split()), max_size=40)


@settings(max_examples=60)
@given(
    steps=STEPS,
    pauses=st.lists(st.sampled_from([0.0, 0.004, 0.02, 0.06, 0.4, 1.0]), min_size=1, max_size=8),
    faults=st.lists(st.sampled_from(["", "", "refused", "unacknowledged"]), max_size=8),
    wait=st.sampled_from([0.0, 0.0, 0.002, 0.03, 0.3]),
    seed=st.integers(0, 99),
)
@in_virtual_time
async def test_counters_equal_the_record_after_any_loss(
    steps: list[str], pauses: list[float], faults: list[str], wait: float, seed: int
) -> None:
    store = FaultyStore(*faults, seconds=0.05)
    bench = Bench(store=store, counters=SlowCounters(NOW.timestamp()))
    bench.counters.pause = wait
    choice = random.Random(seed)
    live: list[str] = []
    charged = 0
    for number, step in enumerate(steps):
        call = f"call-{number}"
        if step in ("begin", "burst"):
            bench.counters.away = False
            for place in range(1 if step == "begin" else 12):
                await asyncio.sleep(0.001)
                await bench.begin(f"{call}-{place}")
                live.append(f"{call}-{place}")
        elif step == "end" and live:
            micros = choice.choice([0, 7, 30])
            charged += micros
            await bench.end(live.pop(choice.randrange(len(live))), micros)
        elif step == "lose":
            bench.counters.lose()
        elif step == "rebuild":
            with suppress(CountersUnavailable):
                await bench.rebuild("demo")
        elif step == "away":
            bench.counters.away = not bench.counters.away
        elif step == "fold":
            await fold_round(bench.kube, bench.store)
        elif step == "flush":
            await bench.live.leases.flush("demo")
        await asyncio.sleep(pauses[number % len(pauses)])
    bench.counters.away, bench.counters.pause = False, 0.0
    await bench.rebuild("demo")
    await asyncio.sleep(KEEP_SECONDS + 10)
    assert await bench.figures() == (charged, 100 * len(live), charged)
    assert bench.running == len(live)
    # and once more from the record alone
    ledger = await read_ledger(bench.kube, JournalStore(bench.store), "demo")
    assert ledger.charged == charged
    await bench.kill()


@pytest.mark.parametrize("lost", ["", "rebuilt", "retaken"])
@pytest.mark.parametrize("wait", [0.0, 0.05, 0.15, 0.25, 0.35, 0.65, 2.0])
@in_virtual_time
async def test_cancelled_end_charges_the_call_once(wait: float, lost: str) -> None:
    bench = Bench(counters=SlowCounters(NOW.timestamp()))
    await bench.begin("call-a")
    bench.counters.pause = 0.1
    retaking = asyncio.create_task(bench.live.retake("demo")) if lost == "retaken" else None
    await asyncio.sleep(0)
    ending = asyncio.create_task(bench.end("call-a", 30))
    await asyncio.sleep(wait)
    ending.cancel()
    await asyncio.gather(ending, return_exceptions=True)
    if lost:
        bench.counters.lose()
        await bench.rebuild("demo")
    await asyncio.sleep(KEEP_SECONDS + 5)
    assert await bench.figures() == (30, 0, 30)
    assert [record.micros for record in bench.store.list_records()] == [30]
    assert len(bench.live) == 0
    if retaking is not None:
        await asyncio.gather(retaking, return_exceptions=True)
    await bench.kill()


@in_virtual_time
async def test_call_that_ends_while_it_is_held_again_is_charged_once() -> None:
    bench = Bench(counters=SlowCounters(NOW.timestamp()))
    await bench.begin("call-a")
    bench.counters.lose()
    await bench.rebuild("demo")
    bench.counters.pause = 0.5
    retaking = asyncio.create_task(bench.live.retake("demo"))
    await asyncio.sleep(0.01)
    ending = asyncio.create_task(bench.end("call-a", 30))
    await asyncio.sleep(0.2)
    assert len(bench.store.list_records()) == 1
    # it has read the record; the hold is taken again after it
    bench.counters.lose()
    await bench.rebuild("demo")
    await asyncio.gather(retaking, ending)
    await asyncio.sleep(10)
    assert await bench.figures() == (30, 0, 30)
    await bench.kill()


@in_virtual_time
async def test_failed_end_leaves_the_record() -> None:
    bench = Bench()
    await bench.begin("call-a")
    with patch.object(bench.counters, "settle_calls", side_effect=RuntimeError("odd")):
        with pytest.raises(RuntimeError):
            await bench.end("call-a", 30)
        with pytest.raises(RuntimeError):
            await bench.end("call-a", 30)
    await asyncio.sleep(2)
    assert [record.micros for record in bench.store.list_records()] == [30]
    assert (await bench.figures(), len(bench.live)) == ((30, 0, 30), 0)
    await bench.kill()


@in_virtual_time
async def test_close_stores_waiting_calls_and_refuses_later_ones() -> None:
    bench = Bench(store=FaultyStore(*["refused"] * 3))
    await bench.begin("call-a")
    await bench.begin("call-b")
    ending = asyncio.create_task(bench.end("call-a", 30))
    await asyncio.sleep(0)
    await bench.live.close()
    await ending
    with pytest.raises(JournalClosed):
        await bench.end("call-b", 5)
    assert [record.micros for record in bench.store.list_records()] == [30]
    assert await bench.figures() == (30, 100, 30)
    await bench.kill()


@in_virtual_time
async def test_failed_rebuild_of_one_account_does_not_delay_others() -> None:
    bench = Bench()
    stuck = asyncio.Event()

    async def rebuild(account: str) -> bool:
        if account.startswith("stuck"):
            await stuck.wait()
        return await rebuild_ledger(bench.kube, JournalStore(bench.store), bench.counters, account)

    bench.rebuild = bench.live._rebuild = rebuild  # type: ignore[method-assign]
    await bench.begin("call-a")
    for number in range(10):
        bench.live.begin(f"stuck-{number}", Hold(f"call-{number}", 1))
    for _ in range(30):
        bench.counters.now += 10
        await asyncio.sleep(10)
        assert await bench.counters.list_holds("demo", 40) == []
    stuck.set()
    await asyncio.sleep(KEEP_SECONDS)
    assert [hold.task for hold in await bench.counters.list_holds("stuck-9", 0)] == ["call-9"]
    await bench.kill()
