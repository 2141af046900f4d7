"""Calls that go to Redis together, whose exchanges the test decides."""

import asyncio
from collections.abc import Callable, Sequence

from gateway_core.redis.batches import MAX_BATCH, CommandBatcher
from gateway_core.redis.link import COMMAND_SECONDS, CountersUnavailable, Reply
from gateway_core.redis.scripts import SPENDING, ScriptCall
from tests.fakes.clock import in_virtual_time

CALL = ScriptCall(SPENDING, ("gw:{demo}:money",), ("2026-11-21",))
MANY = 5 * MAX_BATCH


class Link:
    """Answers or fails each exchange after so many seconds."""

    def __init__(self, seconds: float, fails: Callable[[int], bool] = lambda _: False) -> None:
        self.sizes: list[int] = []
        self._seconds = seconds
        self._fails = fails

    async def run(self, calls: Sequence[ScriptCall]) -> list[Reply]:
        self.sizes.append(len(calls))
        number = len(self.sizes)
        await asyncio.sleep(self._seconds)
        if self._fails(number):
            raise CountersUnavailable("away")
        return [b"ok"] * len(calls)


async def time_calls(link: Link, count: int) -> list[tuple[float, bool]]:
    """For each of so many calls made at once: the seconds it took, and whether it was answered."""
    batcher = CommandBatcher(link.run)
    loop = asyncio.get_running_loop()
    began = loop.time()

    async def call() -> tuple[float, bool]:
        try:
            answered = await batcher.call(CALL) == b"ok"
        except CountersUnavailable:
            answered = False
        return loop.time() - began, answered

    return await asyncio.gather(*(call() for _ in range(count)))


@in_virtual_time
async def test_waiting_commands_fail_with_their_exchange() -> None:
    link = Link(COMMAND_SECONDS, fails=lambda _: True)
    assert set(await time_calls(link, MANY)) == {(COMMAND_SECONDS, False)}
    assert link.sizes == [1]


@in_virtual_time
async def test_commands_behind_a_full_exchange_fail_with_it() -> None:
    link = Link(1.0, fails=lambda number: number == 2)
    told = await time_calls(link, MANY)
    assert told[0] == (1.0, True)
    assert set(told[1:]) == {(2.0, False)}
    assert link.sizes == [1, MAX_BATCH]


@in_virtual_time
async def test_server_that_answers_late_keeps_nobody_waiting_for_ever() -> None:
    link = Link(0.9 * COMMAND_SECONDS)
    told = await time_calls(link, MANY)
    assert max(seconds for seconds, _ in told) <= 2 * COMMAND_SECONDS
    assert sum(answered for _, answered in told) == 1 + MAX_BATCH == sum(link.sizes)


@in_virtual_time
async def test_next_call_after_a_failure_is_sent() -> None:
    link = Link(0.1, fails=lambda number: number == 1)
    batcher = CommandBatcher(link.run)
    failed = await asyncio.gather(*(batcher.call(CALL) for _ in range(3)), return_exceptions=True)
    assert {type(error) for error in failed} == {CountersUnavailable}
    assert await asyncio.gather(*(batcher.call(CALL) for _ in range(3))) == [b"ok"] * 3


@in_virtual_time
async def test_pause_of_this_process_is_nobodys_wait() -> None:
    """An exchange that is answered after its time has met one."""
    link = Link(1.2 * COMMAND_SECONDS)
    told = await time_calls(link, 3)
    assert [answered for _, answered in told] == [True] * 3
    assert link.sizes == [1, 2]
