"""Whether the Kubernetes API answers, so that calls that cannot be recorded soon get 503.

After a call has failed, or has waited for a second in which no other was answered either, the next
ones wait for a small read first, and are refused if it fails: nothing of them was sent, so their
outcome is known. An API that is merely slow is not doubted.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from gateway_core.api.errors import Unavailable
from gateway_core.api.task import GatewayTask
from gateway_core.concurrency import WaitLimit
from gateway_core.kube.client import KubernetesClient
from gateway_core.kube.errors import (
    KubernetesError,
    KubernetesUnavailable,
    ObjectNotFound,
    WriteOutcomeUnknown,
)

SLOW_SECONDS = 1.0
"""Time without any answer after which the API is in doubt."""
PROBE_SECONDS = 0.8
PAUSE_SECONDS = 0.3
"""Time after a failed probe in which no other is tried."""
_NAME = "task-pulse"


class ApiHealth:
    """One for a process. Without a doubt `check` returns at once."""

    def __init__(
        self, kube: KubernetesClient, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._kube = kube
        self._clock = clock
        self._in_doubt = False
        self._answered_at = self._failed_at = float("-inf")
        self._probe: asyncio.Task[bool] | None = None

    async def check(self) -> None:
        """Return at once, or in doubt after a probe that all callers share. Unavailable."""
        if not self._in_doubt:
            return
        if self._clock() - self._failed_at < PAUSE_SECONDS:
            raise _unavailable()
        if self._probe is None or self._probe.done():
            self._probe = asyncio.create_task(self._ask())
        # shielded: a caller that goes away must not take the answer from the others
        if not await asyncio.shield(self._probe):
            raise _unavailable()

    @asynccontextmanager
    async def listen(self, *, gives_up: bool = False) -> AsyncIterator[None]:
        """Observe a call of the API: whether, and how soon, it is answered.

        `gives_up`: TimeoutError once the API is in doubt because of it.
        """
        loop = asyncio.get_running_loop()
        began = self._clock()
        timer: asyncio.TimerHandle

        def look() -> None:
            nonlocal timer
            # if this process itself was blocked, answers may wait to be read
            on_time = loop.time() - timer.when() < SLOW_SECONDS / 2
            if on_time and self._answered_at < self._clock() - SLOW_SECONDS:
                self._in_doubt = True
                if gives_up:
                    scope.reschedule(loop.time())
                    return
            timer = loop.call_later(SLOW_SECONDS / 2, look)

        timer = loop.call_later(SLOW_SECONDS, look)
        try:
            async with asyncio.timeout(None) as scope:
                yield
            self._hear()
        except (KubernetesUnavailable, WriteOutcomeUnknown, TimeoutError):
            if self._answered_at < began:
                self._in_doubt = True
            raise
        except KubernetesError:
            self._hear()  # an answer too
            raise
        finally:
            timer.cancel()

    def _hear(self) -> None:
        self._answered_at = self._clock()
        self._in_doubt = False

    async def _ask(self) -> bool:
        began = self._clock()
        try:
            async with WaitLimit(PROBE_SECONDS):
                await self._kube.get(GatewayTask.plural, _NAME)
        except ObjectNotFound:
            pass
        except (KubernetesError, TimeoutError):
            if self._answered_at < began:
                self._failed_at = self._clock()
                return False
        self._hear()
        return True


def _unavailable() -> Unavailable:
    return Unavailable("The task cannot be recorded now.", retry_after=1)
