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
from tests.unit.operator.harness import QUOTE, Stage

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


def lose_at_intent(stage: Stage) -> None:
    """Has the money lost, and rebuilt from the record, while an intent is on its way there."""
    write = stage.kube.replace_status

    async def lose_and_write(plural: str, obj: Object, status: Mapping[str, Any]) -> Object:
        stage.kube.replace_status = write  # type: ignore[method-assign]
        stage.counters.lose()
        await stage.open_books("demo")
        return await write(plural, obj, status)

    stage.kube.replace_status = lose_and_write  # type: ignore[method-assign]


@in_virtual_time
async def test_an_adopted_task_that_a_rebuild_has_missed_is_held_again() -> None:
    stage = Stage()
    await stage.boot()
    lose_at_intent(stage)
    name = await stage.apply()
    await stage.wait(lambda: stage.upstream.jobs)
    assert await stage.balance() == (0, QUOTE)
    assert (await stage.finish(name))["chargedMicros"] == QUOTE
    assert await stage.balance() == (QUOTE, 0)


@in_virtual_time
async def test_so_is_one_whose_operator_was_killed_before_it_heard_of_its_intent() -> None:
    stage = Stage()
    await stage.boot()
    lose_at_intent(stage)
    name = await stage.apply()
    await stage.wait(lambda: stage.status(name).get("phase") == "Submitting", step=0.001)
    assert await stage.balance() == (0, 0)
    await stage.restart()
    assert (await stage.finish(name))["chargedMicros"] == QUOTE
    assert await stage.balance() == (QUOTE, 0)


@in_virtual_time
async def test_money_that_was_lost_while_no_operator_ran_is_there_before_the_job() -> None:
    upstream = FakeUpstream()
    upstream.submissions.append(Outcome.BUSY)
    stage = Stage(upstream)
    await stage.boot()
    names = [await stage.admit(), await stage.apply()]
    await stage.wait(lambda: all(stage.status(n).get("phase") == "Submitting" for n in names))
    await stage.kill()
    stage.counters.lose()
    await stage.boot_without_books()
    for name in names:
        await stage.finish(name)
    assert await stage.balance() == (2 * QUOTE, 0)


@in_virtual_time
async def test_an_admitted_task_is_asked_for_once_in_a_life() -> None:
    upstream = FakeUpstream(seconds=20)
    upstream.submissions.extend([Outcome.BUSY] * 3)
    stage = Stage(upstream)
    stage.counters = counters = LoggingCounters()
    await stage.boot()
    name = await stage.admit()
    await stage.wait(lambda: stage.upstream.count("submit") == 2)
    assert counters.asked == [(name, True), (name, False)], "at the door, and as it was taken in"
    await stage.restart()
    await stage.wait(lambda: stage.status(name).get("phase") == "Running")
    assert counters.asked[2:] == [(name, False)], "the new process cannot know"
    await stage.restart()
    await stage.finish(name)
    assert len(counters.asked) == 3, "what runs was let through"
    assert await stage.balance() == (QUOTE, 0)


@in_virtual_time
async def test_an_admitted_task_goes_on_without_counters_and_is_made_up_for() -> None:
    stage = Stage(FakeUpstream(seconds=20))
    await stage.boot()
    name = await stage.admit()
    # as a rebuild that its create came too late for
    await stage.counters.settle("demo", name, 0, AT)
    stage.counters.away = True
    await stage.wait(lambda: stage.upstream.jobs)
    await stage.pass_time(5)
    stage.counters.away = False
    assert await stage.balance() == (0, 0)
    await stage.finish(name)
    assert await stage.balance() == (QUOTE, 0)


@pytest.mark.parametrize("killed", [False, True])
def test_an_adopted_task_waits_for_counters_until_its_hold_is_sure(killed: bool) -> None:
    @in_virtual_time
    async def run() -> None:
        stage = Stage()
        await stage.boot()
        lose_at_intent(stage)
        name = await stage.apply()
        await stage.wait(lambda: stage.status(name).get("phase") == "Submitting", step=0.001)
        stage.counters.away = True
        if killed:
            await stage.restart()
        await stage.pass_time(20)
        assert not stage.upstream.jobs
        stage.counters.away = False
        await asyncio.sleep(3)
        assert await stage.balance() in [(0, QUOTE), (QUOTE, 0)]
        assert (await stage.finish(name))["phase"] == "Completed"
        assert await stage.balance() == (QUOTE, 0)

    run()


