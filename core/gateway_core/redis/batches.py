"""Batches of script calls: calls that arrive during an exchange go to Redis together.

Most of a call's cost is the connection from the pool and the wake-up of the event loop, which a
batch shares. When an exchange fails, the calls that wait fail with it: each would only meet the
same time-out. A call waits for its batch no longer than one exchange may take.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from gateway_core.redis.link import (
    COMMAND_SECONDS,
    CountersUnavailable,
    Reply,
    check_reply,
)
from gateway_core.redis.scripts import ScriptCall

MAX_BATCH = 128
"""Calls in one exchange; bounds how long the server works on it."""

Waiting = tuple[ScriptCall, asyncio.Future[Reply], float]
"""A call, the future of its reply, and until when it may wait, by the loop's clock."""

Run = Callable[[Sequence[ScriptCall]], Awaitable[list[Reply]]]
"""Sends calls together; an error reply is returned as an exception."""


class CommandBatcher:
    """Runs script calls, one exchange by `run` at a time; for one event loop."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._waiting: deque[Waiting] = deque()
        self._busy = False
        self._drain_task: asyncio.Task[None] | None = None

    async def call(self, call: ScriptCall) -> Reply:
        """Return the reply to `call`. CountersStale, CountersUnavailable.

        A call that is cancelled while it waits is never sent.
        """
        if self._busy:
            loop = asyncio.get_running_loop()
            future: asyncio.Future[Reply] = loop.create_future()
            self._waiting.append((call, future, loop.time() + COMMAND_SECONDS))
            return check_reply(await future)
        self._busy = True
        try:
            replies = await self._exchange([call])
        except CountersUnavailable as error:
            self._fail_waiting(error)
            raise
        finally:
            if self._waiting:
                self._drain_task = asyncio.create_task(self._drain())
            else:
                self._busy = False
        return check_reply(replies[0])

    async def _drain(self) -> None:
        try:
            while self._waiting:
                await self._run_batch()
        finally:
            self._busy = False
            # calls are left only where the loop is closing
            for _, future, _ in self._waiting:
                future.cancel()
            self._waiting.clear()

    async def _run_batch(self) -> None:
        batch: list[tuple[ScriptCall, asyncio.Future[Reply]]] = []
        now = asyncio.get_running_loop().time()
        while self._waiting and len(batch) < MAX_BATCH:
            call, future, until = self._waiting.popleft()
            if future.done():
                continue
            if until < now:
                future.set_exception(CountersUnavailable("Redis answers too slowly"))
            else:
                batch.append((call, future))
        if not batch:
            return
        try:
            replies = await self._exchange([call for call, _ in batch])
        except Exception as error:
            for _, future in batch:
                if not future.done():
                    future.set_exception(_copy(error))
            if isinstance(error, CountersUnavailable):
                self._fail_waiting(error)
        except BaseException:
            for _, future in batch:
                future.cancel()
            raise
        else:
            for (_, future), reply in zip(batch, replies, strict=True):
                if not future.done():
                    future.set_result(reply)

    async def _exchange(self, calls: list[ScriptCall]) -> list[Reply]:
        loop = asyncio.get_running_loop()
        began = loop.time()
        replies = await self._run(calls)
        took = loop.time() - began
        # answered, but later than the time-out: the process was paused, and no call has waited
        if took > COMMAND_SECONDS:
            self._waiting = deque((c, future, until + took) for c, future, until in self._waiting)
        return replies

    def _fail_waiting(self, error: CountersUnavailable) -> None:
        for _, future, _ in self._waiting:
            if not future.done():
                future.set_exception(_copy(error))
        self._waiting.clear()


def _copy(error: Exception) -> Exception:
    """Return a copy for each caller: the traceback of a shared exception grows with each raise."""
    if isinstance(error, CountersUnavailable):
        copy = CountersUnavailable(*error.args)
        copy.__cause__ = error.__cause__
        return copy
    return error
