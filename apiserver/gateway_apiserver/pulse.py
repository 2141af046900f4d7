"""Whether the Kubernetes API answers, so that what cannot be recorded is refused soon, with 503.

A call that hangs tells nothing for as long as it hangs. Once one has been out for a second, or has
failed, the next ones have a small read answered first and are refused where it is not: nothing of
them has been sent then, so nothing is left unknown. Used by `recording` and `finder`.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gateway_core.contract.errors import Unavailable
from gateway_core.contract.task import GatewayTask
from gateway_core.ports.records import (
    Missing,
    RecordError,
    RecordOutcomeUnknown,
    Records,
    RecordUnavailable,
)

SLOW_SECONDS = 1.0
"""Time without an answer after which the API is in doubt."""
PROBE_SECONDS = 0.6
PAUSE_SECONDS = 0.3
"""Time after a failed probe in which no other is tried."""
_NAME = "task-pulse"


class Pulse:
    """Made once for all calls; while nothing is in doubt it costs next to nothing."""

    def __init__(self, records: Records, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._records = records
        self._clock = clock
        self._in_doubt = False
        self._failed_at = float("-inf")
        self._probe: asyncio.Task[bool] | None = None

    async def check(self) -> None:
        """Returns at once, or in doubt after a probe that all callers share. Unavailable."""
        if not self._in_doubt:
            return
        if self._clock() - self._failed_at < PAUSE_SECONDS:
            raise _unavailable()
        if self._probe is None or self._probe.done():
            self._probe = asyncio.create_task(self._ask())
        # shielded: a caller that goes away must not take the answer from the others
        if not await asyncio.shield(self._probe):
            raise _unavailable()

    @contextmanager
    def listen(self) -> Iterator[None]:
        """Goes around a call of the API's and notes whether, and how soon, it is answered."""
        timer = asyncio.get_running_loop().call_later(SLOW_SECONDS, self._doubt)
        try:
            yield
            self._in_doubt = False
        except (RecordUnavailable, RecordOutcomeUnknown, TimeoutError):
            self._doubt()
            raise
        finally:
            timer.cancel()

    def _doubt(self) -> None:
        self._in_doubt = True

    async def _ask(self) -> bool:
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                await self._records.get(GatewayTask.plural, _NAME)
        except Missing:
            pass
        except (RecordError, TimeoutError):
            self._failed_at = self._clock()
            return False
        self._in_doubt = False
        return True


def _unavailable() -> Unavailable:
    return Unavailable("The task cannot be recorded now.", retry_after=1)
