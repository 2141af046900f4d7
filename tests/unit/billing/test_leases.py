"""Leases of rate and money: what they admit, and what they leave behind; in virtual time."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway_core.billing.call_groups import CallGroup
from gateway_core.billing.counters import Hold
from gateway_core.billing.journal import CallRecord
from gateway_core.billing.leases import (
    BUSY_CALLS,
    DENIED_SECONDS,
    LIFE_SECONDS,
    MOST_LEASES,
    MOST_RECENT,
    RENEW_SECONDS,
)
from gateway_core.billing.reservations import KEEP_SECONDS
from gateway_core.redis.link import CountersUnavailable
from tests.fakes.clock import in_virtual_time
from tests.shares import IS_WHOLE
from tests.unit.billing.lease_harness import LeaseBench, Limits, Process, SlowCounters, make_account

START = datetime(2026, 11, 21, 12, tzinfo=UTC).timestamp()
LONG = 1000.0


class LoopCounters(SlowCounters):
    """Counters whose clock is the loop's."""

    @property  # type: ignore[override]
    def now(self) -> float:
        return START + asyncio.get_running_loop().time()

    @now.setter
    def now(self, _value: float) -> None:
        pass


class VirtualBench(LeaseBench):
    """A bench in virtual time."""

    counters: LoopCounters

    def __init__(self, limits: Limits | None = None, seed: int = 1) -> None:
        super().__init__(LoopCounters(), limits or Limits(), seed)

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def wall(self) -> datetime:
        return datetime.fromtimestamp(self.counters.now, UTC)

    def check_holds(self) -> None:
        """Each group's hold covers its calls and what more may be admitted from it."""
        holds = self.counters._money["demo"].holds
        for process in self.processes:
            for group in process.live._groups:
                if group.is_open and not group.lock.locked():
                    needed = group.need.micros + group.spare
                    assert not needed or holds[group.name][0].micros >= needed

    async def end(self) -> None:
        assert not self.violations
        for process in self.processes:
            await process.stop()


async def run_calls(process: Process, calls: int, *, seconds: float, gap: float = 0.001) -> None:
    """Starts calls one after another, each of which lasts up to `seconds`."""
    for _ in range(calls):
        process.start_call(seconds=seconds)
        await asyncio.sleep(gap)


async def check_figures(bench: VirtualBench) -> None:
    """What was spent is charged, nothing is held, and the bench ends."""
    total = sum(bench.spent.values())
    assert await bench.read_figures() == (total, 0, bench.spent)
    await bench.end()


@in_virtual_time
async def test_seldom_calls_take_no_lease() -> None:
    bench = VirtualBench()
    process = bench.start()
    await run_calls(process, 50, seconds=0.02, gap=0.04)
    assert (bench.leased, bench.refused, len(process.live.leases)) == (0, 0, 0)
    await bench.end()


@in_virtual_time
async def test_busy_key_is_admitted_from_its_lease_which_returns_unused_slots() -> None:
    bench = VirtualBench()
    process = bench.start()
    await run_calls(process, 1000, seconds=0.005)
    assert 950 < bench.leased < 1000
    await asyncio.sleep(1)
    assert len(process.live.leases) == 0
    assert len(bench.counters._rates["demo", ""]) == bench.admitted == bench.ended == 1000
    await check_figures(bench)


@in_virtual_time
async def test_lease_ends_soon_after_the_last_call() -> None:
    bench = VirtualBench()
    await run_calls(bench.start(), 100, seconds=0.005)
    assert bench.leased
    await asyncio.sleep(0.006 + 0.045)
    charged, held, _ = await bench.read_figures()
    assert (charged, held) == (sum(bench.spent.values()), 0)
    await bench.end()


@in_virtual_time
async def test_long_calls_stay_held_without_a_lease() -> None:
    bench = VirtualBench()
    process = bench.start()
    await run_calls(process, 100, seconds=0)
    leased = bench.leased
    await run_calls(process, 40, seconds=LONG, gap=0)
    assert bench.leased > leased
    await asyncio.sleep(5)
    running = sum(micros for _, micros in process.running.values())
    charged, held, _ = await bench.read_figures()
    assert (charged, held) == (sum(bench.spent.values()), running)
    assert len(bench.counters._rates["demo", ""]) == bench.admitted
    await asyncio.sleep(LONG)
    await check_figures(bench)


@in_virtual_time
async def test_lease_that_is_not_renewed_admits_nothing() -> None:
    bench = VirtualBench()
    process = bench.start()
    await run_calls(process, 200, seconds=0)
    bench.counters.away = True
    began, leased = bench.now(), bench.leased
    while bench.now() < began + RENEW_SECONDS + LIFE_SECONDS:
        before = bench.leased
        await run_calls(process, 1, seconds=0)
        if bench.leased > before:
            last = bench.now()
    assert bench.leased > leased
    assert last - began <= LIFE_SECONDS
    bench.counters.away = False
    await asyncio.sleep(2)
    await check_figures(bench)


