"""Waits for the end of tasks, woken by the one watch of open tasks that the process has.

A wait costs a future and a timer; none reads the Kubernetes API while the watch is alive. What ends
a wait never touches its task: the client has left or cancelled the request, the process is about to
end, or the deadline has come.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Any

from gateway_core.api.errors import GatewayError
from gateway_core.fair_semaphore import FairSemaphore
from gateway_core.kube.informer import Cache

FindRefusal = Callable[[], Awaitable[GatewayError | None]]
"""Why the credential of a call that goes on is refused by now."""


class Stop(Enum):
    """Why a wait ends before its task does."""

    CLIENT_GONE = "client_gone"
    CANCELLED = "cancelled"
    DRAINING = "draining"


class Wait:
    """One call that waits, or will once it has made its object."""

    __slots__ = ("_sleeper", "_woken", "stop")

    def __init__(self) -> None:
        self.stop: Stop | None = None
        self._woken = False
        self._sleeper: asyncio.Future[None] | None = None

    def end(self, reason: Stop) -> None:
        """End the wait; the first reason stays."""
        self.stop = self.stop or reason
        self.wake()

    def wake(self) -> None:
        """End the present sleep, or the next one."""
        self._woken = True
        if self._sleeper is not None and not self._sleeper.done():
            self._sleeper.set_result(None)

    async def sleep(self, seconds: float) -> bool:
        """Sleep for so long; True as soon as it was woken."""
        if not self._woken and seconds > 0:
            loop = asyncio.get_running_loop()
            self._sleeper = loop.create_future()
            timer = loop.call_later(seconds, _finish, self._sleeper)
            try:
                await self._sleeper
            finally:
                timer.cancel()
                self._sleeper = None
        woken, self._woken = self._woken, False
        return woken


class Waits:
    """The waits of one process: `most` in all, and at most `per_account` of one account.

    `end_all` ends them, and lets new ones end at once.
    """

    def __init__(self, tasks: Cache[Any], *, most: int, per_account: int) -> None:
        self._semaphore = FairSemaphore(most, alone=per_account, per_holder=per_account)
        self._by_name: dict[str, list[Wait]] = {}
        self._by_request: dict[tuple[str, str | int], list[Wait]] = {}
        self._draining = False
        tasks.subscribe(self._wake)

    def __len__(self) -> int:
        return self._semaphore.held

    @contextmanager
    def enter(self, account: str, name: str, wait: Wait) -> Iterator[bool]:
        """Let the object `name` wake the wait; False where there is no room for it."""
        if not self._semaphore.has_room(account):
            yield False
            return
        if self._draining:
            wait.end(Stop.DRAINING)
        self._semaphore.acquire_nowait(account)
        self._by_name.setdefault(name, []).append(wait)
        try:
            yield True
        finally:
            _remove(self._by_name, name, wait)
            self._semaphore.release(account)

    @contextmanager
    def cancellable(self, wait: Wait, caller: str, request_id: str | int) -> Iterator[None]:
        """Let `cancel` of the same caller and request end the wait."""
        key = caller, request_id
        self._by_request.setdefault(key, []).append(wait)
        try:
            yield
        finally:
            _remove(self._by_request, key, wait)

    def cancel(self, caller: str, request_id: str | int) -> None:
        """End the waits of the caller's requests of this id: two clients of a key may share it."""
        for wait in self._by_request.get((caller, request_id), ()):
            wait.end(Stop.CANCELLED)

    def end_all(self) -> None:
        """End all waits: the process drains."""
        self._draining = True
        for waits in self._by_name.values():
            for wait in waits:
                wait.end(Stop.DRAINING)

    def _wake(self, name: str) -> None:
        for wait in self._by_name.get(name, ()):
            wait.wake()


def _finish(sleeper: asyncio.Future[None]) -> None:
    if not sleeper.done():
        sleeper.set_result(None)


def _remove(index: dict[Any, list[Wait]], key: Any, wait: Wait) -> None:
    waits = index[key]
    waits.remove(wait)
    if not waits:
        del index[key]
