"""What all batches of a process share: places and bytes, of which nobody keeps the others'."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import count
from unittest.mock import patch

import pytest

from gateway_core.fair_semaphore import FairSemaphore
from gateway_operator.batches import bounds as slots_module
from gateway_operator.batches.bounds import SLICE_SECONDS, Share, Slots, Window
from tests.fakes.clock import in_virtual_time
from tests.unit.operator.batch_harness import BatchSimulation, Judge, make_lines


class Crowd:
    """Batches that hold a place, or wait for one, until they are told to go."""

    def __init__(self, turns: Slots) -> None:
        self.turns = turns
        self.inside: list[str] = []
        self.refused: list[str] = []
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.numbers = count()

    async def come(self, account: str, number: int, seconds: float | None = None) -> list[str]:
        for _ in range(number):
            name = f"{account}-{next(self.numbers)}"
            self.tasks[name] = asyncio.create_task(self._stay(account, name, seconds))
        return await self.look(account)

    async def look(self, account: str) -> list[str]:
        await asyncio.sleep(0.01)
        return [name for name in self.inside if name.startswith(account)]

    async def go(self, name: str) -> None:
        self.tasks.pop(name).cancel()
        await asyncio.sleep(0.01)

    async def _stay(self, account: str, name: str, seconds: float | None) -> None:
        async with self.turns.take(account, name, seconds) as has_place:
            if not has_place:
                self.refused.append(name)
                return
            self.inside.append(name)
            try:
                await asyncio.Event().wait()
            finally:
                self.inside.remove(name)


@asynccontextmanager
async def open_crowd(places: int) -> AsyncIterator[Crowd]:
    crowd = Crowd(Slots(places))
    yield crowd
    for task in crowd.tasks.values():
        task.cancel()
    await asyncio.gather(*crowd.tasks.values(), return_exceptions=True)
    assert crowd.inside == []


@in_virtual_time
async def test_account_with_many_batches_leaves_slots_for_others() -> None:
    async with open_crowd(4) as crowd:
        assert len(await crowd.come("many", 100)) == 2
        assert len(await crowd.come("few", 1)) == 1
        # and as one is free, it is of who has least
        await crowd.go(crowd.inside[0])
        assert len(await crowd.look("many")) == 2
        assert len(await crowd.come("new", 1)) == 1


@in_virtual_time
async def test_waiter_is_woken_by_change_and_by_timeout() -> None:
    async with open_crowd(2) as crowd:
        [first] = await crowd.come("a", 3, seconds=50)
        woken = next(name for name in crowd.tasks if name != first)
        crowd.turns.wake(woken)
        crowd.turns.wake(first)
        await asyncio.sleep(1)
        assert crowd.refused == [woken]
        await asyncio.sleep(50)
        assert len(crowd.refused) == 2
        assert crowd.inside == [first]
        await crowd.come("a", 2)
        crowd.turns.wake()
        await asyncio.sleep(1)
        assert len(crowd.refused) == 4
        # none of those who have gone has kept a place
        await crowd.go(first)
        assert len(await crowd.come("a", 1)) == 1


@in_virtual_time
async def test_longest_run_of_account_with_most_slots_yields() -> None:
    async with open_crowd(8) as crowd:
        await crowd.come("lone", 1)
        await asyncio.sleep(1)
        await crowd.come("many", 2)
        await asyncio.sleep(SLICE_SECONDS)
        assert [name for name in crowd.inside if crowd.turns.is_due(name)] == [], "nobody waits"
        await crowd.come("many", 3)
        assert len(crowd.inside) == 5, "half of what the other leaves"
        due = [name for name in crowd.inside if crowd.turns.is_due(name)]
        assert due == ["many-1"], "one for the one that waits, and told once"
        assert not any(map(crowd.turns.is_due, crowd.inside))
        await crowd.go("many-1")
        assert len(await crowd.look("many")) == 4
        assert not any(map(crowd.turns.is_due, crowd.inside))
        await crowd.come("many", 1)
        assert [name for name in crowd.inside if crowd.turns.is_due(name)] == ["many-2"]
        await crowd.come("many", 1)
        assert not any(map(crowd.turns.is_due, crowd.inside)), "the others have only come"
        await asyncio.sleep(SLICE_SECONDS)
        crowd.turns.note_leaving(crowd.inside[-1])
        assert not any(map(crowd.turns.is_due, crowd.inside)), "two wait, and two go"


def shrink(slots: Slots) -> None:
    """Leaves two slots, of which one account gets one."""
    slots._places = FairSemaphore(2)


@pytest.fixture
def one_place() -> Iterator[Callable[[BatchSimulation], Awaitable[None]]]:
    """Boots a sim whose account has one run at a time, for a few seconds where others wait."""

    async def boot(sim: BatchSimulation) -> None:
        operator = await sim.boot()
        shrink(operator.batches.slots.runs)

    with patch.object(slots_module, "SLICE_SECONDS", 4.0):
        yield boot


Boot = Callable[[BatchSimulation], Awaitable[None]]


@in_virtual_time
async def test_runs_take_turns_and_repeat_no_line(one_place: Boot) -> None:
    sim = BatchSimulation(Judge(latency=0.8))
    sim.put_provider(requestsPerSecond=20)
    await one_place(sim)
    names = [await sim.submit(make_lines(200, prefix=f"of {n}")) for n in range(3)]
    seen: set[tuple[str, ...]] = set()

    def look() -> bool:
        running = [str(sim.batch_status(n).get("phase")) for n in names]
        seen.add(tuple(running))
        assert len(sim.running.batches._runs) <= 1
        return all(map(sim.is_batch_closed, names))

    await sim.wait(look, seconds=300)
    assert ("InProgress",) * 3 in seen
    ends = [sim.batch_status(n)["counts"]["completed"] for n in names]
    assert ends == [200] * 3
    assert set(sim.judge.asked.values()) == {1}
    begun = [int(body["input"].split()[1]) for body in sim.judge.bodies]
    assert begun != sorted(begun), "none is run to its end before the next"
    assert sim.running.batches.runner.budget.held == 0


@in_virtual_time
async def test_batch_without_a_slot_says_so_until_it_has_one(one_place: Boot) -> None:
    sim = BatchSimulation(Judge(latency=0.5))
    sim.put_provider(requestsPerSecond=20)
    await one_place(sim)
    names = [await sim.submit(make_lines(200, prefix=f"of {n}")) for n in range(2)]
    reasons: dict[str, set[str]] = {name: set() for name in names}

    def look() -> bool:
        for name in names:
            for condition in sim.batch_status(name).get("conditions") or ():
                if condition["type"] == "Succeeded":
                    reasons[name].add(condition["reason"])
        return all(map(sim.is_batch_closed, names))

    await sim.wait(look, seconds=300)
    assert any("WaitingForSlot" in seen for seen in reasons.values())
    assert all({"Running", "Completed"} <= seen for seen in reasons.values())
    waits = [(name, text) for name, why, text in sim.kube.progress if why == "WaitingForSlot"]
    assert waits
    assert all("its turn" in text and "the batch waits until 20" in text for _, text in waits)


@in_virtual_time
async def test_waiting_batch_is_cancelled_at_once(one_place: Boot) -> None:
    sim = BatchSimulation(Judge(latency=100.0))
    await one_place(sim)
    names = [await sim.submit(make_lines(20, prefix=f"of {n}")) for n in range(2)]
    await sim.wait(lambda: len(sim.judge.bodies) > 1)
    await sim.wait(lambda: all("startTime" in sim.batch_status(n) for n in names))
    [running] = sim.running.batches._runs
    waiting = next(name for name in names if name != running)
    await sim.cancel_batch(waiting)
    status = await sim.finish_batch(waiting, seconds=10)
    assert status["counts"] == {"total": 20, "completed": 0, "failed": 20, "sent": 0}
    assert sim.batch_status(running)["phase"] == "InProgress"
    # nor does the end of the process wait for those who wait
    other = await sim.submit(make_lines(2, prefix="other"))
    await sim.wait(lambda: "startTime" in sim.batch_status(other))
    async with asyncio.timeout(20):
        await sim.operator.end()


def test_accounts_share_the_bytes_and_each_run_goes_on_with_one_line() -> None:
    budget, line = FairSemaphore(16), 1
    many = [Window(Share(budget, "many")) for _ in range(4)]
    for window in many:
        for place in range(20):
            if window.has_room():
                window.begin(place, line)
    assert budget.held == 8 + 3, "half of it, and a line of each that has none"
    few = Window(Share(budget, "few"))
    for place in range(20):
        if few.has_room():
            few.begin(place, line)
    assert len(few) == 3
    few.end(0, 1000)
    assert few.has_room()


@in_virtual_time
async def test_results_waiting_for_the_store_count_in_the_byte_budget() -> None:
    sim = BatchSimulation(Judge(latency=0.05))
    operator = await sim.boot()
    budget = operator.batches.runner.budget
    budget.resize(100_000)
    name = await sim.submit(make_lines(2000))
    await sim.wait(lambda: budget.held > 10_000)
    sim.store.away = True
    await sim.pass_time(60)
    waiting = budget.held
    assert waiting < 60_000
    assert 0 < len(sim.judge.bodies) < 1000
    sim.store.away = False
    await sim.finish_batch(name, seconds=300)
    assert budget.held == 0
    assert set(sim.judge.asked.values()) == {1}


@in_virtual_time
async def test_validation_and_finalizing_wait_for_slots_and_can_be_cancelled() -> None:
    sim = BatchSimulation()
    operator = await sim.boot()
    slots = operator.batches.slots
    shrink(slots.checks)
    shrink(slots.endings)
    async with slots.checks.take("demo", "batch-another"):
        cancelled, checked = [await sim.submit(make_lines(5)) for _ in range(2)]
        await sim.pass_time(30)
        for name in (cancelled, checked):
            status = sim.batch_status(name)
            assert "phase" not in status
            assert status["conditions"][0]["reason"] == "WaitingForSlot"
        await sim.cancel_batch(cancelled)
        assert (await sim.finish_batch(cancelled, seconds=5))["phase"] == "Cancelled"
        assert "phase" not in sim.batch_status(checked)
    async with slots.endings.take("demo", "batch-another"):
        await sim.wait(lambda: sim.batch_status(checked).get("phase") == "Finalizing")
        await sim.pass_time(30)
        assert sim.batch_status(checked)["phase"] == "Finalizing"
    assert (await sim.finish_batch(checked, seconds=5))["phase"] == "Completed"