def halt(stage: Stage, call: str) -> tuple[asyncio.Event, asyncio.Event]:
    """Has the first who makes this call to the counters halted before it; (halted, go on)."""
    real = getattr(stage.counters, call)
    halted, going_on = asyncio.Event(), asyncio.Event()

    async def wait_and_call(*arguments: Any) -> Any:
        if not halted.is_set():
            halted.set()
            await going_on.wait()
        return await real(*arguments)

    setattr(stage.counters, call, wait_and_call)
    return halted, going_on


@pytest.mark.parametrize(("pause", "lost"), [(30, False), (30, True), (700, False)])
def test_a_hold_that_comes_late_is_not_charged_a_second_time(pause: float, lost: bool) -> None:
    @in_virtual_time
    async def run() -> None:
        stage = Stage()
        operator = await stage.boot()
        name = await stage.admit()
        halted, going_on = halt(stage, "hold")
        await asyncio.wait_for(halted.wait(), 5)
        operator.feed.deaf = True
        stage.boot_twin(0.01)
        await stage.finish(name)
        if lost:
            stage.counters.lose()
            await stage.open_books("demo")
        await stage.pass_time(pause)
        going_on.set()
        await stage.pass_time(5)
        assert await stage.balance() == (QUOTE, 0), "undone by who took it"
        await stage.pass_time(400)
        assert await stage.balance() == (QUOTE, 0)

    run()


@in_virtual_time
async def test_a_late_hold_whose_owner_is_killed_is_ended_without_a_charge() -> None:
    stage = Stage()
    operator = await stage.boot()
    name = await stage.admit()
    halted, going_on = halt(stage, "hold")
    await asyncio.wait_for(halted.wait(), 5)
    operator.feed.deaf = True
    stage.boot_twin(0.01)
    await stage.finish(name)
    stage.counters.lose()
    await stage.open_books("demo")
    await stage.pass_time(100)
    going_on.set()
    await stage.pass_time(0.001)
    await operator.kill()
    assert await stage.balance() == (QUOTE, QUOTE)
    await stage.pass_time(200)
    assert await stage.balance() == (QUOTE, 0)


@in_virtual_time
async def test_a_late_adoption_takes_no_hold() -> None:
    stage = Stage()
    slow = stage.slow_store(0.0)
    operator = await stage.boot()
    slow.seconds = 100.0
    name = await stage.apply()
    await stage.pass_time(1)
    operator.feed.deaf = True
    slow.seconds = 0.0
    stage.boot_twin(0.01)
    await stage.finish(name)
    stage.counters.lose()
    await stage.open_books("demo")
    await stage.pass_time(110)
    assert await stage.balance() == (QUOTE, 0)


@pytest.mark.parametrize("others", [True, False])
def test_a_task_that_ends_while_the_money_is_rebuilt_keeps_no_hold(others: bool) -> None:
    @in_virtual_time
    async def run() -> None:
        stage = Stage(FakeUpstream(seconds=20))
        await stage.boot()
        name = await stage.admit()
        await stage.wait(lambda: stage.status(name).get("phase") == "Running")
        stage.counters.lose()
        if others:
            halted, going_on = halt(stage, "finish_rebuild")
            rebuild = asyncio.create_task(stage.open_books("demo"))
            await asyncio.wait_for(halted.wait(), 5)
        await stage.wait(lambda: stage.status(name).get("phase") == "Completed")
        if others:
            going_on.set()
            await rebuild
        await stage.pass_time(5)
        assert await stage.balance() == (QUOTE, 0), "before any sweep"

    run()


@pytest.mark.parametrize("is_done", [False, True])
@in_virtual_time
async def test_a_settlement_without_an_answer_is_asked_for_once_more(is_done: bool) -> None:
    stage = Stage()
    stage.counters = FailingCounters(is_done)
    await stage.boot()
    await stage.finish(await stage.admit())
    assert await stage.balance() == (QUOTE, 0)


@in_virtual_time
async def test_a_task_is_closed_though_its_settlement_gets_no_answer() -> None:
    stage = Stage()
    stage.counters = FailingCounters(False, False)
    await stage.boot()
    await stage.finish(await stage.admit())
    assert await stage.balance() == (0, QUOTE)
    await stage.pass_time(HOLD_SECONDS + 70)
    assert await stage.balance() == (QUOTE, 0)
