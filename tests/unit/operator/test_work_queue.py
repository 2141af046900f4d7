"""The work queue: one worker a name, nothing lost, and patience with what fails."""

import asyncio
import itertools
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway_core.concurrency import LONGEST_SECONDS
from gateway_operator.reconciler import WorkQueue
from tests.fakes.clock import in_virtual_time


class Work:
    """Counts how often names are worked, and that each is worked by one at a time."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self.failures: Counter[str] = Counter()
        self.done: Counter[str] = Counter()
        self.times: defaultdict[str, list[float]] = defaultdict(list)
        self.under_way: set[str] = set()
        self.most_at_once = 0

    async def __call__(self, name: str) -> None:
        assert name not in self.under_way, "two workers on one name"
        self.under_way.add(name)
        self.most_at_once = max(self.most_at_once, len(self.under_way))
        self.times[name].append(asyncio.get_running_loop().time())
        try:
            await asyncio.sleep(self.seconds)
            if self.failures[name]:
                self.failures[name] -= 1
                raise RuntimeError("ordered")
            self.done[name] += 1
        finally:
            self.under_way.discard(name)


@asynccontextmanager
async def running(work: Work) -> AsyncIterator[WorkQueue]:
    queue = WorkQueue(work)
    task = asyncio.create_task(queue.run())
    await asyncio.sleep(0)
    yield queue
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def now() -> float:
    return asyncio.get_running_loop().time()


@in_virtual_time
async def test_names_are_worked_concurrently() -> None:
    work = Work(seconds=1)
    async with running(work) as queue:
        for number in range(1000):
            queue.add(f"n{number}")
        assert len(queue) == 1000
        await asyncio.sleep(1.1)
    assert work.most_at_once == 1000
    assert sum(work.done.values()) == 1000


@in_virtual_time
async def test_name_added_while_worked_is_worked_again() -> None:
    work = Work(seconds=1)
    async with running(work) as queue:
        queue.add("a")
        await asyncio.sleep(0.5)
        for _ in range(5):
            queue.add("a")
        await asyncio.sleep(10)
    assert work.done == {"a": 2}


@pytest.mark.parametrize(
    ("schedules", "seconds"),
    [
        ([0], 0),
        ([-5], 0),
        ([30], 30),
        ([30, 10, 20], 10),
        ([30, "add"], 0),
        ([30, "forget"], None),
    ],
    ids=["now", "in the past", "later", "earliest wins", "add replaces it", "forgotten"],
)
@in_virtual_time
async def test_name_is_worked_once_at_its_time(
    schedules: list[float | str], seconds: float | None
) -> None:
    work = Work()
    async with running(work) as queue:
        begin = now()
        queue.add_after("other", 15)
        for schedule in schedules:
            if schedule == "add":
                queue.add("a")
            elif schedule == "forget":
                queue.forget("a")
            else:
                queue.add_after("a", float(schedule))
        await asyncio.sleep(100)
    assert work.times["a"] == ([] if seconds is None else [pytest.approx(begin + seconds)])
    assert work.times["other"] == [pytest.approx(begin + 15)]


@in_virtual_time
async def test_schedule_made_while_worked_stays() -> None:
    work = Work(seconds=1)
    async with running(work) as queue:
        begin = now()
        queue.add("a")
        await asyncio.sleep(0.5)
        queue.add_after("a", 5)
        await asyncio.sleep(20)
    assert work.times["a"] == [pytest.approx(begin), pytest.approx(begin + 5.5)]


@in_virtual_time
async def test_failures_are_retried_with_back_off() -> None:
    work = Work()
    work.failures["a"] = 12
    async with running(work) as queue:
        queue.add("a")
        await asyncio.sleep(1000)
    assert work.done == {"a": 1}
    times = work.times["a"]
    pauses = [after - before for before, after in itertools.pairwise(times)]
    assert 0.4 <= pauses[0] <= 0.6
    for before, after in itertools.pairwise(pauses[:6]):
        assert after > before * 1.2
    assert max(pauses) <= LONGEST_SECONDS * 1.2


@in_virtual_time
async def test_success_resets_the_back_off() -> None:
    work = Work()
    work.failures["a"] = 5
    async with running(work) as queue:
        queue.add("a")
        await asyncio.sleep(100)
        work.failures["a"] = 1
        queue.add("a")
        await asyncio.sleep(1)
    assert work.done == {"a": 2}
    assert work.times["a"][-1] - work.times["a"][-2] <= 0.6


@in_virtual_time
async def test_failing_name_delays_no_other() -> None:
    work = Work()
    work.failures["bad"] = 100
    async with running(work) as queue:
        queue.add("bad")
        queue.add("good")
        await asyncio.sleep(0.1)
        assert work.done == {"good": 1}


@in_virtual_time
async def test_cancelled_queue_stops_work_and_starts_none() -> None:
    work = Work(seconds=10)
    async with running(work) as queue:
        queue.add("a")
        queue.add_after("later", 20)
        await asyncio.sleep(1)
        queue.add("a")
    assert work.under_way == set()
    queue.add("b")
    await asyncio.sleep(100)
    assert work.done == {}
    assert len(queue) == 0


actions = st.lists(
    st.tuples(
        st.sampled_from(["add", "after", "fail", "wait"]),
        st.sampled_from("abc"),
        st.floats(min_value=0, max_value=5),
    ),
    max_size=40,
)


@given(actions, st.sampled_from([0.0, 0.3, 2.0]))
@in_virtual_time
async def test_each_name_is_worked_after_its_last_add(
    steps: list[tuple[str, str, float]], seconds: float
) -> None:
    work = Work(seconds)
    added: dict[str, float] = {}
    async with running(work) as queue:
        for action, name, amount in steps:
            if action == "add":
                queue.add(name)
                added[name] = now()
            elif action == "after":
                queue.add_after(name, amount)
                added.setdefault(name, now())
            elif action == "fail":
                work.failures[name] += 1
            else:
                await asyncio.sleep(amount)
        await asyncio.sleep(3000)
        for name, at in added.items():
            assert work.times[name][-1] >= at
            assert work.done[name] >= 1, "what fails is tried until it succeeds"
        assert len(queue) == 0
