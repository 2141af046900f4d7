"""A task's hold stands before its job may start: the counters charge what the record does."""

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from gateway_core.api.resource import Object
from gateway_core.billing.counters import Hold
from gateway_core.redis.link import CountersUnavailable
from gateway_operator.tasks.resync import HOLD_SECONDS
from tests.fakes.clock import in_virtual_time
from tests.fakes.upstream import FakeUpstream, Outcome
from tests.unit.operator.environment import TickingCounters
from tests.unit.operator.harness import QUOTE, Simulation

AT = datetime(2026, 11, 21, tzinfo=UTC)


class LoggingCounters(TickingCounters):
    """Counters that tell which tasks' holds were asked for, and how it went."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[str, bool]] = []

    async def hold(self, account: str, hold: Hold) -> bool:
        is_new = await super().hold(account, hold)
        self.asked.append((hold.task, is_new))
        return is_new


class FailingCounters(TickingCounters):
    """Counters that give no answer to the next settlements, done (`True`) or not."""

    def __init__(self, *failures: bool) -> None:
        super().__init__()
        self._failures = list(failures)

    async def settle(self, account: str, task: str, charged: int, at: datetime) -> bool:
        if not self._failures:
            return await super().settle(account, task, charged, at)
        if self._failures.pop(0):
            await super().settle(account, task, charged, at)
        raise CountersUnavailable("no answer in time")


def lose_at_intent(sim: Simulation) -> None:
    """Has the money lost, and rebuilt from the record, while an intent is on its way there."""
    write = sim.kube.replace_status

    async def lose_and_write(plural: str, obj: Object, status: Mapping[str, Any]) -> Object:
        sim.kube.replace_status = write  # type: ignore[method-assign]
        sim.counters.lose()
        await sim.open_books("demo")
        return await write(plural, obj, status)

    sim.kube.replace_status = lose_and_write  # type: ignore[method-assign]


@pytest.mark.parametrize("killed", [False, True])
@in_virtual_time
async def test_task_missed_by_rebuild_is_reserved_again(killed: bool) -> None:
    sim = await Simulation.start()
    lose_at_intent(sim)
    name = await sim.apply()
    await sim.wait(lambda: sim.status(name).get("phase") == "Submitting")
    assert await sim.balance() == (0, 0)
    if killed:
        await sim.restart()
    await sim.wait(lambda: sim.upstream.jobs)
    assert await sim.balance() == (0, QUOTE)
    assert (await sim.finish(name))["chargedMicros"] == QUOTE
    assert await sim.balance() == (QUOTE, 0)


@in_virtual_time
async def test_lost_reservation_is_restored_before_the_job() -> None:
    upstream = FakeUpstream()
    upstream.submissions.append(Outcome.BUSY)
    sim = await Simulation.start(upstream)
    names = [await sim.admit(), await sim.apply()]
    await sim.wait(lambda: all(sim.status(n).get("phase") == "Submitting" for n in names))
    await sim.kill()
    sim.counters.lose()
    await sim.boot_without_books()
    for name in names:
        await sim.finish(name)
    assert await sim.balance() == (2 * QUOTE, 0)


@in_virtual_time
async def test_admitted_task_is_checked_once_per_process() -> None:
    upstream = FakeUpstream(seconds=20)
    upstream.submissions.extend([Outcome.BUSY] * 3)
    sim = Simulation(upstream)
    sim.counters = counters = LoggingCounters()
    await sim.boot()
    name = await sim.admit()
    await sim.wait(lambda: sim.upstream.count("submit") == 2)
    assert counters.asked == [(name, True), (name, False)], "at the door, and as it was taken in"
    await sim.restart()
    await sim.wait(lambda: sim.status(name).get("phase") == "Running")
    assert counters.asked[2:] == [(name, False)], "the new process cannot know"
    await sim.restart()
    await sim.finish(name)
    assert len(counters.asked) == 3, "what runs was let through"
    assert await sim.balance() == (QUOTE, 0)


@in_virtual_time
async def test_admitted_task_continues_without_counters_and_is_reserved_later() -> None:
    sim = await Simulation.start(FakeUpstream(seconds=20))
    name = await sim.admit()
    # as a rebuild that its create came too late for
    await sim.counters.settle("demo", name, 0, AT)
    sim.counters.away = True
    await sim.wait(lambda: sim.upstream.jobs)
    await sim.pass_time(5)
    sim.counters.away = False
    assert await sim.balance() == (0, 0)
    await sim.finish(name)
    assert await sim.balance() == (QUOTE, 0)


@pytest.mark.parametrize("killed", [False, True])
@in_virtual_time
async def test_adopted_task_waits_for_counters_until_its_hold_is_sure(killed: bool) -> None:
    sim = await Simulation.start()
    lose_at_intent(sim)
    name = await sim.apply()
    await sim.wait(lambda: sim.status(name).get("phase") == "Submitting")
    sim.counters.away = True
    if killed:
        await sim.restart()
    await sim.pass_time(20)
    assert not sim.upstream.jobs
    sim.counters.away = False
    await asyncio.sleep(3)
    assert await sim.balance() in [(0, QUOTE), (QUOTE, 0)]
    assert (await sim.finish(name))["phase"] == "Completed"
    assert await sim.balance() == (QUOTE, 0)


def halt(sim: Simulation, call: str) -> tuple[asyncio.Event, asyncio.Event]:
    """Has the first who makes this call to the counters halted before it; (halted, go on)."""
    real = getattr(sim.counters, call)
    halted, going_on = asyncio.Event(), asyncio.Event()

    async def wait_and_call(*arguments: Any) -> Any:
        if not halted.is_set():
            halted.set()
            await going_on.wait()
        return await real(*arguments)

    setattr(sim.counters, call, wait_and_call)
    return halted, going_on


@pytest.mark.parametrize(("pause", "lost"), [(30, False), (30, True), (700, False)])
@in_virtual_time
async def test_late_reservation_is_not_charged_twice(pause: float, lost: bool) -> None:
    sim = Simulation()
    operator = await sim.boot()
    name = await sim.admit()
    halted, going_on = halt(sim, "hold")
    await asyncio.wait_for(halted.wait(), 60)
    operator.feed.deaf = True
    sim.boot_twin(0.01)
    await sim.finish(name)
    if lost:
        sim.counters.lose()
        await sim.open_books("demo")
    await sim.pass_time(pause)
    going_on.set()
    await sim.pass_time(5)
    assert await sim.balance() == (QUOTE, 0), "undone by who took it"
    await sim.pass_time(400)
    assert await sim.balance() == (QUOTE, 0)


@in_virtual_time
async def test_late_hold_whose_owner_is_killed_is_ended_without_a_charge() -> None:
    sim = Simulation()
    operator = await sim.boot()
    name = await sim.admit()
    halted, going_on = halt(sim, "hold")
    await asyncio.wait_for(halted.wait(), 60)
    operator.feed.deaf = True
    sim.boot_twin(0.01)
    await sim.finish(name)
    sim.counters.lose()
    await sim.open_books("demo")
    await sim.pass_time(100)
    going_on.set()
    await sim.pass_time(0.001)
    await operator.kill()
    assert await sim.balance() == (QUOTE, QUOTE)
    await sim.pass_time(200)
    assert await sim.balance() == (QUOTE, 0)


@in_virtual_time
async def test_late_adoption_takes_no_reservation() -> None:
    sim = Simulation()
    slow = sim.slow_store(0.0)
    operator = await sim.boot()
    slow.seconds = 100.0
    name = await sim.apply()
    await sim.pass_time(1)
    operator.feed.deaf = True
    slow.seconds = 0.0
    sim.boot_twin(0.01)
    await sim.finish(name)
    sim.counters.lose()
    await sim.open_books("demo")
    await sim.pass_time(110)
    assert await sim.balance() == (QUOTE, 0)


@pytest.mark.parametrize("others", [True, False])
@in_virtual_time
async def test_task_that_ends_during_rebuild_keeps_no_reservation(others: bool) -> None:
    sim = await Simulation.start(FakeUpstream(seconds=20))
    name = await sim.run()
    sim.counters.lose()
    if others:
        halted, going_on = halt(sim, "finish_rebuild")
        rebuild = asyncio.create_task(sim.open_books("demo"))
        await asyncio.wait_for(halted.wait(), 60)
    await sim.wait(lambda: sim.status(name).get("phase") == "Completed")
    if others:
        going_on.set()
        await rebuild
    await sim.pass_time(5)
    assert await sim.balance() == (QUOTE, 0), "before any sweep"


@pytest.mark.parametrize("is_done", [False, True])
@in_virtual_time
async def test_unanswered_settlement_is_repeated_once(is_done: bool) -> None:
    sim = Simulation()
    sim.counters = FailingCounters(is_done)
    await sim.boot()
    await sim.finish(await sim.admit())
    assert await sim.balance() == (QUOTE, 0)


@in_virtual_time
async def test_task_is_closed_despite_unanswered_settlement() -> None:
    sim = Simulation()
    sim.counters = FailingCounters(False, False)
    await sim.boot()
    await sim.finish(await sim.admit())
    assert await sim.balance() == (0, QUOTE)
    await sim.pass_time(HOLD_SECONDS + 70)
    assert await sim.balance() == (QUOTE, 0)