@in_virtual_time
async def test_hold_of_an_unanswered_request_is_released() -> None:
    bench = VirtualBench()
    process, lease = bench.start(), bench.counters.lease
    granted = 0

    async def lose_answer(call: Any) -> None:
        nonlocal granted
        if call.ended is None:
            granted += (await lease(call)).spare
        raise CountersUnavailable("no answer")

    bench.counters.lease = lose_answer  # type: ignore[method-assign,assignment]
    await run_calls(process, 20, seconds=0)
    assert granted > 0
    bench.counters.lease = lease  # type: ignore[method-assign]
    await asyncio.sleep(3)
    assert (bench.leased, len(process.live)) == (0, 0)
    await check_figures(bench)


@in_virtual_time
async def test_equal_account_keeps_the_lease_and_a_changed_one_does_not() -> None:
    bench = VirtualBench()
    process = bench.start()
    await run_calls(process, 200, seconds=0)
    leases, leased = set(process.live.leases._leases.values()), bench.leased
    again = VirtualBench()
    bench.account, bench.policies = again.account, again.policies
    await run_calls(process, 50, seconds=0)
    assert set(process.live.leases._leases.values()) == leases
    assert bench.leased == leased + 50
    bench.account = make_account(Limits(funds=sum(bench.spent.values())))
    await run_calls(process, 50, seconds=0)
    assert bench.leased == leased + 50
    assert bench.refused > 0
    await bench.end()


@in_virtual_time
async def test_refused_key_asks_for_no_lease_for_a_second() -> None:
    bench = VirtualBench(Limits(funds=40 * BUSY_CALLS * 1000))
    process = bench.start()
    asked = 0
    lease = bench.counters.lease

    async def count(call: Any) -> Any:
        nonlocal asked
        asked += call.slots > 0
        return await lease(call)

    bench.counters.lease = count  # type: ignore[method-assign]
    await run_calls(process, 900, seconds=0)
    assert bench.refused > 0
    assert asked <= 2 * (1 + 1 / DENIED_SECONDS) + 4
    await bench.end()


@in_virtual_time
async def test_slots_of_the_own_lease_are_used_before_a_refusal() -> None:
    bench = VirtualBench(Limits(account_calls=1500))
    process = bench.start()
    await run_calls(process, 1510, seconds=0, gap=0.0005)
    assert bench.leased > 0
    assert bench.admitted == 1500
    await bench.end()


@in_virtual_time
async def test_call_admitted_by_money_of_the_own_lease_is_counted_once() -> None:
    bench = VirtualBench()
    process, policy = bench.start(), bench.policies[0]
    await run_calls(process, 200, seconds=0)
    charged, held, _ = await bench.read_figures()
    account = replace(bench.account, paid_micros=charged + held)
    hold = Hold(f"call-{process.live.journal.process}-last", 1, policy.subjects)
    answer = await process.limiter.admit(account, hold, policy.budgets)
    assert answer.held
    assert len(bench.counters._rates["demo", ""]) == bench.admitted + 1
    await process.limiter.release("demo", hold.task)
    await bench.end()


@in_virtual_time
async def test_balance_is_exact_as_soon_as_it_is_read() -> None:
    bench = VirtualBench()
    process = bench.start()
    await run_calls(process, 200, seconds=0)
    await asyncio.sleep(0)
    spending = await process.limiter.read_spending("demo")
    assert (spending.charged, spending.held) == (sum(bench.spent.values()), 0)
    await bench.end()


@in_virtual_time
async def test_leases_and_payers_are_bounded() -> None:
    bench = VirtualBench()
    leases = bench.start().live.leases
    for number in range(MOST_RECENT + 10):
        leases._note_recent(f"key-{number}", 0.0, 1)
    assert len(leases._recent) <= MOST_RECENT
    for number in range(MOST_LEASES + 10):
        payer = Payer(f"acct-{number}", f"key-{number}")
        for _ in range(BUSY_CALLS):
            leases._note_call(payer, payer, 1)
    assert len(leases) == MOST_LEASES
    await bench.end()


class Payer:
    """An account and its one key."""

    requests_per_minute, unlimited, funds = 10**6, True, 0
    subjects, budgets = (), ()

    def __init__(self, name: str, key_name: str) -> None:
        self.name, self.key_name = name, key_name


STEPS = st.lists(
    st.sampled_from(["burst", "burst", "stream", "pause", "kill", "start", "lose", "away", "read"]),
    min_size=3,
    max_size=25,
)
LIMITS = st.builds(
    Limits,
    funds=st.sampled_from([10**9, 200_000, 40_000]),
    account_calls=st.sampled_from([10**6, 2000, 300]),
    key=st.sampled_from([None, 150_000, 30_000]),
    key_calls=st.sampled_from([None, 1500, 100]),
    guardrail=st.sampled_from([None, 250_000]),
)


