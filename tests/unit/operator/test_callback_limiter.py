"""Who may send when: bounds at three gates, and none that starves another."""

import asyncio
from collections import Counter
from contextlib import AsyncExitStack

import pytest

from gateway_operator.callbacks import client as limiter
from gateway_operator.callbacks.client import (
    IN_ALL,
    PER_ACCOUNT,
    PER_ACCOUNT_SLOW,
    PER_HOST,
    PER_LATE_HOST,
    CallbackLimiter,
)


class Crowd:
    """Attempts that have begun, and stay until they are let go."""

    def __init__(self, receivers):
        self.receivers = receivers
        self.inside = []
        self._tasks = []
        self._end = asyncio.Event()

    def send(self, account, host, *, slow=False, answers=False):
        self._tasks.append(asyncio.create_task(self._stay(account, host, slow, answers)))

    async def _stay(self, account, host, slow, answers):
        async with self.receivers.take(account, host) as receiver:
            self.inside.append((account, host))
            await self._end.wait()
            receiver.is_slow, receiver.answers = slow, answers

    async def settle(self):
        for _ in range(20):
            await asyncio.sleep(0)

    async def let_go(self):
        self._end.set()
        await asyncio.gather(*self._tasks)
        self._end.clear()
        self._tasks.clear()
        self.inside.clear()


@pytest.fixture
async def crowd():
    made = Crowd(CallbackLimiter())
    yield made
    await made.let_go()


async def test_attempts_at_one_host_are_bounded(crowd):
    for _ in range(PER_HOST + 5):
        crowd.send("a", "h")
    await crowd.settle()
    assert len(crowd.inside) == PER_HOST
    await crowd.let_go()


async def test_full_host_delays_no_other_host_or_account(crowd):
    for _ in range(PER_HOST + 5):
        crowd.send("a", "dead")
    crowd.send("a", "alive")
    crowd.send("b", "dead")
    await crowd.settle()
    assert ("a", "alive") in crowd.inside
    assert ("b", "dead") in crowd.inside


async def test_slow_host_gets_one_until_it_answers(crowd):
    crowd.send("a", "h", slow=True)
    await crowd.settle()
    await crowd.let_go()
    for _ in range(3):
        crowd.send("a", "h")
    await crowd.settle()
    assert len(crowd.inside) == 1
    await crowd.let_go()
    for _ in range(PER_HOST):
        crowd.send("a", "h")
    await crowd.settle()
    assert len(crowd.inside) == PER_HOST


async def test_account_bound_covers_all_its_hosts(crowd):
    for number in range(PER_ACCOUNT + 10):
        crowd.send("a", f"h{number}", slow=True)
    await crowd.settle()
    assert len(crowd.inside) == PER_ACCOUNT
    await crowd.let_go()
    for number in range(PER_ACCOUNT + 10):
        crowd.send("a", f"h{number}")
    for number in range(5):
        crowd.send("a", f"new{number}")
    await crowd.settle()
    assert len(crowd.inside) == PER_ACCOUNT_SLOW + 5, "slow ones have a gate of their own"


async def test_late_hosts_get_few_attempts_and_delay_no_quick_host(crowd):
    late = [f"late{number}" for number in range(PER_ACCOUNT // PER_HOST)]
    for host in late:
        crowd.send("a", host, slow=True, answers=True)
    await crowd.settle()
    await crowd.let_go()
    for host in sorted(late * PER_HOST):
        crowd.send("a", host, slow=True, answers=True)
    crowd.send("a", "quick")
    await crowd.settle()
    assert ("a", "quick") in crowd.inside
    assert len(crowd.inside) == PER_ACCOUNT_SLOW + 1
    assert max(Counter(crowd.inside).values()) == PER_LATE_HOST


async def test_hosts_remembered_as_slow_are_bounded_though_the_oldest_is_busy(monkeypatch):
    monkeypatch.setattr(limiter, "MOST_IDLE_HOSTS", 10)
    receivers = CallbackLimiter()
    async with receivers.take("a", "dead") as dead:
        for number in range(50):
            async with receivers.take("a", f"h{number}") as receiver:
                receiver.is_slow = True
        assert len(receivers._receivers) == 11
        dead.is_slow = True
    assert ("a", "dead") in receivers._receivers
    assert ("a", "h49") in receivers._receivers
    assert len(receivers._receivers) == 10


async def test_attempts_of_the_process_are_bounded(crowd):
    for number in range(IN_ALL + 10):
        crowd.send(f"account{number}", "h")
    await crowd.settle()
    assert len(crowd.inside) == IN_ALL


async def test_idle_quick_hosts_are_forgotten():
    receivers = CallbackLimiter()
    async with AsyncExitStack() as stack:
        for number in range(50):
            receiver = await stack.enter_async_context(receivers.take("a", f"h{number}"))
            receiver.is_slow = number < 3
    assert len(receivers._receivers) == 3
    assert not receivers._accounts
