"""Calls that arrive while another is under way go to Redis together.

Used by `RedisCounters` for the short calls of the request path. Most of what a call costs is
the taking and giving back of a connection and the waking of the event loop, shared this way.

Nobody waits long for a server that does not answer: what waits when an exchange fails fails with
it, since it would only meet the same after one more time-out each. A server that answers late keeps
a call waiting for its turn no longer than an exchange may take; an exchange that took longer, and
was answered, met a pause of this process, in which nobody has waited.
"""

import asyncio
from collections import deque

from gateway_core.redis.link import (
    COMMAND_SECONDS,
    CountersUnavailable,
    RedisLink,
    Reply,
    check_reply,
)
from gateway_core.redis.scripts import ScriptCall

MAX_BATCH = 128
"""Calls sent at once; bounds how long the server works on one exchange."""

Waiting = tuple[ScriptCall, asyncio.Future[Reply], float]
"""A call, whom to tell, and until when it may wait for its turn, by the loop's clock."""


class CommandBatcher:
    """Runs script calls over `link`, one exchange at a time; for one event loop."""

    def __init__(self, link: RedisLink) -> None:
        self._link = link
        self._waiting: deque[Waiting] = deque()
        self._busy = False
        self._drain_task: asyncio.Task[None] | None = None

    async def call(self, call: ScriptCall) -> Reply:
        """The reply to `call`. CountersStale, CountersUnavailable.

        A caller that gives up while it waits for its turn is never sent.
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
            # Only where the loop is ending under us is anybody left.
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
        replies = await self._link.run(calls)
        took = loop.time() - began
        if took > COMMAND_SECONDS:
            self._waiting = deque((c, future, until + took) for c, future, until in self._waiting)
        return replies

    def _fail_waiting(self, error: CountersUnavailable) -> None:
        for _, future, _ in self._waiting:
            if not future.done():
                future.set_exception(_copy(error))
        self._waiting.clear()


def _copy(error: Exception) -> Exception:
    """An exception of its own for each caller: tracebacks grow on a shared one."""
    if isinstance(error, CountersUnavailable):
        copy = CountersUnavailable(*error.args)
        copy.__cause__ = error.__cause__
        return copy
    return error