@settings(max_examples=40 if IS_WHOLE else 10)
@given(
    limits=LIMITS,
    steps=STEPS,
    pauses=st.lists(st.sampled_from([0.0, 0.02, 0.1, 0.5, 10.0]), min_size=1, max_size=6),
    wait=st.sampled_from([0.0, 0.0, 0.002, 0.05]),
    seed=st.integers(0, 10_000),
)
@in_virtual_time
async def test_leases_exceed_no_limit_and_leave_the_sums_of_the_record(
    limits: Limits, steps: list[str], pauses: list[float], wait: float, seed: int
) -> None:
    bench = VirtualBench(limits, seed)
    bench.counters.pause, killed = wait, False
    bench.start()
    bench.start()
    for number, step in enumerate(steps):
        process = bench.choice.choice(bench.processes)
        if step == "burst":
            bench.counters.away = False
            await run_calls(process, 80, seconds=bench.choice.choice([0.0, 0.02, 2.0]))
        elif step == "stream":
            await run_calls(process, 5, seconds=30)
        elif step == "kill" and len(bench.processes) > 1:
            killed = True
            await bench.kill(process)
        elif step == "start" and len(bench.processes) < 4:
            bench.start()
        elif step == "lose":
            bench.note_loss()
            bench.counters.lose()
        elif step == "away":
            bench.counters.away = not bench.counters.away
        elif step == "read":
            await process.live.leases.flush("demo")
        await asyncio.sleep(pauses[number % len(pauses)])
    bench.counters.away, bench.counters.pause = False, 0.0
    await asyncio.sleep(60)
    for process in bench.processes:
        assert not process.running
        await process.live.close()
    if killed:
        # what killed processes have left behind is ended as the sweep does it
        await bench.counters.mark_stale("demo")
    await bench.processes[0].rebuild("demo")
    await asyncio.sleep(KEEP_SECONDS)
    recorded = await bench.read_record()
    charged, held, by_key = await bench.read_figures()
    assert (charged, held, sum(by_key.values())) == (recorded, 0, recorded)
    for process in bench.processes:
        assert len(process.live) == len(process.live.leases) == 0
    await bench.end()


@pytest.mark.parametrize("seed", range(2))
@in_virtual_time
async def test_sums_are_exact_without_a_rebuild(seed: int) -> None:
    bench = VirtualBench(Limits(funds=400_000, key=300_000, key_calls=3000), seed)
    processes = [bench.start() for _ in range(3)]
    for _ in range(6):
        for _ in range(12):
            await run_calls(bench.choice.choice(processes), 10, seconds=0.5)
            bench.check_holds()
        await asyncio.sleep(bench.choice.choice([0.0, 0.1, 1.0]))
    await asyncio.sleep(3)
    total = sum(bench.spent.values())
    assert bench.leased > 0
    assert await bench.read_record() == total
    await check_figures(bench)


@pytest.mark.parametrize("wait", [n / 10 for n in range(12)])
@in_virtual_time
async def test_counters_lost_during_a_lease_are_rebuilt_exactly(wait: float) -> None:
    bench = VirtualBench()
    bench.store.seconds = 0.1
    process, other = bench.start(), bench.start()
    calling = asyncio.create_task(run_calls(process, 600, seconds=0.3))
    await asyncio.sleep(0.1 + wait)
    assert bench.leased
    bench.counters.lose()
    await other.rebuild("demo")
    await calling
    await asyncio.sleep(KEEP_SECONDS + 5)
    total = sum(bench.spent.values())
    assert await bench.read_record() == total
    assert len(process.live) == 0
    await check_figures(bench)


def test_charges_of_a_group_are_divided_by_minute_and_journal_object() -> None:
    group = CallGroup("demo", "call-x", (), {f"call-{n}": 100 for n in range(6)}, spare=50)
    for number, minute in enumerate([58, 58, 58, 59, 59]):
        time = datetime(2026, 11, 21, 23, minute, number, tzinfo=UTC)
        group.add(CallRecord(f"call-{number}", "demo", time, "m", "llm/chat", 10 * number))
    group.note_sent(4, 2)
    group.note_sent(4, 2)
    group.note_sent(5, 2)
    charges = [(c.sequence, c.at.minute, c.micros) for c in group.list_charges()]
    assert charges == [(4, 58, 10), (5, 58, 20), (5, 59, 30), (0, 59, 40)]
    assert [group.count_missing(n) for n in (0, 3, 4, 5, 6)] == [100, 100, 90, 40, 40]
    assert (group.need.micros, group.spare, group.owed) == (200, 450, 100)
    group.note_stored(4)
    assert not group.is_stored
